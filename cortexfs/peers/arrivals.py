"""The order in which connections are begun: users take turns, whatever listener they connected to.

Main path: `welcome` accepts at one listener, and lets what it accepts wait in its user's queue; `run` begins
a few of those that wait at each turn of the loop, one of each user after the other.

Rules: what waits counts as connected (quotas.py), and a user's surplus is closed unread. A connection that
its client has closed is never begun. A listener at which more wait than are accepted at a time pauses, the
longer the more such listeners there are: clients then wait in connect(2), and take no time from others.
This file must never know what is said over a connection.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import trio

from cortexfs.peers import safe_sockets
from cortexfs.peers.caller import peer_uid
from cortexfs.peers.quotas import Guest, Guests

ACCEPTED = 16  # at a time: 0.2 ms
PAUSE = 0.001  # the least that epoll_wait(2) waits; a daemon that never waits is scheduled behind everybody
BEGUN = 8  # at a turn of the loop, as each may take half a millisecond of the next one
PACE = 256  # so many a second, where that is more: a turn takes 0.25 s in a daemon that streams to a thousand

Begin = Callable[[socket.socket, Guest], None]


class _Arrival(NamedTuple):
    stream: socket.socket
    guests: Guests
    guest: Guest
    begin: Begin

    def close(self) -> None:
        safe_sockets.close(self.stream)
        self.guests.leave(self.guest)


class Arrivals:
    """The connections that wait, by uid, of all listeners together."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[_Arrival]] = {}  # in the order of their turns
        self._more = trio.Event()

    async def welcome(
        self, listener: socket.socket, guests: Guests, begin: Begin, pause: float = PAUSE
    ) -> None:
        """Accept for ever. Over the limit, connections are closed, which a client sees as its end."""
        try:
            while True:
                await trio.lowlevel.wait_readable(listener)
                self._accept(listener, guests, begin)
                if not self._more.is_set():
                    self._begin(BEGUN)
                if listener in guests.crowded:
                    await trio.sleep(pause * len(guests.crowded))
        finally:
            guests.crowded.discard(listener)

    async def run(self) -> None:
        """Begin what could not be begun when it was accepted, until cancelled."""
        try:
            while True:
                await self._more.wait()
                now = time.perf_counter()
                while self._waiting:
                    await trio.lowlevel.checkpoint()
                    before, now = now, time.perf_counter()
                    self._begin(max(BEGUN, int((now - before) * PACE)))
                self._more = trio.Event()
        finally:
            while self._waiting:
                self._next().close()

    def _accept(self, listener: socket.socket, guests: Guests, begin: Begin) -> None:
        """Let those wait who have connected, as many as are accepted at a time."""
        guests.crowded.add(listener)
        try:
            for _ in range(ACCEPTED):
                self._take(listener.accept()[0], guests, begin)
        except BlockingIOError:
            guests.crowded.discard(listener)
        except OSError:  # no descriptors left, so that it stays crowded until others have ended
            pass

    def _take(self, stream: socket.socket, guests: Guests, begin: Begin) -> None:
        uid = peer_uid(stream)
        guest = guests.enter(uid)
        if guest is None:
            safe_sockets.close(stream)
        else:
            stream.setblocking(False)
            self._waiting.setdefault(uid, deque()).append(_Arrival(stream, guests, guest, begin))

    def _begin(self, most: int) -> None:
        for _ in range(most):
            if not self._waiting:
                return
            arrival = self._next()
            if _is_over(arrival.stream):
                arrival.close()
            else:
                arrival.begin(arrival.stream, arrival.guest)
        if self._waiting:
            self._more.set()

    def _next(self) -> _Arrival:
        """The first one of the user whose turn it is."""
        uid, queue = next(iter(self._waiting.items()))
        del self._waiting[uid]
        arrival = queue.popleft()
        if queue:
            self._waiting[uid] = queue  # behind the others
        return arrival


def _is_over(sock: socket.socket) -> bool:
    """Returns True where nothing is left to read, and the other end is closed, not for writing alone."""
    try:
        if not sock.recv(1, socket.MSG_PEEK):
            sock.send(b"")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False
