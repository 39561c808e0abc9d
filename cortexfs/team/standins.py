"""The users of this machine as whom calls from others are made: one process for each (standin.py).

    standin = standins.of(user)
    wanted = standin.ask(path)              asked at once, so that it works while others do
    inode, stream = await standin.connected(wanted)

Rules: a process is the user before it executes anything, with that user's groups and home directory. A link
that is not root's can be its own user alone.
This file must never know who called, or whether they may.
"""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import trio

from cortexfs.core.errors import Fault, code_of
from cortexfs.linux import syscalls
from cortexfs.team import standin

_PROGRAM = Path(standin.__file__)
_ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
ANSWER_SECONDS = 5.0
AT_ONCE = 32  # questions on their way, for which there is room in a socket
ENDED = "the stand-in of a user has ended"


class ConnectionRequest:
    """A connection that a stand-in was asked for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.answer: tuple[bytes, list[int]] | None = None


class StandIn:
    """One process, for one user, which answers in the order in which it is asked."""

    def __init__(self, user: pwd.struct_passwd, root: str) -> None:
        self._turn = trio.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _started(user, root, theirs)
        ours.setblocking(False)
        self._socket = ours
        self._asked: deque[ConnectionRequest] = deque()
        self._waiting: deque[ConnectionRequest] = deque()  # to be asked, when one of these is answered

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, path: str) -> ConnectionRequest:
        """Ask for a connection, which `connected` waits for."""
        wanted = ConnectionRequest(path)
        self._waiting.append(wanted)
        self._send()
        return wanted

    def _send(self) -> None:
        while self._waiting and len(self._asked) < AT_ONCE:
            self._asked.append(self._waiting.popleft())
            try:
                self._socket.send(self._asked[-1].path.encode())
            except OSError as problem:
                raise Fault("EHOSTDOWN", f"{ENDED}: {problem.strerror}") from None

    async def connected(self, wanted: ConnectionRequest) -> tuple[int, socket.socket]:
        """The inode of an object, and a connection of this user's to the mount."""
        with trio.move_on_after(ANSWER_SECONDS):
            async with self._turn:
                while wanted.answer is None:
                    await self._hear()
            data, rights = wanted.answer
            if len(data) != standin.ANSWER.size:
                raise Fault("EHOSTDOWN", ENDED)
            error, inode = standin.ANSWER.unpack(data)
            if error:
                raise Fault(code_of(error), f"{wanted.path} cannot be run here: {os.strerror(error)}")
            return inode, _stream(rights)
        self.end()  # an answer that comes now would be another's
        raise Fault("ETIMEDOUT", "the mount of that machine does not answer")

    async def _hear(self) -> None:
        """The next answer, whoever waits for it."""
        if not self.is_alive:  # also where another has waited in vain
            raise Fault("EHOSTDOWN", ENDED)
        try:
            await trio.lowlevel.wait_readable(self._socket)
            data, rights, _ = syscalls.receive(self._socket, standin.ANSWER.size, 1)
        except (OSError, trio.ClosedResourceError) as problem:
            raise Fault("EHOSTDOWN", f"{ENDED}: {problem}") from None
        self._asked.popleft().answer = data, list(rights)
        self._send()

    def end(self) -> None:
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        self._process.kill()
        self._process.wait()


class StandIns:
    """All of them, by the user's name."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._by_name: dict[str, StandIn] = {}

    def of(self, name: str) -> StandIn:
        """Returns the user's, which is started where there is none."""
        found = self._by_name.get(name)
        if found is not None and not found.is_alive:
            found.end()
            found = None
        if found is None:
            found = self._by_name[name] = StandIn(_known(name), self._root)
        return found

    def end(self) -> None:
        for each in self._by_name.values():
            each.end()
        self._by_name.clear()


def _stream(rights: list[int]) -> socket.socket:
    """The socket that a stand-in has sent. Its user can make it send anything, or nothing."""
    try:
        stream = socket.socket(fileno=rights[0])
    except (IndexError, OSError):
        for each in rights:
            os.close(each)
        raise Fault("EHOSTDOWN", "the stand-in of a user has sent no socket") from None
    stream.setblocking(False)
    return stream


def _known(name: str) -> pwd.struct_passwd:
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise Fault("EACCES", f"there is no user {name} on that machine; its team.map names one") from None
    if os.geteuid() not in (0, user.pw_uid):
        raise Fault("EACCES", "that machine's daemon is a user's own and works for that user alone")
    return user


def _started(user: pwd.struct_passwd, root: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    home = user.pw_dir if os.path.isdir(user.pw_dir) else "/"
    is_root = os.geteuid() == 0
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), root],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env={**_ENVIRON, "HOME": home, "USER": user.pw_name},
            cwd=home,
            user=user.pw_uid if is_root else None,
            group=user.pw_gid if is_root else None,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid) if is_root else None,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        raise Fault("EHOSTDOWN", f"no process of {user.pw_name}'s can be started there: {problem}") from None
