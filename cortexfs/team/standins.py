"""The stand-ins for users of this machine, in calls from others: one process for each user (standin.py).

    standin = standins.of(user)
    wanted = standin.ask(path)              asked at once, so that it works while others do
    inode, stream = await standin.connected(wanted)
    standin.prepare_later(wanted)           asked for the next call, which waits for none of it

Rules: a process becomes the user, with that user's groups and home directory, before it gets a call. If its
user has changed, or is gone, it gets no more calls. If it did not answer, another is started once it has
ended, as a home or a mount that does not answer may hold it. Nothing here waits for either, as other users'
calls would wait too. A link that is not root's can only act as its own user.
This file must never know who called, or whether they may.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import trio

from cortexfs.core import wire
from cortexfs.core.errors import Fault, code_of
from cortexfs.linux import syscalls
from cortexfs.peers.prompt import Bell, in_task
from cortexfs.team import standin

_PROGRAM = Path(standin.__file__)
_ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
ANSWER_SECONDS = 5.0
AT_ONCE = 32  # questions in flight, for which a socket has room
SPARES = 4  # connections of one user for future calls
SOON = 0.002  # after a call, while its answer travels
SPARE_SECONDS = wire.GREETING_SECONDS - 1
ACCOUNT_SECONDS = 1.0  # between two checks of an account, as looking one up may take long
DYING_SECONDS = 1.0  # the longest wait for the end of a process that did not answer
ENDED = "the stand-in of a user has ended"


class UserAccount(NamedTuple):
    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


class ConnectionRequest:
    """A requested connection of a stand-in. The code that takes the connection out closes it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.answered = Bell()
        self._answer: tuple[bytes, list[int]] | None = None
        self._since = trio.current_time()
        self._is_unwanted = False

    @property
    def is_answered(self) -> bool:
        return self._answer is not None

    @property
    def is_of_link(self) -> bool:
        """Returns True if the path is a link, which may lead elsewhere later."""
        data = self._answer[0] if self._answer else b""
        return len(data) == standin.ANSWER.size and bool(standin.ANSWER.unpack(data)[2])

    def answer(self, data: bytes, rights: list[int]) -> None:
        self._answer = data, rights
        if self._is_unwanted:
            self.drop()
        self.answered.ring()

    def drop(self) -> None:
        """Drop the connection, as no call will take it."""
        self._is_unwanted = True
        if self._answer:
            _close(self._answer[1])

    @property
    def is_fresh(self) -> bool:
        """Returns True if the mount still waits for a request on it."""
        if trio.current_time() - self._since > SPARE_SECONDS:
            return False
        if self._answer is None:
            return True
        look = select.poll()
        for each in self._answer[1]:
            look.register(each, select.POLLIN | select.POLLRDHUP)
        return bool(self._answer[1]) and not look.poll(0)

    def result(self) -> tuple[int, socket.socket]:
        """Returns the inode of the object, and the connection."""
        data, rights = self._answer or (b"", [])
        if len(data) != standin.ANSWER.size:
            _close(rights)
            raise Fault("EHOSTDOWN", ENDED)
        error, inode, _ = standin.ANSWER.unpack(data)
        if error:
            _close(rights)
            raise Fault(code_of(error), f"{self.path} cannot be run here: {os.strerror(error)}")
        return inode, _stream(rights)


