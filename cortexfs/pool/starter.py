"""The daemon's end of its starter: the process that starts others, makes listeners and unmounts for it.

    starter = Starter(begin(root, state))   begun before the daemon opens anything (pool/starter_ends.py)
    child = starter.first()                 its fork server, before the loop runs
    child = starter.start_now(what)         another program, before the loop runs
    child = await starter.start(what)       while `run` reads the answers
    listener = await starter.listener(path, backlog)
    starter.stop()                          which ends all that was started

Rules: the starter gets only the requests of core/starts.py. A child of it is ended by its number.
This file must never know why a process is started.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from contextlib import suppress

import msgspec
import trio

from cortexfs.core import starts
from cortexfs.linux import syscalls
from cortexfs.pool.starter_ends import StarterEnds

STOP_SECONDS = 10.0  # longer than the starter waits for the processes that it has started

_READ = 64 << 10

_pack = msgspec.msgpack.Encoder().encode
_answers: msgspec.msgpack.Decoder[starts.FromStarter] = msgspec.msgpack.Decoder(starts.FromStarter)


class Child:
    """A started process, as the daemon sees it."""

    def __init__(self, number: int, starter: Starter) -> None:
        self.number = number
        self.pid = 0
        self.status: int | None = None
        self.ended = trio.Event()
        self._starter = starter

    def kill(self) -> None:
        if self.status is None:
            self._starter.kill(self.number)


class _Answer:
    """The answer to a request, once it has come."""

    def __init__(self) -> None:
        self.arrival = trio.Event()
        self.done = starts.StartReply(0, error=errno.EPIPE)  # the starter is gone
        self.rights: list[int] = []

    def take_rights(self) -> list[int]:
        """Returns its rights, which belong to the caller from now on."""
        if self.done.error:
            raise OSError(self.done.error, os.strerror(self.done.error))
        rights, self.rights = self.rights, []
        return rights


class Starter:
    def __init__(self, ends: StarterEnds) -> None:
        self._process, self.control, self.looks = ends
        self.binds = trio.Lock()  # one at a time, as the tree recognizes a bound socket by the starter's pid
        self._number = starts.FIRST
        self._first = _Answer()
        self._requests: dict[int, _Answer] = {starts.FIRST: self._first}
        self._children: dict[int, Child] = {starts.FIRST: Child(starts.FIRST, self)}

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self) -> None:
        """Read the starter's messages, until it is gone."""
        self.control.setblocking(False)
        try:
            while True:
                try:
                    if not self._hear():
                        return
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(self.control)
        finally:
            for answer in self._requests.values():
                answer.arrival.set()

    def _hear(self) -> bool:
        try:
            data, rights, _ = syscalls.receive(self.control, starts.MAX_MESSAGE, starts.MAX_RIGHTS)
        except ConnectionError:
            return False
        if not data:
            return False
        message = _answers.decode(data)
        if isinstance(message, starts.ChildExit):
            if child := self._children.pop(message.number, None):
                child.status = message.status
                child.ended.set()
        elif answer := self._requests.pop(message.number, None):
            answer.done, answer.rights = message, rights
            answer.arrival.set()
        else:  # the request was given up
            for fd in rights:
                os.close(fd)
            if message.error:
                self._children.pop(message.number, None)
            self.kill(message.number)
        return True

    # -- requests

    def _ask(self, request: starts.ToStarter) -> _Answer:
        answer = self._requests[request.number] = _Answer()
        try:
            self.control.send(_pack(request))
        except OSError:
            del self._requests[request.number]
            answer.arrival.set()
        return answer

    def _next(self) -> int:
        self._number += 1
        return self._number

    async def _answer(self, request: starts.ToStarter) -> _Answer:
        answer = self._ask(request)
        try:
            await answer.arrival.wait()
        except BaseException:  # a cancellation: the answer is not wanted any more
            self._requests.pop(request.number, None)
            for fd in answer.rights:
                os.close(fd)
            raise
        return answer

    def _answer_now(self, answer: _Answer) -> _Answer:
        self.control.setblocking(True)
        while not answer.arrival.is_set() and self._hear():
            pass
        return answer

    async def start(self, kind: str, argument: str = "") -> tuple[Child, list[int]]:
        """Returns a new process of this kind, and its rights. Raises OSError if it cannot be started."""
        child = Child(self._next(), self)
        self._children[child.number] = child  # before its end can be reported
        answer = await self._answer(starts.StartChild(child.number, kind, argument))
        return self._begin(child, answer)

    def start_now(self, kind: str) -> tuple[Child, list[int]]:
        """Do the same before the loop runs."""
        child = Child(self._next(), self)
        self._children[child.number] = child
        return self._begin(child, self._answer_now(self._ask(starts.StartChild(child.number, kind))))

    def first(self) -> tuple[Child, list[int]]:
        """Returns the fork server that was started unasked. Call it once, before the loop runs."""
        child = self._children[starts.FIRST]
        return self._begin(child, self._answer_now(self._first))

    def _begin(self, child: Child, answer: _Answer) -> tuple[Child, list[int]]:
        if answer.done.error:
            self._children.pop(child.number, None)
        rights = answer.take_rights()
        child.pid = answer.done.pid
        return child, rights

    async def output(self, kind: str, argument: str, seconds: float, most: int) -> tuple[bytes, int]:
        """Returns the output of a program of this kind, and its status. Raises OSError, and TimeoutError."""
        child, (output,) = await self.start(kind, argument)
        data = b""
        try:
            with trio.move_on_after(seconds):
                while part := await _read(output):
                    data += part[: most - len(data)]
                await child.ended.wait()
        finally:
            os.close(output)
            child.kill()
        if child.status is None:
            raise TimeoutError(errno.ETIMEDOUT, f"it took over {seconds:g} s")
        return data, child.status

    def kill(self, number: int) -> None:
        with suppress(OSError):  # gone, and all that it has started with it
            self.control.send(_pack(starts.KillChild(number)))

    async def listener(self, path: str, backlog: int) -> socket.socket:
        """Returns a socket that listens at a path of the mount."""
        answer = await self._answer(starts.Bind(self._next(), path, backlog))
        return socket.socket(fileno=answer.take_rights()[0])

    def mounted(self, device: int) -> None:
        """Tell the starter the device of this daemon's mount. Call it before the loop runs."""
        self._answer_now(self._ask(starts.MountDevice(self._next(), device))).take_rights()

    def unmount(self) -> None:
        """Unmount a mount that is no longer served. Call it when the loop has ended."""
        self._answer_now(self._ask(starts.Unmount(self._next()))).take_rights()

    def stop(self) -> None:
        """End the starter, and all that it has started. May be repeated."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        for fd in self._first.rights:
            os.close(fd)
        self._first.rights = []
        for channel in (self.control, self.looks):
            with suppress(OSError):  # a daemon that has given up closing it (confinement)
                channel.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def _read(output: int) -> bytes:
    await trio.lowlevel.wait_readable(output)
    return os.read(output, _READ)
