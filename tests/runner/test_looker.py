"""The looker by itself: its reports about processes, and the powers that it keeps (docs/security.md, "A
daemon that was taken over")."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from cortexfs.linux import capabilities, syscalls
from tests.runner.conftest import LOOKER, PLAIN, ROOT_ONLY, SANITIZED, build
from tests.waiting import PATIENCE

QUESTION, ANSWER = struct.Struct("=II"), struct.Struct("=IIQQ7Q")


@pytest.fixture(scope="module", params=["plain", "sanitized"])
def program(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("looker")
    folder.chmod(0o755)
    if request.param == "sanitized":
        return build(folder / "sanitized", SANITIZED, sources=LOOKER)
    return build(folder / "plain", PLAIN, "musl-gcc" if shutil.which("musl-gcc") else "cc", LOOKER)


class Seen(NamedTuple):
    number: int
    error: int
    root: tuple[int, int]
    namespaces: tuple[int, ...]
    cwd: str


class Looker:
    def __init__(self, program: Path, *prefix: str) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(PATIENCE)
        with theirs:
            self.process = subprocess.Popen(
                [*prefix, str(program)], stdin=theirs.fileno(), stderr=subprocess.PIPE
            )

    def ask(self, pid: int, number: int = 7) -> None:
        self.sock.send(QUESTION.pack(number, pid))

    def answer(self) -> Seen:
        data, rights, _ = syscalls.receive(self.sock, 4096, 1)
        number, error, mount, inode, *namespaces = ANSWER.unpack(data)
        cwd = os.readlink(f"/proc/self/fd/{rights[0]}") if rights else ""
        for fd in rights:
            os.close(fd)
        return Seen(number, error, (mount, inode), tuple(namespaces), cwd)

    def look(self, pid: int) -> Seen:
        self.ask(pid)
        return self.answer()

    def end(self) -> tuple[int, bytes]:
        self.sock.close()
        said = self.process.communicate(timeout=PATIENCE)[1]
        return self.process.returncode, said


@pytest.fixture
def looker(program: Path) -> Iterator[Looker]:
    made = Looker(program)
    yield made
    assert made.end() == (0, b"")


@contextmanager
def process(*words: str, cwd: str = "/") -> Iterator[int]:
    """Yields the pid of a process that runs these words, once it has answered."""
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd) as begun:
        assert begun.stdin
        assert begun.stdout
        begun.stdin.write(b"\n")
        begun.stdin.flush()
        assert begun.stdout.readline() == b"\n"
        yield begun.pid
        begun.stdin.close()


def test_it_says_where_a_process_is(looker: Looker) -> None:
    names = [os.stat(f"/proc/self/ns/{name}").st_ino for name in syscalls.NAMESPACES]
    said = looker.look(os.getpid())
    assert said == (7, 0, syscalls.mount_and_inode(b"/"), tuple(names), os.getcwd())


def test_a_process_may_be_elsewhere(looker: Looker, tmp_path: Path) -> None:
    here = looker.look(os.getpid())
    with process("cat", cwd=str(tmp_path)) as pid:
        assert looker.look(pid) == here._replace(cwd=str(tmp_path))


@ROOT_ONLY
def test_namespaces_and_root_are_the_processes(looker: Looker) -> None:
    here = looker.look(os.getpid())
    with process("unshare", "-n", "cat") as pid:
        there = looker.look(pid)
        differ = [a != b for a, b in zip(here.namespaces, there.namespaces, strict=True)]
        assert differ == [name == "net" for name in syscalls.NAMESPACES]
        assert there.root == here.root
    with process("unshare", "-m", "cat") as pid:
        assert looker.look(pid).root != here.root


@pytest.mark.parametrize("pid", [0, 2**22 + 1, 2**32 - 1])
def test_there_is_no_such_process(looker: Looker, pid: int) -> None:
    said = looker.look(pid)
    assert (said.number, said.error, said.cwd) == (7, errno.ENOENT, "")


def test_a_process_that_is_only_a_name_still_is_nowhere(looker: Looker) -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert looker.look(ended.pid).error in (errno.ENOENT, errno.ESRCH, errno.EACCES)
    ended.wait()


def test_each_question_has_its_answer(looker: Looker) -> None:
    for number in range(100):
        looker.ask(os.getpid(), number)
    assert [looker.answer().number for _ in range(100)] == [*range(100)]


@pytest.mark.parametrize("said", [b"x", b"x" * 7, b"x" * 4096])
def test_what_is_no_question_ends_it_or_is_cut(program: Path, said: bytes) -> None:
    looker = Looker(program)
    looker.sock.send(said)
    if len(said) < QUESTION.size:
        assert looker.process.wait(PATIENCE) == 1
        looker.end()
    else:
        assert looker.answer().error == errno.ENOENT
        assert looker.end() == (0, b"")


@ROOT_ONLY
def test_it_keeps_one_power(looker: Looker) -> None:
    looker.look(os.getpid())
    status = Path(f"/proc/{looker.process.pid}/status").read_text()
    kept = capabilities.mask(capabilities.SYS_PTRACE)
    for name in ("CapPrm", "CapEff"):
        assert int(re.search(rf"^{name}:\t(\w+)$", status, re.MULTILINE)[1], 16) == kept  # type: ignore[index]
    assert "\nCapInh:\t0000000000000000\n" in status
    assert "\nNoNewPrivs:\t1\n" in status


@ROOT_ONLY
def test_a_users_sees_his_own_processes_alone(program: Path) -> None:
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    looker = Looker(program, *user)
    assert looker.look(os.getpid()).error == errno.EACCES
    with process(*user, "cat") as pid:
        said = looker.look(pid)
        assert (said.error, said.cwd) == (0, "/")
    assert looker.end() == (0, b"")
