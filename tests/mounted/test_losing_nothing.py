"""kill -9 of the daemon at random moments, with busy sessions, loses no event that a client saw.

abi.md 5.28. `make test` runs a few rounds, CTX_SOAK 200. A failure names its seed; CTX_SEED repeats it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import trio

from tests.mounted.ctx_mount import Ctx, mounted, wait_gone
from tests.mounted.plain_client import Line, connected
from tests.waiting import PATIENCE, until

ROUNDS = 200 if "CTX_SOAK" in os.environ else 3
SEED = int(os.environ.get("CTX_SEED", random.randrange(1 << 32)))
GENERATION = 4  # rounds before new sessions are taken, as long sessions take long to read
TORN = "bytes of the log were not written whole; they were cut off"


class Session:
    """A session, and all events of it that clients ever saw."""

    def __init__(self, model: str, name: str, scope: str) -> None:
        self.model, self.name, self.scope = model, name, scope
        self.inputs: dict[str, str] = {}  # the input of every message, by its id
        self.orders: list[list[str]] = []  # the ids in order, for each client of this life that sends
        self.cancelled: set[str] = set()
        self.seen: dict[int, bytes] = {}
        self.followed = 0

    def see(self, line: Line) -> None:
        """Check that an event is the same for each client at each time."""
        before = self.seen.setdefault(line.number, line.raw)
        assert before == line.raw, f"{self.name}: event {line.number} has changed"

    def follow(self, line: Line) -> None:
        """abi.md 5.18."""
        assert line.number == self.followed + 1, f"{self.name}: {line} after {self.followed}"
        self.followed = line.number
        self.see(line)

    def log(self, state: Path) -> Path:
        space = "shared/main" if self.scope == "shared" else f"home/{os.geteuid()}"
        folder = f"model/debug/{self.model}.d/session/{self.name}"
        return state / "sessions" / space / folder / "events.jsonl"


class Life:
    """One daemon, which is killed after `events` events were seen."""

    def __init__(self, ctx: Ctx, number: int, events: int) -> None:
        self.number = number
        self._root = ctx.root
        self._pid = ctx.pid
        self._left = events

    def socket(self, session: Session) -> Path:
        return self._root / "model" / "debug" / f"{session.model}.sock"

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(self._pid, signal.SIGKILL)


def message(model: str, rng: random.Random) -> str:
    if model == "echo":
        return " ".join(f"word{number}" for number in range(rng.choice((1, 5, 50, 400))))
    steps = []
    for _ in range(rng.randint(1, 6)):
        burst = {"burst": rng.choice((1, 10, 100)), "size": rng.choice((2, 32, 200))}
        steps.append(rng.choice((burst, {"delta": "héllo \n"}, {"sleep": rng.choice((0, 0.001, 0.01))})))
    return json.dumps([*steps, {"delta": "."}])


def answer(model: str, text: str) -> str:
    """Returns the model's answer to a message."""
    if model == "echo":
        return text
    steps = json.loads(text)
    bursts = [("x" * (step["size"] - 1) + " ") * step["burst"] if "burst" in step else "" for step in steps]
    return "".join(step.get("delta", burst) for step, burst in zip(steps, bursts, strict=True))


# The life of a daemon.


async def send_for_ever(life: Life, session: Session, rng: random.Random) -> None:
    """Keep some messages waiting, and cancel a message now and then."""
    order: list[str] = []
    session.orders.append(order)
    who = len(session.orders)
    async with connected(life.socket(session)) as client:
        waiting: dict[str, None] = {}
        runs: dict[str, str] = {}
        while True:
            while len(waiting) < rng.randint(1, 4):
                id_ = f"{life.number}-{who}-{len(order)}"
                session.inputs[id_] = message(session.model, rng)
                order.append(id_)
                waiting[id_] = None
                names = {"session": session.name, "scope": session.scope}
                await client.ask("send", id=id_, input=session.inputs[id_], **names)
            line = await client.line()
            if line is None:
                return
            if not line.number:  # the answer to a cancel that came too late
                assert line.frame["code"] == "EALREADY", line
                continue
            session.see(line)
            if line.type == "start":
                runs[line.frame["run"]] = line.frame["request"]
            if line.type == "done":
                del waiting[runs[line.frame["run"]]]
            elif rng.random() < 0.005:
                id_ = rng.choice(list(waiting))
                session.cancelled.add(id_)
                await client.ask("cancel", id=id_)
            life.count()


