"""Sessions of a team whose machine is lost, stopped or late, and a stream that is lost. Afterwards each
machine has all messages that were reported as done, once and in order."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import wait_gone
from tests.mounted.talking import SCRIPT, Closed, Frame, Talk, talk
from tests.team.machines import Machine, free_ports, machine, team
from tests.team.sessions import MAP, events, same, send, take, whole
from tests.waiting import until

ROUNDS = 100 if "CTX_SOAK" in os.environ else 4
SEED = int(os.environ.get("CTX_SEED", random.randrange(1 << 32)))


@pytest.fixture
def machines(python: Path) -> Iterator[dict[str, Machine]]:
    with team(python, "laptop", "third", "box") as found:
        for each in found.values():
            (each.ctx.config / "team.map").write_text(MAP)
        yield found


def lose(machine: Machine) -> None:
    """Kill its daemon with SIGKILL; its link ends with the daemon."""
    pid = machine.ctx.pid
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)


def back(machine: Machine) -> None:
    machine.ctx.ctx("umount", str(machine.ctx.root), check=False)
    machine.ctx.mount()


def taken(machine: Machine, session: str, path: str = SCRIPT) -> None:
    """Take the session as soon as the machine that has it counts as away."""
    until(lambda: take(machine, session, path, check=False), lambda seen: "this machine has" in seen)


def play(machine: Machine, session: str, *steps: Frame, **fields: object) -> Frame:
    with talk(machine.ctx, SCRIPT) as there:
        there.play(*steps, session=session, **fields)
        return there.until("done")[-1]


def half(machine: Machine, session: str, id_: str, *others: Machine) -> Talk:
    """Begin a run, and wait until all machines have its beginning; returns the client of the run."""
    here = Talk(machine.ctx.root / SCRIPT)
    here.play({"delta": f"half {id_}"}, {"sleep": 3600}, session=session, id=id_)
    here.until("delta")
    for each in (machine, *others):
        until(partial(whole, each, session, SCRIPT), lambda seen: f"half {id_}".encode() in seen)
    return here


def kept_aside(machine: Machine, session: str) -> bytes:
    folder = machine.ctx.state / f"sessions/home/0/{SCRIPT[:-5]}.d/session/{session}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("events.jsonl.cut-*")))


def test_it_is_taken_from_a_machine_that_was_killed(machines: dict[str, Machine]) -> None:
    # abi.md 14.17
    laptop, third, box = (machines[name] for name in ("laptop", "third", "box"))
    session = "dies+laptop"
    assert play(laptop, session, {"delta": "told"})["status"] == "ok"
    with contextlib.closing(half(laptop, session, "lost", box)):
        lose(laptop)
    taken(box, session)
    assert play(box, session, {"delta": "gone on"})["status"] == "ok"
    back(laptop)
    found = events(same(session, laptop, third, box, path=SCRIPT))
    assert [one.get("code") for one in found if one["type"] == "done"] == [None, "EIO", None]
    with talk(laptop.ctx, SCRIPT) as here:
        here.send("hello", session=session)
        assert here.error()["code"] == "EACCES"


def test_a_late_owner_is_refused_and_its_tail_is_kept_beside(machines: dict[str, Machine]) -> None:
    # abi.md 14.20
    laptop, third, box = (machines[name] for name in ("laptop", "third", "box"))
    session = "late+laptop"
    link = laptop.link()
    with contextlib.closing(half(laptop, session, "one", box)) as here:
        os.kill(link, signal.SIGSTOP)  # stands for a loss of the network
        try:
            here.play({"delta": "never told"}, session=session, id="two")
            here.ask("cancel", id="one")
            until(lambda: here_alone(laptop, session), lambda seen: b'"status":"cancelled"' in seen)
            taken(box, session)
            assert play(box, session, {"delta": "gone on"})["status"] == "ok"
        finally:
            os.kill(link, signal.SIGCONT)
        end = here.until("done")[-1]
        assert (end["status"], end["code"]) == ("error", "EHOSTDOWN")
        found = same(session, laptop, third, box, path=SCRIPT)
    assert b'"status":"cancelled"' not in found
    assert b'"status":"cancelled"' in kept_aside(laptop, session)


def here_alone(machine: Machine, session: str) -> bytes:
    """Returns the log on the machine's disk, with events that the stream has not stored."""
    folder = machine.ctx.state / f"sessions/home/0/{SCRIPT[:-5]}.d/session/{session}"
    return (folder / "events.jsonl").read_bytes()


