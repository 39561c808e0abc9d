"""The daemon's end of the fork server, the process that makes hosts: the messages to it and from it.

Rules: it is started before the daemon opens anything that hosts must not inherit. Ending it ends every host.
This file must never know the caller of a host.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from array import array
from collections.abc import Callable, Sequence

import trio
from msgspec.msgpack import Decoder, Encoder

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.starts import FORK_SERVER
from cortexfs.pool.printed import Printed
from cortexfs.pool.starter import Child, Starter

END_SECONDS = 2.0  # for a fork server that has broken off
PAUSE = 0.1  # a fork server that dies at once must not be restarted in a tight loop

log = logging.getLogger("cortexfs")

_pack = Encoder().encode
_replies: Decoder[hostcalls.FromForkServer] = Decoder(hostcalls.FromForkServer)


Heard = Callable[[hostcalls.FromForkServer], None]


class ForkServer:
    """The process that makes hosts, and the channel to it. When it ends, a new one takes its place."""

    def __init__(self, starter: Starter, printed: Printed) -> None:
        self._starter = starter
        self._printed = printed
        self._take_over(*starter.first())

    def _take_over(self, child: Child, rights: Sequence[int]) -> None:
        self.child = child
        self.socket, self._output = socket.socket(fileno=rights[0]), rights[1]
        self._printed.add(self._output)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, hostcalls.MAX_SPAWN)
        self.socket.setblocking(False)

    async def run(self, hear: Heard, lost: Callable[[], None], new: Callable[[], None]) -> None:
        """Receive from each fork server. `lost` is called when one ends, `new` for the next."""
        while True:
            began = trio.current_time()
            while (received := await self.receive()) is not None:
                hear(received)
            lost()
            log.error("the fork server has ended with all hosts, and is started again")
            await self.end()
            await trio.sleep_until(began + PAUSE)
            try:
                self._take_over(*await self._starter.start(FORK_SERVER))
            except OSError as error:
                log.error("the fork server cannot be started: %s", error.strerror)
                return
            new()

    def hear_until(self, is_over: Callable[[], bool], hear: Heard, seconds: float) -> None:
        """Receive from it after the loop has ended, for so many seconds at most."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(OSError, ValueError):  # the fork server ended, or was closed before
            while not is_over():
                self.wait(max(deadline - time.monotonic(), 0))
                if (message := self.next_message()) is None:
                    return
                hear(message)

    def send(self, message: hostcalls.ToForkServer, rights: Sequence[int] = ()) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", rights))] if rights else []
        try:
            self.socket.sendmsg([_pack(message)], ancillary)
        except BlockingIOError:
            raise Fault("EAGAIN", "too many hosts are being started at once; try again") from None
        except OSError:
            raise Fault("EHOSTDOWN", "the fork server is gone and is being started again; retry") from None

    def next_message(self) -> hostcalls.FromForkServer | None:
        """Returns the next message, or None when the fork server is gone; may raise BlockingIOError."""
        try:
            data = self.socket.recv(hostcalls.MAX_SPAWN)
        except ConnectionResetError:
            return None
        return _replies.decode(data) if data else None

    async def receive(self) -> hostcalls.FromForkServer | None:
        while True:
            try:
                return self.next_message()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.socket)

    def wait(self, seconds: float) -> bool:
        """Wait for the next message, after the loop has ended. Returns True if there is one."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    async def end(self) -> None:
        """Wait until it has ended. It may need a moment to end the processes that its hosts left."""
        self.close()
        with trio.move_on_after(END_SECONDS):
            await self.child.ended.wait()
        self.child.kill()
        await self.child.ended.wait()

    def close(self) -> None:
        """Let the fork server end, and every host with it. May be repeated."""
        self.socket.close()
        self._printed.end(self._output)