async def follow(life: Life, session: Session) -> None:
    """Resume after the last event that was followed in earlier lives."""
    async with connected(life.socket(session)) as client:
        after = {"after": str(session.followed)} if session.followed else {}
        await client.ask("resume", session=session.name, scope=session.scope, **after)
        while line := await client.line():
            session.follow(line)
            life.count()


async def live(life: Life, sessions: list[Session], rng: random.Random) -> None:
    """Run all clients until the daemon is dead."""

    async def guarded(work: object) -> None:
        # The daemon may be killed while a client connects or sends.
        with suppress(OSError, trio.BrokenResourceError):
            await work  # type: ignore[misc]

    async with trio.open_nursery() as nursery:
        for session in sessions:
            session.orders.clear()
            for _ in range(2 if session.scope == "shared" else 1):
                client = random.Random(rng.random())
                nursery.start_soon(guarded, send_for_ever(life, session, client))
            nursery.start_soon(guarded, follow(life, session))


# The state that a killed daemon leaves.


async def check(socket: Path, session: Session, marker: str) -> Counter[str]:
    session.inputs[marker] = "1 2" if session.model == "echo" else '[{"delta":"1 2"}]'
    names = {"session": session.name, "scope": session.scope}
    async with connected(socket) as client:
        await client.ask("resume", **names)
        await client.ask("send", id=marker, input=session.inputs[marker], **names)
        history = await client.until_done(marker)
    missing = session.seen.keys() - {line.number for line in history}
    assert not missing, f"{session.name}: events {sorted(missing)} are lost"
    assert [line.number for line in history] == list(range(1, len(history) + 1))
    for line in history:
        session.see(line)
    counted = judge(session, history)
    await check_follower(socket, session, names, marker)
    await check_retries(socket, session, names, counted)
    return counted


def judge(session: Session, history: list[Line]) -> Counter[str]:
    """Check that each run is whole or reports that it is not, and that messages are in order, each once."""
    runs: dict[str, list[Line]] = {}
    for line in history:
        runs.setdefault(line.frame["run"], []).append(line)
    counted = Counter(judge_run(session, lines) for lines in runs.values())
    logged = [lines[0].frame["request"] for lines in runs.values()]
    assert len(set(logged)) == len(logged), logged
    for order in session.orders:
        asked = [id_ for id_ in order if id_ not in session.cancelled]
        there = [id_ for id_ in logged if id_ in asked]
        assert there == asked[: len(there)], session.name
    return counted


def judge_run(session: Session, lines: list[Line]) -> str:
    start, said, *output, done = (line.frame for line in lines)
    types = [line.type for line in lines]
    assert (types[0], types[-1], types.count("start"), types.count("done")) == ("start", "done", 1, 1), types
    text = session.inputs[start["request"]]
    assert (said["role"], said["content"]) == ("user", [{"type": "text", "text": text}])
    whole = answer(session.model, text)
    got = "".join(frame["text"] for frame in output if frame["type"] == "delta")
    if done["status"] == "ok":
        assert got == whole
        texts = [frame["content"][0]["text"] for frame in output if frame["type"] == "message"]
        assert texts == [whole]
    else:
        assert whole.startswith(got)
        if done["status"] == "cancelled":
            assert start["request"] in session.cancelled
        else:
            assert (output[-1]["type"], output[-1]["code"], done["code"]) == ("error", "EIO", "EIO")
    return str(done["status"])


async def check_follower(socket: Path, session: Session, names: dict[str, str], marker: str) -> None:
    last = max(session.seen)
    async with connected(socket) as client:
        after = {"after": str(session.followed)} if session.followed else {}
        await client.ask("resume", **names, **after)
        while session.followed < last:
            line = await client.line()
            assert line
            session.follow(line)


async def check_retries(socket: Path, session: Session, names: dict[str, str], counted: Counter[str]) -> None:
    """abi.md 5.14. A message that was never begun gets a new run."""
    original = {
        frame["request"]: frame["run"]
        for raw in session.seen.values()
        if raw.startswith(b'{"type":"start"') and (frame := json.loads(raw))
    }
    async with connected(socket) as client:
        for id_, text in session.inputs.items():
            await client.ask("send", id=id_, input=text, **names)
            for line in await client.until_done(id_):
                assert line.frame["run"] == original.get(id_, line.frame["run"])
                session.see(line)
            counted["retries" if id_ in original else "begun by a retry"] += 1


