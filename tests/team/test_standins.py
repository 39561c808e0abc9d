"""A stand-in gets several requests for connections at a time, and each call gets its own connection."""

from __future__ import annotations

import errno
import getpass
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.team import standins as standins_module
from cortexfs.team.standin import ANSWER
from cortexfs.team.standins import AT_ONCE, SPARES, ConnectionRequest, StandIn, StandIns, UserAccount
from tests.mounted.ctx_mount import NOBODY, wait_gone
from tests.waiting import PATIENCE, awaited

MANY = 4 * AT_ONCE


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as found:
        yield found


@pytest.fixture
def root(tmp_path: Path, listener: socket.socket) -> Path:
    """A folder with the names that a stand-in needs in a mount."""
    listener.bind(str(tmp_path / ".run.sock"))
    listener.listen(MANY + 8)
    (tmp_path / "tool").mkdir()
    for number in range(MANY):
        (tmp_path / "tool" / str(number)).touch()
    return tmp_path


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[StandIns]:
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            standins = StandIns(str(root), nursery)
            yield standins
            standins.end()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_each_call_gets_the_inode_of_its_own_object(root: Path) -> None:
    found: dict[int, int] = {}

    async def connect(standin: StandIn, number: int) -> None:
        inode, stream = await standin.connected(wanted[number])
        with stream:
            found[number] = inode

    before = descriptors()
    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        assert standins.of(getpass.getuser()) is standin
        wanted = [standin.ask(f"tool/{number}") for number in range(MANY)]
        async with trio.open_nursery() as nursery:
            for number in reversed(range(MANY)):
                nursery.start_soon(connect, standin, number)
    assert found == {number: (root / "tool" / str(number)).stat().st_ino for number in range(MANY)}
    assert descriptors() == before


async def test_an_object_that_is_not_there_is_a_fault_of_its_own_call(root: Path) -> None:
    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        gone, there = standin.ask("tool/none"), standin.ask("tool/1")
        (await standin.connected(there))[1].close()
        with pytest.raises(Fault, match="tool/none cannot be run here"):
            await standin.connected(gone)


async def test_all_who_wait_for_a_stand_in_that_dies_are_told(root: Path) -> None:
    told: list[str] = []

    async def connect(number: int) -> None:
        with pytest.raises(Fault) as fault:
            await standin.connected(wanted[number])
        told.append(fault.value.code)

    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        standin._process.send_signal(signal.SIGSTOP)
        wanted = [standin.ask("tool/1"), standin.ask("tool/2")]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect, 0)
            nursery.start_soon(connect, 1)
            await trio.testing.wait_all_tasks_blocked()
            standin._process.kill()
        standin._process.wait()
        with pytest.raises(Fault):
            standin.ask("tool/1")
        assert standins.of(getpass.getuser()) is not standin
    assert told == ["EHOSTDOWN", "EHOSTDOWN"]


async def test_a_stand_in_that_does_not_answer_is_ended_and_another_serves(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standins_module, "ANSWER_SECONDS", 0.1)
    async with serving(root) as standins:
        silent = standins.of(getpass.getuser())
        silent._process.send_signal(signal.SIGSTOP)
        with pytest.raises(Fault, match="ETIMEDOUT: the mount of that machine, or the home of its user"):
            await silent.connected(silent.ask("tool/1"))
        monkeypatch.undo()
        other = standins.of(getpass.getuser())
        assert other is not silent
        (await other.connected(other.ask("tool/1")))[1].close()


async def prepared(standin: StandIn, path: str) -> ConnectionRequest:
    """Prepare the connection for the next call, and wait until it is there; returns its request."""
    standin.prepare_later(ConnectionRequest(path))
    with trio.fail_after(PATIENCE):
        while path not in standin._spares:
            await trio.testing.wait_all_tasks_blocked(standins_module.SOON)
        while not standin._spares[path].is_answered:
            await standin._spares[path].answered.rung()
    return standin._spares[path]


