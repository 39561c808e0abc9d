"""A user with directories of their own, confined and free hosts of that user, and attempts in these hosts."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cortexfs.core import hostcalls
from cortexfs.linux import seccomp, syscalls
from cortexfs.linux.call_numbers import NUMBERS
from tests.shell.forks import NOBODY, Forks, Host, public_directory

ONLY_HERE = [
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users"),
    pytest.mark.skipif(os.uname().machine not in seccomp.MACHINES, reason="no filter for this machine"),
]
SYSTEM = (("/usr", "rx"), ("/bin", "rx"), ("/etc", "r"), ("/proc", "r"))
SHOWN = {"shown": "rwx", "read": "r", "plain": "rw", "hidden": None}

# The version of Landlock that first refuses such an attempt.
SINCE_ABI = {"truncate": 3, "signal": 6, "abstract": 6}

# A confined host has read-only mounts (EROFS); where it can have none, Landlock refuses (EACCES).
CLOSED = ("EACCES", "EROFS")

# Makes an attempt; the answer is "done" or the name of the errno.
TRY = """
import ctypes, errno, fcntl, resource, signal, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(each) for each in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
answer = "done"
try:
{source}
except OSError as error:
    answer = errno.errorcode[error.errno]
"""


class Scene:
    """Directories `shown`, `read`, `plain` and `hidden` of one user. Each has `file`, `link`, `program`,
    `socket` and `folder`. `outsider` is a process of the same user that is not confined."""

    def __init__(self, forks: Forks, uid: int, groups: tuple[int, ...], path: Path) -> None:
        self.forks = forks
        self.uid = uid
        self.groups = groups
        self.path = path
        self._hosts: list[Host] = []
        self._listeners: list[socket.socket] = []
        for name in SHOWN:
            (path / name / "folder").mkdir(parents=True)
            (path / name / "file").write_text(name)
            shutil.copy("/bin/true", path / name / "program")
            (path / name / "link").symlink_to("file")
            self._bind(path / name / "socket")
        for found in (path, *path.rglob("*")):
            os.chown(found, uid, uid, follow_symlinks=False)
        self.outsider = self.free().pid

    def _bind(self, path: Path) -> None:
        """Listen on a socket in a process that is not confined."""
        self._listeners.append(socket.socket(socket.AF_UNIX))
        self._listeners[-1].bind(str(path))
        self._listeners[-1].listen()

    def identity(self, **changed: Any) -> hostcalls.Identity:
        view = (*SYSTEM, *((str(self.path / name), access) for name, access in SHOWN.items() if access))
        identity = hostcalls.Identity(
            self.uid, self.uid, self.groups, label="agent/tester", view=view, network=False
        )
        return replace(identity, **changed)

    def host(self, **changed: Any) -> Host:
        """Start a confined host."""
        self._hosts.append(self.forks.spawn(self.identity(**changed)))
        return self._hosts[-1]

    def free(self) -> Host:
        return self.host(label="", view=None, network=True)

    def attempt(self, host: Host, source: str) -> str:
        """Execute `source` with its placeholders filled in. Returns "done" or the name of the errno."""
        words = {name: str(self.path / name) for name in SHOWN}
        filled = numbered(source.format(**words, outsider=self.outsider, place=self.path))
        answer: str = host.ask(TRY.format(source="    " + filled.replace("\n", "\n    ")))
        return answer

    def confined(self, source: str, **changed: Any) -> str:
        return self.attempt(self.host(**changed), source)

    def both(self, source: str, **changed: Any) -> tuple[str, str]:
        """Returns how the attempt ends in a confined host, and in a free host of the same user."""
        return self.confined(source, **changed), self.attempt(self.free(), source)

    def end(self) -> None:
        for listener in self._listeners:
            listener.close()
        for host in self._hosts:
            self.forks.kill(host)
            self.forks.exit_of(host)
            host.control.close()
            os.close(host.pidfd)
            host.pidfd = -1


@contextmanager
def staged(forks: Forks, uid: int, groups: tuple[int, ...] = ()) -> Iterator[Scene]:
    with public_directory() as path:
        scene = Scene(forks, uid, groups, path)
        try:
            yield scene
        finally:
            scene.end()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


@pytest.fixture(scope="module")
def mountless() -> Iterator[Forks]:
    """A fork server on a system that gives it no mounts."""
    with Forks(sealed=False) as forks:
        yield forks


@pytest.fixture(params=[NOBODY, 0])
def scene(request: pytest.FixtureRequest, forks: Forks) -> Iterator[Scene]:
    with staged(forks, request.param) as scene:
        yield scene


def numbered(source: str) -> str:
    """Replace names of system calls by their numbers on this machine, as in "call(bpf, 0)"."""
    column = seccomp.MACHINES[os.uname().machine].column
    for name, numbers in NUMBERS.items():
        source = source.replace(f"call({name},", f"call({numbers[column]},")
    return source


def needs(what: str) -> None:
    if any(abi > syscalls.landlock_abi() for word, abi in SINCE_ABI.items() if word in what):
        pytest.skip("this kernel's Landlock cannot refuse this")


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a process of root. Returns 0, the errno that `work` raised, or minus the signal."""
    pid = os.fork()
    if not pid:
        try:
            work()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
        except BaseException:
            os._exit(254)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