def test_the_logs_repair_a_stream_that_was_lost(machines: dict[str, Machine]) -> None:
    # abi.md 14.21
    laptop, third, box = (machines[name] for name in ("laptop", "third", "box"))
    for session in ("one+laptop", "two+laptop"):
        assert play(laptop, session, {"delta": "kept"})["status"] == "ok"
        same(session, laptop, third, box, path=SCRIPT)
    take(box, "two+laptop", SCRIPT, "--force")
    before = [same(session, laptop, third, box, path=SCRIPT) for session in ("one+laptop", "two+laptop")]
    third.ctx.umount()
    box.ctx.umount()
    stores = [path for path in box.folder.rglob("SESSIONS") if path.is_dir()]
    assert stores
    for path in stores:
        shutil.rmtree(path)
    box.ctx.mount()
    for name in ("one+laptop", "two+laptop"):
        shutil.rmtree(third.ctx.state / f"sessions/home/0/{SCRIPT[:-5]}.d/session/{name}")
    third.ctx.mount()
    after = [same(session, laptop, third, box, path=SCRIPT) for session in ("one+laptop", "two+laptop")]
    assert after == before  # third gets them from the stream alone
    assert play(laptop, "one+laptop", {"delta": "and on"})["status"] == "ok"
    assert play(box, "two+laptop", {"delta": "and on"})["status"] == "ok"
    for session in ("one+laptop", "two+laptop"):
        same(session, laptop, third, box, path=SCRIPT)


def test_sessions_outlive_the_step_to_three_servers(python: Path) -> None:
    # abi.md 14.12, 14.21
    session = "grows+laptop"
    with machine(python, "box") as box, machine(python, "laptop") as laptop, machine(python, "desk") as desk:
        for each in (box, laptop, desk):
            (each.ctx.config / "team.map").write_text(MAP)
            where = ("--name", each.name, "--listen", f"127.0.0.1:{free_ports()}", "--address", "127.0.0.1")
            if each is box:
                box.team("init", *where)
            else:
                each.team("join", "--server", *where, box.team("init", "--server").stdout.strip())
            if each is laptop:  # there is one server so far
                until(lambda: send(laptop, session, "one", check=False), lambda seen: seen == "")
                before = same(session, laptop, box)
        for each in (box, laptop, desk):  # the stream is on all three, so one of them may be lost
            until(each.is_in_cluster)
        assert same(session, laptop, box, desk).startswith(before)
        lose(box)
        until(lambda: send(laptop, session, "two", check=False), lambda seen: seen == "")
        assert b"two" in same(session, laptop, desk)
        back(box)
        assert b"two" in same(session, laptop, desk, box)


def test_a_log_that_was_lost_comes_back_from_the_stream(machines: dict[str, Machine]) -> None:
    # abi.md 14.21
    laptop, box = machines["laptop"], machines["box"]
    send(laptop, "mine+laptop", "one")
    before = same("mine+laptop", laptop, box)
    laptop.ctx.umount()
    folder = laptop.ctx.state / "sessions/home/0/model/debug/echo.d/session/mine+laptop"
    shutil.rmtree(folder)
    laptop.ctx.mount()
    until(lambda: send(laptop, "mine+laptop", "two", check=False) == "")
    found = until(
        lambda: whole(laptop, "mine+laptop"), lambda seen: seen.startswith(before) and b"two" in seen
    )
    assert same("mine+laptop", laptop, box).startswith(found)


def before_the_boot(machine: Machine, session: str) -> Path:
    """Make the log look older than the machine's last start, so its end may be lost; returns its path."""
    log = machine.ctx.state / f"sessions/home/0/model/debug/echo.d/session/{session}/events.jsonl"
    os.utime(log, (1, 1))
    return log