async def test_the_next_call_of_an_object_finds_its_connection_there(root: Path) -> None:
    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        spare = await prepared(standin, "tool/1")
        assert standin.ask("tool/2") is not spare
        assert standin.ask("tool/1") is spare
        assert standin.ask("tool/1") is not spare, "it is one call's alone"
        inode, stream = await standin.connected(spare)
        stream.close()
        assert inode == (root / "tool/1").stat().st_ino


async def test_a_connection_that_the_mount_has_closed_serves_no_call(
    root: Path, listener: socket.socket
) -> None:
    before = descriptors()
    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        spare = await prepared(standin, "tool/1")
        listener.accept()[0].close()
        wanted = standin.ask("tool/1")
        assert wanted is not spare
        (await standin.connected(wanted))[1].close()
    assert descriptors() == before


async def test_no_call_gets_a_connection_of_which_the_mount_may_be_tired(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        spare = await prepared(standin, "tool/1")
        monkeypatch.setattr(standins_module, "SPARE_SECONDS", -1)
        wanted = standin.ask("tool/1")
        assert wanted is not spare
        (await standin.connected(wanted))[1].close()


async def test_an_object_that_has_come_since_is_found(root: Path) -> None:
    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        await prepared(standin, "tool/new")
        (root / "tool/new").touch()
        inode, stream = await standin.connected(standin.ask("tool/new"))
        stream.close()
        assert inode == (root / "tool/new").stat().st_ino


async def test_connections_for_later_are_few_and_are_closed(root: Path) -> None:
    before = descriptors()
    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        for number in range(3 * SPARES):
            standin._prepare(f"tool/{number}")  # some are dropped before they are connected
        assert list(standin._spares) == [f"tool/{number}" for number in range(2 * SPARES, 3 * SPARES)]
        await prepared(standin, "tool/0")
        assert len(standin._spares) == SPARES
    assert descriptors() == before


async def test_there_is_no_connection_for_later_where_a_link_may_lead_elsewhere(root: Path) -> None:
    (root / "tool/alias").symlink_to("1")
    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        for path, is_link in (("tool/alias", True), ("tool/1", False)):
            wanted = standin.ask(path)
            inode, stream = await standin.connected(wanted)
            stream.close()
            assert (inode, wanted.is_of_link) == ((root / "tool/1").stat().st_ino, is_link)
            standin.prepare_later(wanted)
        assert list(standin._used) == ["tool/1"]


class FullSocket(NamedTuple):
    """A socket that raises the given errors at first, and then sends."""

    sock: socket.socket
    problems: list[int]

    def send(self, data: bytes) -> int:
        if self.problems:
            raise OSError(self.problems.pop(), "no room")
        return self.sock.send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


async def test_a_question_that_was_not_sent_gets_no_answer_of_another(root: Path) -> None:
    async with serving(root) as standins:
        first = standins.of(getpass.getuser())
        first._socket = cast(socket.socket, FullSocket(first._socket, [errno.ENOBUFS]))
        with pytest.raises(Fault, match=r"EHOSTDOWN: .* has ended: no room"):
            first.ask("tool/1")
        await awaited(lambda: first._process.poll() is not None)
        other = standins.of(getpass.getuser())
        assert other is not first
        inode, stream = await other.connected(other.ask("tool/2"))
        stream.close()
        assert inode == (root / "tool/2").stat().st_ino


async def test_a_home_that_does_not_answer_holds_nothing_up_but_its_own_user(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test makes the process that waits for its home survive all signals."""
    name = getpass.getuser()
    gone: list[int | None] = [None]
    async with serving(root) as standins:
        held = standins.of(name)
        held._process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(standins_module, "ANSWER_SECONDS", 0.1)
        with monkeypatch.context() as unkillable:
            unkillable.setattr(standins_module, "DYING_SECONDS", 0)
            unkillable.setattr(held._process, "kill", lambda: None)
            unkillable.setattr(held._process, "poll", lambda: gone[0])
            with pytest.raises(Fault, match="ETIMEDOUT"):
                await held.connected(held.ask("tool/1"))
            with pytest.raises(Fault, match=f"ETIMEDOUT: the home of {name} there"):
                standins.of(name)
            gone[0] = 0
            assert standins.of(name) is not held
        held._process.kill()
        held._process.wait()


OUTLIVED = """
import signal, socket, subprocess, sys
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
words = [sys.executable, "-I", "-S", *sys.argv[1:]]
process = subprocess.Popen(words, stdin=theirs)
ours.send(b"tool/1")
ours.recv(100)  # it is what it will be
process.send_signal(signal.SIGSTOP)
print(process.pid, flush=True)
signal.pause()
"""


def test_it_ends_with_the_link_also_while_it_is_stopped(root: Path) -> None:
    user = pwd.getpwuid(NOBODY if os.geteuid() == 0 else os.geteuid())
    becomes = [] if os.geteuid() else [str(user.pw_uid), str(user.pw_gid)]
    root.chmod(0o755)
    words = [sys.executable, "-I", "-c", OUTLIVED, str(standins_module._PROGRAM), str(root), "/", *becomes]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as link:
        assert link.stdout
        pid = int(link.stdout.readline())
        link.kill()
    assert wait_gone(pid)


async def test_a_stand_in_that_says_what_nobody_asked_is_ended(root: Path) -> None:
    before = descriptors()
    async with serving(root) as standins:
        standin = standins.of(getpass.getuser())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            theirs.setblocking(False)
            socket.send_fds(ours, [b"?"], [0])
            talking = StandIn.__new__(StandIn)
            talking.__dict__ |= standin.__dict__ | {"_socket": theirs}
            await talking.run()
        assert standin._process.wait() == -signal.SIGKILL
    assert descriptors() == before


TRACE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(16, int(sys.argv[1]), None, None) == -1, "attached"
assert ctypes.get_errno() == 1
try:
    open(f"/proc/{sys.argv[1]}/environ").read()
except PermissionError:
    sys.exit(7)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
async def test_its_user_can_neither_trace_it_nor_look_into_it(root: Path) -> None:
    # standin.py: "the kernel lets this user neither trace it nor take its socket"
    user = pwd.getpwuid(NOBODY)
    async with serving(root) as standins:
        pid = standins.of(user.pw_name)._process.pid
        state = await awaited(
            lambda: dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()),
            lambda seen: set(seen["Uid"].split()) == {str(NOBODY)},
        )
        assert set(state["Gid"].split()) == {str(user.pw_gid)}
        groups = {*map(int, state["Groups"].split())}
        assert groups == {*os.getgrouplist(user.pw_name, user.pw_gid)}
        assert {int(state[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")} == {0}
        words = [sys.executable, "-I", "-c", TRACE, str(pid)]
        done = await trio.run_process(
            words, check=False, user=NOBODY, group=user.pw_gid, extra_groups=[], cwd="/"
        )
        assert done.returncode == 7


@pytest.mark.parametrize("change", [{"uid": 4711}, {"groups": (4711,)}, None])
async def test_a_user_who_has_changed_gets_another_and_who_is_gone_gets_none(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any] | None
) -> None:
    name, account = getpass.getuser(), standins_module._account

    def other(name: str) -> UserAccount:
        if change is None:
            raise Fault("EACCES", "gone")
        return account(name)._replace(**change)

    async with serving(root) as standins:
        old = standins.of(name)
        monkeypatch.setattr(standins_module, "ACCOUNT_SECONDS", -1)
        assert standins.of(name) is old
        monkeypatch.setattr(standins_module, "_account", other)
        if change is None:
            with pytest.raises(Fault, match="gone"):
                standins.of(name)
        else:
            # Stands for a process of a user that this machine does not have.
            monkeypatch.setattr(standins_module, "_started", lambda *_: subprocess.Popen(["sleep", "1000"]))
            assert standins.of(name) is not old
        assert old._process.wait() == -signal.SIGKILL


async def test_no_descriptor_of_an_answer_that_is_none_stays_open() -> None:
    for data in (b"", b"?", ANSWER.pack(errno.EIO, 0, False)):
        before = descriptors()
        wanted = ConnectionRequest("tool/1")
        wanted.answer(data, [os.open(os.devnull, os.O_RDONLY)])
        with pytest.raises(Fault):
            wanted.result()
        assert descriptors() == before
