"""One host process, from the daemon's side, and the calls that are opened on it.

Rules: a request can be taken back as long as the host's end of the call is open here too. A host that did not
begin a call, as it is stopped or a tool keeps its interpreter, is set aside until it comes to it.
This file must never know the set of hosts, frames, or runners.
"""

from __future__ import annotations

import contextlib
import errno
import select
import signal
import socket
from array import array
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import trio

from cortexfs.core import hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.peers import safe_sockets
from cortexfs.peers.ancestry import is_stopped

# Larger than one message, so that a host seldom waits for the daemon in mid-answer.
CALL_BUFFER = 512 << 10

Pair: TypeAlias = tuple[socket.socket, socket.socket]  # the daemon's end, and the host's

_pack = msgspec.msgpack.Encoder().encode


class Pairs:
    """Pairs of sockets for calls. One spare pair is made ahead of time."""

    def __init__(self) -> None:
        self._spare: Pair | None = _new_pair()

    def take(self) -> Pair:
        pair, self._spare = self._spare, None
        return pair or _new_pair()

    def refill(self) -> None:
        """Make the spare pair, after an answer has gone out. A lack of descriptors fails the next call."""
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = _new_pair()

    def close(self) -> None:
        if self._spare is not None:
            for end in self._spare:
                end.close()
            self._spare = None


def _new_pair() -> Pair:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    safe_sockets.refuse_rights(ours)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CALL_BUFFER)
    return ours, theirs


class Host:
    """One host process, from the daemon's side.

    Its attributes hold its state, as the fork server reports it, and the effects of its calls.
    """

    def __init__(
        self,
        number: int,
        key: tuple[hostcalls.Plugin, hostcalls.Identity],
        control: socket.socket,
        kill: Callable[[int], bool],
        pairs: Pairs,
        errors: int,
    ) -> None:
        self.number = number
        self._pairs = pairs
        self.plugin, self.identity = key
        self.is_enclosed = hostcalls.is_enclosed(*key)
        self.control = control
        self.errors = errors  # the pipe from which the daemon reads its standard error
        self.last_words = ""  # added to the message about its end, once it has ended
        self.pid = 0
        self._kill = kill
        self.calls = 0
        self.retired = False
        self.has_served = False  # a call has ended in it, so calls do not kill it
        self.stuck = False
        self.calls_at_end = 0  # the number of calls, counted when its end is first noticed
        self.was_stopped = False  # a signal stopped it, for which it is killed
        self.aside: socket.socket | None = None  # a probe of a call that was taken back from it
        self.status: int | None = None
        self.idle_since = trio.current_time()
        self.ready = trio.Event()
        self.exited = trio.Event()
        self.fault: Fault | None = None
        self._look = select.poll()
        self._look.register(control, 0)
        self.packet = b"c"  # opens a call

    @property
    def is_alive(self) -> bool:
        """Returns False as soon as the process has ended, which the fork server reports only later."""
        return not self._look.poll(0)

    @property
    def is_stopped(self) -> bool:
        """Returns True if a signal has stopped it. A tool of its own user may send one."""
        return is_stopped(self.pid)

    def open(self, cwd: int | None, request: bytes) -> tuple[socket.socket, socket.socket, memoryview]:
        """Open a call. Returns both ends of its stream, and the rest of the request, which is still to be
        sent. Pair it with `Pool.release`.

        While the host's end is open here, a request can be taken back, and the host's end goes unnoticed.
        """
        assert cwd is None or not self.is_enclosed
        ours, theirs = self._pairs.take()
        # Sent before the host learns of the call, so the host is woken only once.
        rest = memoryview(request)[ours.send(request) if request else 0 :]
        rights = array("i", [theirs.fileno()] if cwd is None else [theirs.fileno(), cwd])
        try:
            self.control.sendmsg([self.packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError as error:
            # A full queue, or more descriptors in flight than the kernel allows one user. Otherwise it has
            # died: the request stays unread, and is taken back.
            if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                ours.close()
                theirs.close()
                why = "the plugin's host takes no more calls now; try again"
                raise Fault("EAGAIN", why) from None
        return ours, theirs, rest

    def call(self, cwd: int | None) -> socket.socket:
        """Open a call that is never taken back. Returns the daemon's end of its stream."""
        ours, theirs, _ = self.open(cwd, b"")
        theirs.close()
        return ours

    def is_back(self) -> bool:
        """Returns True if it has come to the call that was taken back from it, so that it takes new calls."""
        if self.aside is None:
            return True
        try:
            safe_sockets.receive(self.aside, 1)  # end or data: the host has come to the call
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def drop_probe(self) -> None:
        """End its being set aside."""
        if self.aside is not None:
            safe_sockets.close(self.aside)
            self.aside = None

    def note_end(self) -> None:
        """Note that a call has seen the host's end. The call is not given back yet."""
        self.calls_at_end = max(self.calls_at_end, self.calls)

    def end(self) -> None:
        """Ask an idle host to leave: it exits when its control socket ends."""
        self.control.close()

    def kill(self) -> None:
        """End the host now."""
        if self.exited.is_set() or not self._kill(self.number):
            self.end()

    def end_of_call(self) -> Fault:
        return Fault("EPROTO", f"the tool's process {self.describe_end(' during the call')}")

    def describe_end(self, when: str = "") -> str:
        how = f"exited with status {self.status}"
        if self.status is None:
            how = "broke off"
        elif self.status < 0:
            name = signal.Signals(-self.status).name if -self.status in list(signal.Signals) else "a signal"
            how = f"was killed by {name}"
        others = f", or during another of its {self.calls_at_end} calls"
        return how + when + (others if when and self.calls_at_end > 1 else "") + self.last_words


def announce(request: hostcalls.Request | hostcalls.Converse) -> bytes:
    """Returns the first message of a call."""
    packed = _pack(request)
    return wire.HEADER.pack(wire.REQUEST, len(packed)) + packed
