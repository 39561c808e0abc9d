"""Sessions and their clients after the daemon was killed or stopped, or has lost its disk (abi.md 5)."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted, wait_gone
from tests.mounted.talking import (
    ECHO,
    SCRIPT,
    Closed,
    Frame,
    Talk,
    history,
    ids,
    one_run,
    said,
    talk,
    text,
    types,
)
from tests.shell.session_stores import remount, small_disk
from tests.waiting import until

HANG = json.dumps([{"delta": "begun"}, {"hang": True}])
NUMBERS = itertools.count()


def log_of(ctx: Ctx, session: str, name: str = "echo") -> Path:
    return ctx.state / f"sessions/home/0/model/debug/{name}.d/session/{session}/events.jsonl"


def kill(ctx: Ctx) -> None:
    """Kill the daemon with SIGKILL, and start the next one."""
    pid = ctx.pid
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)
    ctx.mount()


@pytest.fixture(scope="module")
def hardy(python: Path) -> Iterator[Ctx]:
    """A mount whose daemon many tests kill and stop; each test has a session of its own."""
    with mounted(python) as mount:
        yield mount


@pytest.fixture
def session() -> str:
    return f"s{next(NUMBERS)}"


# Kills.


def test_a_run_that_ended_before_the_restart_cannot_be_cancelled(hardy: Ctx) -> None:
    # abi.md 5.27
    run = one_run(said(hardy, "x"))
    hardy.umount()
    hardy.mount()
    for uid, code in ((None, "EALREADY"), (NOBODY, "ENOENT")):  # another user's runs are unknown
        with talk(hardy, uid=uid) as client:
            client.ask("cancel", id=run)
            assert client.error()["code"] == code


def test_what_was_done_is_there_after_a_kill(hardy: Ctx) -> None:
    # abi.md 5.28
    wholes = [said(hardy, f"number {number}", session=f"s{number}", id="m") for number in range(5)]
    kill(hardy)
    for number, whole in enumerate(wholes):
        assert history(hardy, f"s{number}") == whole
        assert said(hardy, f"number {number}", session=f"s{number}", id="m") == whole
    more = said(hardy, "and on", session="s0")
    assert ids(more) == list(range(ids(wholes[0])[-1] + 1, ids(wholes[0])[-1] + 1 + len(more)))
    # "run ids are unique for ever"
    assert one_run(more) not in {one_run(whole) for whole in wholes}


def test_a_run_that_was_active_at_a_kill(hardy: Ctx, session: str) -> None:
    # abi.md 5.30
    with talk(hardy, SCRIPT) as client:
        client.send(HANG, session=session, id="m")
        begun = client.until("delta")
        client.send("[]", session=session, id="waits")
        kill(hardy)
        assert types(client.rest()) == []
    whole = history(hardy, session, SCRIPT)
    assert whole[: len(begun)] == begun
    one_run(whole)
    assert types(whole[len(begun) :]) == ["error", "done"]
    assert (whole[-2]["code"], whole[-2]["request"]) == ("EIO", "m")
    assert (whole[-1]["status"], whole[-1]["code"]) == ("error", "EIO")
    # docs/protocol.md: "A message that waited then was never begun: send it again."
    assert one_run(said(hardy, "[]", SCRIPT, session=session, id="waits")) != one_run(whole)
    assert said(hardy, HANG, SCRIPT, session=session, id="m") == whole


def test_a_crash_is_repaired_before_anybody_asks(hardy: Ctx, session: str) -> None:
    # abi.md 5.30: the files tell of it, whether or not somebody resumes
    with talk(hardy, SCRIPT) as client:
        client.send(HANG, session=session)
        client.until("delta")
    kill(hardy)
    path = log_of(hardy, session, "script")
    until(lambda: path.read_text().splitlines()[-1], lambda last: '"done"' in last)


@pytest.mark.parametrize("torn", [b'{"type":"delta","id":"9', b"\0" * 4096, b"{}", b'{"type":"done"xx'])
def test_a_torn_last_line(hardy: Ctx, session: str, torn: bytes) -> None:
    # abi.md 5.29
    with talk(hardy, SCRIPT) as client:
        client.send(HANG, session=session, id="m")
        begun = client.until("delta")
        pid = hardy.pid
        os.kill(pid, signal.SIGKILL)
        assert wait_gone(pid)
    path = log_of(hardy, session, "script")
    with path.open("ab") as file:
        file.write(torn)
    hardy.mount()
    whole = history(hardy, session, SCRIPT)
    assert whole[: len(begun)] == begun
    assert types(whole[len(begun) :]) == ["error", "done"]
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == whole
    told = [line for line in (hardy.state / "daemon.log").read_text().splitlines() if "cut off" in line]
    assert sum(f"debug/script.d/session/{session}:" in line for line in told) == 1, told
    assert text(said(hardy, '[{"delta":"on"}]', SCRIPT, session=session)) == "on"


def test_killed_again_and_again_in_a_flood(hardy: Ctx, session: str) -> None:
    # abi.md 5.28, 5.18
    seen: list[Frame] = []
    for turn in range(5):
        with talk(hardy, SCRIPT) as client:
            client.ask("resume", session=session, **({"after": str(ids(seen)[-1])} if seen else {}))
            for number in range(4):
                steps = [{"burst": 500 * (number + turn), "size": 50}] if number + turn else []
                client.send(json.dumps(steps), session=session, id=f"{turn}.{number}")
            with contextlib.suppress(Closed, ConnectionResetError):
                for _ in range(300 * turn + 50):
                    seen.append(client.frame())
            os.kill(hardy.pid, signal.SIGKILL)
            seen += client.rest(torn=True)
        hardy.mount()
    whole = history(hardy, session, SCRIPT)
    assert ids(whole) == sorted(set(ids(whole)))
    there = {frame["id"]: frame for frame in whole}
    assert all(there[frame["id"]] == frame for frame in seen), "something that was seen is not there"
    assert len(ids(seen)) == len(set(ids(seen)))
    for run in {frame["run"] for frame in whole}:
        one_run([frame for frame in whole if frame["run"] == run])


# Stops.


def test_umount_with_a_run_that_goes_on(hardy: Ctx, session: str) -> None:
    # abi.md 8.10
    with talk(hardy, SCRIPT) as client:
        client.send(HANG, session=session, id="m")
        client.until("delta")
        client.send("[]", session=session, id="waits")
        assert client.is_alive()
        hardy.ctx("umount", str(hardy.root))
        rest = client.rest()
    assert not os.path.ismount(hardy.root)
    done = [frame for frame in rest if frame["type"] == "done"]
    assert [frame["code"] for frame in done] == ["EHOSTDOWN"] * len(done)
    assert done, "the client was not told"
    whole = [json.loads(line) for line in log_of(hardy, session, "script").read_bytes().splitlines()]
    assert {frame["id"] for frame in rest} <= {frame["id"] for frame in whole}
    assert (whole[-1]["type"], whole[-1]["code"]) == ("done", "EHOSTDOWN")
    hardy.mount()
    assert history(hardy, session, SCRIPT) == whole
    assert "waits" not in {frame.get("request") for frame in whole}, "a message that waited was begun"
    with talk(hardy, SCRIPT) as client:
        client.send("[]", session=session, id="waits")
        assert client.until("done")[-1]["status"] == "ok"


def is_refused(path: Path) -> bool:
    try:
        with contextlib.suppress(BlockingIOError):  # the queue of the socket is full
            Talk(path).close()
    except ConnectionRefusedError:
        return True
    return False


def test_connect_is_refused_while_the_daemon_stops(fresh: Ctx) -> None:
    # abi.md 5.6
    path = fresh.root / ECHO
    with talk(fresh, SCRIPT) as client:
        client.send(HANG, session="s")
        client.until("delta")  # the daemon then waits its grace period for this run
        os.kill(fresh.pid, signal.SIGTERM)
        until(lambda: is_refused(path))
        assert client.until("done")[-1]["code"] == "EHOSTDOWN"


def test_nothing_is_bound_after_umount(hardy: Ctx) -> None:
    # design.md: "A bound socket pins the mount"
    for _ in range(2):
        with talk(hardy) as client:
            assert client.is_alive()
            hardy.ctx("umount", str(hardy.root))
            assert client.rest() == []
        assert not os.path.ismount(hardy.root)
        hardy.mount()


# Loss of the disk.


@pytest.fixture
def small(python: Path, tmp_path: Path) -> Iterator[Ctx]:
    """A mount whose state is on a file system of 4 MiB."""
    with small_disk(tmp_path / "disk", 4) as disk, mounted(python, state=disk / "state") as ctx:
        yield ctx


def fill(ctx: Ctx) -> Path:
    path = ctx.state.parent / "ballast"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


def refused(frames: list[Frame], code: str, mend: str) -> None:
    """abi.md 5.13: error, then exactly one done; the error says what to do."""
    assert types(frames).count("done") == 1
    assert types(frames)[-2:] == ["error", "done"], frames
    assert frames[-2]["code"] == code
    assert mend in frames[-2]["message"]
    assert (frames[-1]["status"], frames[-1]["code"]) == ("error", code)


def test_a_full_disk(small: Ctx) -> None:
    # abi.md 5.13: nothing half
    before = said(small, "before", session="s", id="a")
    ballast = fill(small)
    big = "word " * 4000
    with talk(small) as follower, talk(small) as client:
        follower.ask("resume", session="s")
        assert follower.until("done") == before
        for _ in range(3):
            client.send(big, session="s", id="b")
            refused(client.until("done"), "ENOSPC", "make room")
        assert history(small, "s")[: len(before)] == before
        assert client.is_alive()
        ballast.unlink()
        client.send(big, session="s", id="b")
        after = client.until("done")
        one_run(after)
        assert after[-1]["status"] == "ok"
        assert text(after).strip() == big.strip()
        seen = follower.until("done", run=after[-1]["run"])
    whole = history(small, "s")
    assert ids(whole) == sorted(set(ids(whole)))
    assert whole[: len(before)] == before
    assert whole[-len(after) :] == after
    assert before + seen == whole
    assert said(small, big, session="s", id="b") == after
    data = log_of(small, "s").read_bytes()
    assert data.endswith(b"\n")
    assert len(data.splitlines()) == len(whole)


def test_a_disk_that_fills_in_the_midst_of_an_answer(small: Ctx) -> None:
    # abi.md 5.13; and the daemon goes on
    with talk(small, SCRIPT) as client:
        client.send('[{"burst":100000,"size":200}]', session="s", id="m")
        refused(client.until("done"), "ENOSPC", "make room")
        client.ask("cancel", id="m")
        client.error()
        assert client.is_alive()
    # abi.md 5.33: so room is made
    folder = small.root / "home/0/model/debug/script.d/session/s"
    assert not small.run(["rm", "-r", str(folder)]).returncode
    assert said(small, "room again", session="t")[-1]["status"] == "ok"


def test_a_full_disk_is_told_at_once(small: Ctx) -> None:
    # abi.md 5.28: a run whose words cannot be kept fails; it does not wait for its model to say more
    said(small, "[]", SCRIPT, session="s")
    ballast = fill(small)
    with talk(small, SCRIPT) as client:
        client.send('[{"hang":true}]' + " " * 5000, session="s")
        refused(client.until("done"), "ENOSPC", "make room")
        ballast.unlink()
        client.send('[{"delta":"room"}]', session="s")
        assert text(client.until("done", status="ok")) == "room"


def test_a_new_session_on_a_full_disk(small: Ctx) -> None:
    said(small, "x", session="there")
    ballast = fill(small)
    with talk(small) as client:
        client.send("x" * 5000, session="new", id="m")
        refused(client.until("done"), "ENOSPC", "make room")
        ballast.unlink()
        client.send("x" * 5000, session="new", id="m")
        assert client.until("done", status="ok")
    one_run(history(small, "new"))


def test_a_disk_that_becomes_read_only(small: Ctx) -> None:
    # Sessions can still be read where they cannot be written; EROFS tells the reason and the remedy.
    before = said(small, "before", session="s", id="a")
    with read_only(small.state):
        assert history(small, "s") == before
        assert said(small, "before", session="s", id="a") == before
        with talk(small) as client:
            client.send("x", session="new", id="m")
            refused(client.until("done"), "EROFS", "make the state directory writable")
            client.send("in memory", scope="temp")
            assert text(client.until("done", status="ok")) == "in memory"
    after = said(small, "x", session="new", id="m")
    assert after[-1]["status"] == "ok"
    assert history(small, "new") == after


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Files opened in the folder from now on cannot be written. (The file system itself cannot become
    read-only while the daemon has its files open for writing. Nor can a bind mount that is in use, so it
    becomes read-only at an unused place, and is then bound on the folder.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    bind, read_only_bind, detach = 4096, 4096 | 32 | 1, 2  # MS_BIND, MS_REMOUNT, MS_RDONLY, MNT_DETACH
    aside = folder.parent / "aside"
    aside.mkdir()
    assert not libc.mount(bytes(folder), bytes(aside), None, bind, None)
    try:
        assert not libc.mount(None, bytes(aside), None, read_only_bind, None)
        assert not libc.mount(bytes(aside), bytes(folder), None, bind, None)
    finally:
        assert not libc.umount2(bytes(aside), detach)
        aside.rmdir()
    try:
        yield
    finally:
        assert not libc.umount2(bytes(folder), detach)  # readers may have files open there


def test_a_start_on_a_read_only_disk(small: Ctx) -> None:
    # Errors are sentences with the cause and the remedy.
    said(small, "before", session="s")
    small.umount()
    remount(small.state.parent, writable=False)
    try:
        done = small.ctx("mount", str(small.root), check=False)
        assert done.returncode
        assert "Traceback" not in done.stderr
        assert "Read-only file system" in done.stderr
        assert str(small.state) in done.stderr
        assert len(done.stderr.splitlines()) <= 2
    finally:
        remount(small.state.parent, writable=True)
    small.mount()
    assert text(history(small, "s")) == "before"
