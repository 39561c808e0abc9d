"""Agents with a full disk, or in a directory whose file system does not answer. Quotes without a source are
from docs/agents.md."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent, call, results, run, say, script, working
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.talking import talk
from tests.shell.session_stores import small_disk
from tests.waiting import until

INIT = 26  # <linux/fuse.h>
REPLY = struct.pack("<IIIIHHIIHH", 7, 31, 0, 0, 12, 12, 4096, 1, 0, 0) + bytes(32)


@pytest.fixture
def small(python: Path, tmp_path: Path) -> Iterator[Ctx]:
    with small_disk(tmp_path / "disk", 8) as disk, mounted(python, [], state=disk / "state") as ctx:
        yield ctx


def fill(disk: Path, left: int) -> Path:
    """Write a file that leaves `left` bytes free on the disk."""
    ballast = disk / "ballast"
    room = os.statvfs(disk)
    ballast.write_bytes(bytes(room.f_bavail * room.f_bsize - left))
    return ballast


def test_an_output_for_which_the_disk_has_no_room(small: Ctx) -> None:
    # "2 MiB of an output are kept ...; where the disk has no room, less", and the run goes on
    (small.work / "long.txt").write_text("".join(f"line {number}\n" for number in range(90_000)))
    with agent(small, "full", "fs.*") as path:
        task = script(call("fs.read", "c1", path="long.txt", limit=100_000), say("went on"))
        with working(small, path, task, session="before") as client:
            (kept,) = results(client.until("done", status="ok"))
        folder = small.root / f"home/0/{path}.d/session"
        assert len((folder / "before/context/output/c1.txt").read_bytes()) > 600_000
        ballast = fill(small.state.parent, 300 << 10)
        with working(small, path, task, session="after") as client:
            (told,) = results(client.until("done", status="ok"))
            assert told["output"] == kept["output"]
            left = [file for file in small.state.rglob("output/*") if "after" in file.parts]
            assert left == []  # no partial file stays
            ballast.unlink()
            client.send(task, session="after")
            client.until("done", status="ok")
            assert os.listdir(folder / "after/context/output") == ["c1.txt"]


@contextlib.contextmanager
def hung(place: Path) -> Iterator[None]:
    """Mount a file system that answers its first request, and then no other."""
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    assert not libc.mount(b"hung", bytes(place), b"fuse", 0, options), os.strerror(ctypes.get_errno())

    def answer() -> None:
        request = os.read(fuse, 1 << 17)
        _, opcode, unique = struct.unpack_from("<IIQ", request)
        assert opcode == INIT
        os.write(fuse, struct.pack("<IiQ", 16 + len(REPLY), 0, unique) + REPLY)

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
    try:
        yield
    finally:
        os.close(fuse)  # ends all requests that wait for an answer
        assert not libc.umount2(bytes(place), 2)  # MNT_DETACH


def test_a_directory_that_never_answers_holds_up_its_own_run_alone(python: Path) -> None:
    # abi.md 5.22: "holds up the calls of its own runs alone"
    task = script(call("fs.list", path="."), say("on"))
    with mounted(python, []) as ctx, agent(ctx, "stuck", "fs.*") as path:
        with contextlib.ExitStack() as stack:
            clients, sent = [], []
            for place, below in ((ctx.base / "itself", ""), (ctx.base / "above", "/folder")):
                stack.enter_context(hung(place))
                (ctx.root / f"{path}.d/cwd").write_text(f"{place}{below}\n")
                clients.append(client := stack.enter_context(talk(ctx, f"{path}.sock")))
                client.send(task, session=place.name)
                client.until("tool_call")
                sent.append(client := stack.enter_context(talk(ctx, f"{path}.sock")))
                client.send(task, session=f"{place.name}-sent", cwd=f"{place}/folder")
            for _ in range(3):  # other runs of the same user and agent work meanwhile
                there = script(call("fs.list", path=str(ctx.work)), say("there"))
                answer = run(ctx, path, there, cwd=ctx.work)
                assert (answer.status, answer.output) == (0, "there")
            for client in clients:
                (told,) = results(client.until("done", status="ok"))
                assert told["is_error"]
            for client in sent:
                assert "does not answer" in client.error()["message"]
        until(lambda: ctx.status["runs"], lambda runs: runs.startswith("0 active"))


def test_a_session_that_is_begun_by_send_works_here(python: Path) -> None:
    # such a session once worked in / and lost the file
    with mounted(python) as ctx, agent(ctx, "sent", "fs.*") as path:
        there = ctx.work / "folder"
        there.mkdir()
        write = script(call("fs.write", "c1", path="made", content="x"), say("done"))
        send = (
            f"{python.parent}/ctx",
            "send",
            path,
            "--session",
            "new",
            "--approve",
            "fs.write",
            "--",
            write,
        )
        ctx.run(send, cwd=there, check=True)
        assert (there / "made").read_text() == "x"
        assert (ctx.root / f"home/{os.getuid()}/{path}.d/session/new/cwd").read_text() == f"{there}\n"
        ctx.run(send, cwd=ctx.work, check=True)  # an existing session keeps its directory
        assert not (ctx.work / "made").exists()
        ctx.run((send[0], "send", "debug/echo", "--session", "new", "hi"), cwd=there, check=True)
        own = ctx.root / f"home/{os.getuid()}/model/debug/echo.d/session/new/cwd"
        assert own.read_text() == f"{there}\n"