def test_a_copy_goes_on_after_its_machine_was_started_anew(machines: dict[str, Machine]) -> None:
    # abi.md 14.21
    laptop, box = machines["laptop"], machines["box"]
    send(laptop, "on+laptop", "one")
    before = same("on+laptop", laptop, box)
    box.ctx.umount()
    before_the_boot(box, "on+laptop")
    box.ctx.mount()
    until(lambda: send(laptop, "on+laptop", "two", check=False) == "")
    found = until(lambda: whole(box, "on+laptop"), lambda seen: b"two" in seen)
    assert found.startswith(before)
    # A server that is ending may have taken the last message, and the next one is not there yet.
    until(lambda: send(laptop, "on+laptop", "three", check=False) == "")
    assert b"three" in same("on+laptop", laptop, box)


def test_the_lost_end_of_a_log_comes_back_after_its_machine_was_started_anew(
    machines: dict[str, Machine],
) -> None:
    # abi.md 14.21: a power failure took it
    laptop, box = machines["laptop"], machines["box"]
    for said in ("one", "two"):
        send(laptop, "end+laptop", said)
    before = same("end+laptop", laptop, box)
    laptop.ctx.umount()
    log = laptop.ctx.state / "sessions/home/0/model/debug/echo.d/session/end+laptop/events.jsonl"
    log.write_bytes(before[: before.rindex(b'{"type":"start"')])
    before_the_boot(laptop, "end+laptop")
    laptop.ctx.mount()
    until(lambda: whole(laptop, "end+laptop"), lambda seen: seen.startswith(before))
    until(lambda: send(laptop, "end+laptop", "three", check=False) == "")
    assert b"three" in same("end+laptop", laptop, box)


def test_without_the_engine_it_is_read_and_takes_nothing(machines: dict[str, Machine]) -> None:
    # abi.md 14.16
    laptop, box = machines["laptop"], machines["box"]
    send(laptop, "away+laptop", "one")
    before = same("away+laptop", laptop, box)
    box.ctx.umount()
    refused = until(
        lambda: send(laptop, "away+laptop", "two", check=False), lambda seen: "can only be read" in seen
    )
    assert "Traceback" not in refused
    assert whole(laptop, "away+laptop").startswith(before)
    send(laptop, "default", "what is local goes on")
    box.ctx.mount()
    until(lambda: send(laptop, "away+laptop", "three", check=False) == "")
    same("away+laptop", laptop, box)


def test_what_was_told_as_done_survives_all_kills(machines: dict[str, Machine]) -> None:
    # abi.md 14.20
    rng = random.Random(SEED)
    owner, other, third = (machines[name] for name in ("laptop", "third", "box"))
    session, told = "kills+laptop", list[str]()
    for number in range(ROUNDS):
        for part in range(rng.randint(1, 4)):
            id_ = f"m{number}.{part}"
            steps: list[Frame] = [{"burst": rng.choice((1, 50, 400)), "size": 20}, {"delta": id_}]
            assert play(owner, session, *steps, id=id_)["status"] == "ok", SEED
            told.append(id_)
        with talk(owner.ctx, SCRIPT) as here:
            here.play({"burst": 100_000, "size": 100}, {"sleep": 3600}, session=session)
            with contextlib.suppress(Closed, ConnectionError):
                for _ in range(rng.randint(1, 500)):
                    here.line()
            lose(owner)
        taken(other, session)
        back(owner)
        owner, other = other, owner
    found = events(same(session, owner, other, third, path=SCRIPT))
    ids = [int(one["id"]) for one in found]
    assert ids == sorted(set(ids)), SEED
    starts = {one["run"]: one.get("request") for one in found if one["type"] == "start"}
    done = [starts[one["run"]] for one in found if one["type"] == "done" and one["status"] == "ok"]
    assert done == told, SEED
    said = [one["content"][0]["text"] for one in found if one["type"] == "message" and one["role"] != "user"]
    assert json.dumps(said).count("m") >= len(told)