class StandIn:
    """One process, for one user, which answers in the order of the requests."""

    def __init__(self, account: UserAccount, root: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _started(account, root, theirs)
        self._account = account
        self._check_time = trio.current_time()
        ours.setblocking(False)
        self._socket = ours
        self._requests: deque[ConnectionRequest] = deque()
        self._waiting: deque[ConnectionRequest] = deque()  # requests to be sent when one of these is answered
        self._spares: dict[str, ConnectionRequest] = {}  # by path, the oldest first
        self._used: dict[str, None] = {}  # paths, for which spares will be made
        self._some = Bell()

    @property
    def is_its_user(self) -> bool:
        """Returns True if it runs, and its user was unchanged a moment ago."""
        now = trio.current_time()
        if self._process.poll() is not None or self._socket.fileno() < 0:
            return False
        if now - self._check_time <= ACCOUNT_SECONDS:
            return True
        self._check_time = now
        with contextlib.suppress(Fault):
            return _account(self._account.name) == self._account
        return False

    @property
    def is_dying(self) -> bool:
        """Returns True if it was killed and has not ended, for example as it waits for a file system."""
        return self._socket.fileno() < 0 and self._process.poll() is None

    def ask(self, path: str) -> ConnectionRequest:
        """Ask for a connection, which `connected` waits for."""
        spare = self._spares.pop(path, None)
        if spare is not None:
            if spare.is_fresh:
                return spare
            spare.drop()
        return self._ask(path)

    def prepare_later(self, request: ConnectionRequest) -> None:
        """Ask for the connection of an object's next call ahead of time, once this answer is out. Not for a
        link, which may lead elsewhere by then."""
        if not request.is_of_link:
            self._used[request.path] = None
            self._some.ring()

    async def run(self) -> None:
        """Receive its answers, until it has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._prepare_all)
            await self._hear()
            nursery.cancel_scope.cancel()

    async def _prepare_all(self) -> None:
        while True:
            if not self._used:
                await self._some.rung()
            await trio.sleep(SOON)
            for path in self._used:
                self._prepare(path)
            self._used.clear()

    def _prepare(self, path: str) -> None:
        if path in self._spares:
            return
        if len(self._spares) == SPARES:
            self._spares.pop(next(iter(self._spares))).drop()
        with contextlib.suppress(Fault):  # the next call meets the error as well
            self._spares[path] = self._ask(path)

    def _ask(self, path: str) -> ConnectionRequest:
        request = ConnectionRequest(path)
        self._waiting.append(request)
        self._send()
        return request

    def _send(self) -> None:
        while self._waiting and len(self._requests) < AT_ONCE:
            try:
                self._socket.send(self._waiting[0].path.encode())
            except OSError as problem:  # ended, as answers must match the order of questions
                self.end()
                raise Fault("EHOSTDOWN", f"{ENDED}: {problem.strerror}") from None
            self._requests.append(self._waiting.popleft())

    async def connected(self, request: ConnectionRequest) -> tuple[int, socket.socket]:
        """Returns the inode of an object, and a connection of this user to the mount."""
        if not request.is_answered:
            await request.answered.rings_soon()
        if not request.is_answered:
            await in_task()
            with trio.move_on_after(ANSWER_SECONDS):
                while not request.is_answered:
                    await request.answered.rung()
        if request.is_answered:
            return request.result()
        self.end()  # a late answer would be taken for that of the next question
        await self._await_end()
        raise Fault("ETIMEDOUT", "the mount of that machine, or the home of its user, does not answer")

    async def _hear(self) -> None:
        try:
            while self._socket.fileno() >= 0:
                await trio.lowlevel.wait_readable(self._socket)
                data, rights, _ = syscalls.receive(self._socket, standin.ANSWER.size, 1)
                if not self._requests or not data:  # it is no longer our program, or has ended
                    _close(rights)
                    break
                self._requests.popleft().answer(data, list(rights))
                self._send()
        except (OSError, Fault, trio.ClosedResourceError):
            pass
        finally:
            self._process.kill()
            for each in (*self._requests, *self._waiting):
                each.answer(b"", [])

    def end(self) -> None:
        """End it; may be repeated. The process is reaped later, by a check or with the next one."""
        for spare in self._spares.values():
            spare.drop()
        self._spares.clear()
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        self._process.kill()

    async def _await_end(self) -> None:
        if not self.is_dying:
            return
        process = os.pidfd_open(self._process.pid)
        try:
            with trio.move_on_after(DYING_SECONDS):
                await trio.lowlevel.wait_readable(process)
        finally:
            os.close(process)

    def reap(self) -> None:
        """Wait until it has ended, if it can."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DYING_SECONDS)


class StandIns:
    """All stand-ins, by the user's name."""

    def __init__(self, root: str, nursery: trio.Nursery) -> None:
        self._root = root
        self._nursery = nursery
        self._by_name: dict[str, StandIn] = {}
        self._ended: list[StandIn] = []  # stand-ins whose processes may still run

    def of(self, name: str) -> StandIn:
        """Returns the user's stand-in, and starts one if there is none."""
        stand_in = self._by_name.get(name)
        if stand_in is not None and not stand_in.is_its_user:
            if stand_in.is_dying:
                raise Fault("ETIMEDOUT", f"the home of {name} there, or the mount, does not answer")
            stand_in.end()
            self._ended = [each for each in (*self._ended, self._by_name.pop(name)) if each.is_dying]
            stand_in = None
        if stand_in is None:
            stand_in = self._by_name[name] = StandIn(_account(name), self._root)
            self._nursery.start_soon(stand_in.run)
        return stand_in

    def end(self) -> None:
        every = [*self._by_name.values(), *self._ended]
        for each in every:
            each.end()
        for each in every:
            each.reap()
        self._by_name.clear()


def _close(rights: Iterable[int]) -> None:
    for each in rights:
        os.close(each)


def _stream(rights: list[int]) -> socket.socket:
    """Returns the socket that a stand-in has sent."""
    try:
        stream = socket.socket(fileno=rights[0])
    except (IndexError, OSError):
        _close(rights)
        raise Fault("EHOSTDOWN", "the stand-in of a user has sent no socket") from None
    stream.setblocking(False)
    return stream


def _account(name: str) -> UserAccount:
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise Fault("EACCES", f"that machine has no user {name}, as its team.map names") from None
    if os.geteuid() not in (0, user.pw_uid):
        raise Fault("EACCES", "the daemon of that machine serves only the user that started it")
    groups = tuple(os.getgrouplist(user.pw_name, user.pw_gid))
    return UserAccount(name, user.pw_uid, user.pw_gid, groups, user.pw_dir)


def _started(account: UserAccount, root: str, theirs: socket.socket) -> subprocess.Popen[bytes]:
    becomes = [] if os.geteuid() else [account.uid, account.gid, *account.groups]
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM), root, account.home, *map(str, becomes)],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env={**_ENVIRON, "HOME": account.home, "USER": account.name},
            cwd="/",
        )
    except OSError as problem:
        raise Fault("EHOSTDOWN", f"no process of {account.name} can be started there: {problem}") from None
