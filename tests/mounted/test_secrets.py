"""Providers fail in every way, and then the tests look for their key in every place where it could be.

issue: "No secret in any frame, log, .d/ file, argv, environment of a child, traceback, session file or core
dump: a test greps them all after a run that failed in every mapped way."
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from tests.mounted.acting import ByModel, acting
from tests.mounted.ctx_mount import Answer, Ctx, mounted, wait_gone
from tests.mounted.talking import said
from tests.shell import provider_server as play
from tests.shell.models.test_providers_failures import CUT, STATUSES
from tests.shell.provider_server import KEY, SSE, Move, chunks

# The halves of the key, as a text that shows the key may be cut short.
NEEDLES = (KEY[: len(KEY) // 2].encode(), KEY[len(KEY) // 2 :].encode())
SCHEMA = {"type": "object", "properties": {"animal": {"type": "string"}}, "required": ["animal"]}
AT_ONCE = 48
CHUNK = 1 << 20


class Case(NamedTuple):
    """A model, the code of its failure, and its input."""

    name: str
    code: str
    given: object = "hi"


def mapped() -> dict[str, tuple[Sequence[Move], str]]:
    """Returns each failure of docs/models.md ("Failure") that a running server can cause."""
    ways: dict[str, tuple[Sequence[Move], str]] = {}
    for number, (moves, code, _, _) in enumerate(STATUSES):
        ways[f"status{number}"] = (moves, code)
    for number, (cut, _) in enumerate(CUT):
        ways[f"cut{number}"] = (cut, "EREMOTEIO")
    ways["filtered"] = ([SSE, *chunks(play.said("a"), play.ended("content_filter"))], "EPERM")
    ways["unfit"] = (play.chat('{"plant": 1}'), "EBADMSG")
    return ways


def slow() -> dict[str, Sequence[Move]]:
    never = trio.Event()
    return {
        "mute": [play.Wait(never)],
        "idle": [SSE, play.Wait(never)],
        "silent": [SSE, *chunks(play.said("a")), play.Wait(never)],
    }


def declare(ctx: Ctx, name: str, url: str, models: Iterable[str], *lines: str) -> None:
    head = [f'base_url = "{url}"', 'format = "openai.chat"', f"models = {json.dumps(list(models))}"]
    folder = ctx.config / "providers"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text("\n".join([*head, "listed = false", *lines]) + "\n")


def keep(ctx: Ctx, name: str, mode: int = 0o600, key: str = KEY) -> None:
    file = ctx.state / "secrets" / name
    file.parent.mkdir(mode=0o700, exist_ok=True)
    file.write_text(key + "\n")
    file.chmod(mode)


def command(script: str) -> str:
    return f"key = {{command = {json.dumps(['sh', '-c', script])}}}"


def prepare(ctx: Ctx, url: str, gone: str) -> list[Case]:
    """Declare providers that get their keys in each way, and providers that fail before any request."""
    ways = mapped()
    vault, seen = ctx.base / "vault", ctx.base / "seen"
    vault.write_text(KEY)
    declare(ctx, "kept", url, ways)
    declare(ctx, "env", url, ways, 'key = {env = "PROVIDER_KEY"}')
    declare(
        ctx, "command", url, ways, command(f"cat /proc/$$/environ /proc/$$/cmdline >>{seen}; cat {vault}")
    )
    declare(ctx, "slow", url, slow(), "first_secs = 0.3", "silence_secs = 0.3")
    declare(ctx, "gone", gone, ["m"])
    declare(ctx, "tls", url.replace("http:", "https:"), ["m"])
    declare(ctx, "open", url, ["m"])
    declare(ctx, "odd", url, ["m"])
    declare(ctx, "unset", url, ["m"], 'key = {env = "NOT_SET"}')
    declare(ctx, "failing", url, ["m"], command(f"cat {vault} >&2; cat {vault}; exit 3"))
    declare(ctx, "two-words", url, ["m"], command(f"echo $(cat {vault}) $(cat {vault})"))
    for name in ("kept", "slow", "gone", "tls"):
        keep(ctx, name)
    keep(ctx, "open", 0o644)
    keep(ctx, "odd", key=f"{KEY} {KEY}")
    cases = [
        Case(f"{provider}/{way}", code, {"input": "hi", "schema": SCHEMA} if way == "unfit" else "hi")
        for provider in ("kept", "env", "command")
        for way, (_, code) in ways.items()
    ]
    cases += [Case(f"slow/{way}", "ETIMEDOUT") for way in slow()]
    cases += [Case("gone/m", "EHOSTDOWN"), Case("tls/m", "EHOSTDOWN"), Case("odd/m", "EINVAL")]
    cases += [Case(f"{name}/m", "EACCES") for name in ("open", "unset", "failing")]
    return [*cases, Case("two-words/m", "EINVAL")]


class Failed(NamedTuple):
    ctx: Ctx
    shown: list[bytes]  # all that callers and clients received


@pytest.fixture(scope="module")
def failed(python: Path) -> Iterator[Failed]:
    """A mount on which each case has failed, by exec and by socket."""
    answers: Mapping[str, Sequence[Move]] = {name: moves for name, (moves, _) in mapped().items()} | slow()
    with mounted(python) as ctx, acting(ByModel(answers)) as provider, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ctx.umount()
        ctx.environ["PROVIDER_KEY"] = KEY
        cases = prepare(ctx, provider.base_url, f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
        ctx.mount()
        ctx.environ.pop("PROVIDER_KEY")  # from now on only the daemon has it
        with ThreadPoolExecutor(AT_ONCE) as pool:
            shown = [*pool.map(lambda asked: asked[0](ctx, asked[1]), product((by_exec, by_socket), cases))]
        yield Failed(ctx, shown)


def by_exec(ctx: Ctx, case: Case) -> bytes:
    words = case.given if isinstance(case.given, str) else json.dumps(case.given)
    answer = Answer(ctx.run([str(ctx.root / "model" / case.name), words], text=False))
    assert (case.name, answer.code) == (case.name, case.code), answer
    return repr(answer).encode()


def by_socket(ctx: Ctx, case: Case) -> bytes:
    given = case.given if isinstance(case.given, str) else {"content": case.given["input"], **case.given}  # type: ignore[index,dict-item]
    frames = said(ctx, given, f"model/{case.name}.sock", session="failing", id="1")
    codes = [frame["code"] for frame in frames if frame["type"] == "error"]
    assert (case.name, codes) == (case.name, [case.code]), frames
    return json.dumps(frames).encode()


def holds(data: bytes) -> bool:
    return any(needle in data for needle in NEEDLES)


def contents(top: Path) -> dict[str, bytes]:
    found = {}
    for folder, _, names in os.walk(top):
        for path in (Path(folder, name) for name in names):
            if stat.S_ISREG(path.lstat().st_mode):
                found[str(path.relative_to(top))] = path.read_bytes()
    return found


def test_what_callers_and_clients_were_told(failed: Failed) -> None:
    assert len(failed.shown) > 190
    assert not [text for text in failed.shown if holds(text)]


def test_what_is_kept_on_disk(failed: Failed) -> None:
    # abi.md 8.2; "log ... traceback, session file"
    state = contents(failed.ctx.state)
    secrets = {name for name in state if name.startswith("secrets/")}
    assert {"daemon.log"} < state.keys() - secrets
    assert sum(name.endswith("events.jsonl") for name in state) > 90
    assert {name for name, data in state.items() if holds(data)} == secrets
    assert not [name for name, data in contents(failed.ctx.config).items() if holds(data)]


def test_what_the_tree_shows(failed: Failed) -> None:
    # abi.md 8.2; ".d/ file ... session file"
    ctx = failed.ctx
    shown = contents(ctx.root)
    assert sum(name.endswith(".d/log") for name in shown) > 90
    assert sum(name.endswith("messages.jsonl") for name in shown) > 90
    assert not [name for name, data in shown.items() if holds(data)]
    for path in ctx.root.glob("model/*/*"):
        for name in os.listxattr(path) if path.is_file() else ():
            assert not holds(os.getxattr(path, name)), path


def test_what_other_processes_have(failed: Failed) -> None:
    # abi.md 8.2; "argv, environment of a child"; and their memory, which is what a core dump of one would be
    ctx = failed.ctx
    inside = ctx.call("shell.exec", "env; tr '\\0' ' ' </proc/$PPID/environ; cat /proc/[0-9]*/cmdline; true")
    assert inside.status == 0, inside
    assert not holds(inside.output.encode())
    seen = (ctx.base / "seen").read_bytes()
    assert b"PATH=" in seen
    assert not holds(seen)
    assert not holds(Path(f"/proc/{ctx.pid}/cmdline").read_bytes())
    children = descendants(ctx.pid)
    assert len(children) >= 2  # the fork server and a host
    for child in children:
        assert not holds(Path(f"/proc/{child}/cmdline").read_bytes())
        assert not holds(Path(f"/proc/{child}/environ").read_bytes())
        assert not any(map(holds, memory(child))), child


def test_what_the_commands_show(failed: Failed) -> None:
    for words in (["provider", "list"], ["provider", "list", "--json"], ["status"], ["ls"], ["doctor"]):
        done = failed.ctx.ctx(*words, check=False)
        assert "PROVIDER_KEY" not in done.stdout
        assert not holds((done.stdout + done.stderr).encode())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to let another process dump core")
def test_a_daemon_that_aborts_leaves_no_core(python: Path) -> None:
    # "core dump"; core(5): a process that is not dumpable leaves none, whatever the limit says
    with mounted(python) as ctx:
        pid = ctx.pid
        where = Path(os.readlink(f"/proc/{pid}/cwd"))
        before = set(where.glob("core*"))
        ctx.run(["prlimit", "--pid", str(pid), "--core=unlimited"], check=True)
        os.kill(pid, signal.SIGABRT)
        assert wait_gone(pid)
        assert set(where.glob("core*")) == before


def descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            found = re.search(r"^PPid:\t(\d+)$", status.read_text(), re.MULTILINE)
        except OSError:
            continue
        if found:
            parents[int(status.parent.name)] = int(found[1])
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family[1:]


def memory(pid: int) -> Iterator[bytes]:
    """Yields the writable memory of a process in pieces that overlap by the length of the key."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in maps:
            place, mode, *_ = line.split()
            first, last = (int(word, 16) for word in place.split("-"))
            if "w" in mode:
                for start in range(first, last, CHUNK):
                    yield from _read(file.fileno(), start, min(start + CHUNK + len(KEY), last))


def _read(file: int, start: int, end: int) -> Iterator[bytes]:
    """Read page by page where one read fails: newer C libraries put guard pages at the ends of stacks."""
    try:
        yield os.pread(file, end - start, start)
    except OSError:
        if end - start <= mmap.PAGESIZE:
            return
        for page in range(start, end, mmap.PAGESIZE):
            yield from _read(file, page, min(page + mmap.PAGESIZE, end))