async def check_all(ctx: Ctx, sessions: list[Session], number: int) -> Counter[str]:
    counted: Counter[str] = Counter()

    async def one(session: Session) -> None:
        socket = ctx.root / "model" / "debug" / f"{session.model}.sock"
        counted.update(await check(socket, session, f"marker-{number}"))

    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(one, session)
    for session in sessions:
        lines = [session.seen[number] + b"\n" for number in sorted(session.seen)]
        assert session.log(ctx.state).read_bytes() == b"".join(lines), f"{session.name}: the log is another"
    return counted


def tear(ctx: Ctx, sessions: list[Session], rng: random.Random) -> dict[Path, bytes]:
    """Append to some logs a line that a kill cut short. Returns the bytes to be cut off each log."""
    line = b'{"type":"delta","id":"%d","run":"r1","text":"what nobody has seen"}'
    expected = {}
    for session in rng.sample(sessions, 2):
        path = session.log(ctx.state)
        if path.exists():
            torn = not_whole(path.read_bytes())
            part = (line % (max(session.seen, default=0) + 1))[: rng.randint(1, 60)]
            with open(path, "ab") as file:
                file.write(part)
            expected[path] = torn + part
    return expected


def not_whole(log: bytes) -> bytes:
    """Returns the unfinished end of a log: a part of a line, and a start without its message."""
    *_, last, part = (b"\n" + log).rsplit(b"\n", 2)
    return last + b"\n" + part if last.startswith(b'{"type":"start"') else part


def kill(ctx: Ctx, pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)


def play_round(ctx: Ctx, number: int, sessions: list[Session]) -> Counter[str]:
    rng = random.Random(f"{SEED} {number}")
    pid = ctx.pid

    events = rng.choice((1, 100, *(rng.randint(1, 4000) for _ in range(4))))

    async def live_once() -> None:
        with trio.fail_after(PATIENCE):
            await live(Life(ctx, number, events), sessions, rng)

    async def check_once() -> Counter[str]:
        with trio.fail_after(PATIENCE):
            return await check_all(ctx, sessions, number)

    trio.run(live_once)
    kill(ctx, pid)
    expected = tear(ctx, sessions, rng)
    log = ctx.state / "daemon.log"
    said = log.stat().st_size
    ctx.mount()
    if killed_again := rng.random() < 0.25:  # while the daemon recovers
        kill(ctx, ctx.pid)
        ctx.mount()
    counted = trio.run(check_once)
    told = log.read_bytes()[said:].decode()
    for path, data in expected.items():
        assert data in [each.read_bytes() for each in path.parent.glob("events.jsonl.cut-*")]
        sentence = f"session/{path.parent.name}: the last {len(data)} {TORN}"
        assert killed_again or sentence in told, told
    return counted + Counter({"torn": len(expected)})


def sessions_of(generation: int) -> list[Session]:
    scopes = ("private", "private", "shared")
    return [
        Session(("echo", "script")[each % 2], f"s{generation}-{each}", scopes[each % 3]) for each in range(20)
    ]


def test_kill_9_loses_nothing_that_was_seen(python: Path) -> None:
    total: Counter[str] = Counter()
    sessions: list[Session] = []
    with mounted(python) as ctx:
        for number in range(ROUNDS):
            if number % GENERATION == 0:
                sessions = sessions_of(number // GENERATION)
            began = time.monotonic()
            try:
                counted = play_round(ctx, number, sessions)
            except BaseException as failure:
                failure.add_note(f"round {number}; CTX_SEED={SEED} plays it again")
                raise
            total += counted
            print(number, f"{time.monotonic() - began:.2f} s", dict(counted), flush=True)
    print(dict(total))
    assert total["error"], "no run was active at any kill"
    assert total["ok"]
    assert total["retries"]


def test_what_is_made_from_a_log_is_made_after_a_crash(fresh: Ctx) -> None:
    # abi.md 5.28, also where no client uses the session again. The
    # daemon may have died just before it wrote these files.
    session = Session("echo", "crashed", "private")
    folder = session.log(fresh.state).parent

    async def say() -> None:
        with trio.fail_after(PATIENCE):
            async with connected(fresh.root / "model/debug/echo.sock") as client:
                await client.ask("send", id="1", session="crashed", input="hello")
                await client.until_done("1")

    trio.run(say)
    kill(fresh, fresh.pid)
    for name in ("messages.jsonl", "latest.md", "meta.json", "state"):
        (folder / name).unlink(missing_ok=True)
    fresh.mount()
    until((folder / "meta.json").exists)  # the last file to be written
    assert (folder / "latest.md").read_text() == "hello\n"
    assert (folder / "messages.jsonl").read_text().count('"text":"hello"') == 2
    assert (folder / "state").read_text() == "done\n"
