"""One call between two machines, from either side: pieces in order, credit, and its end.

    line.say((wire.WANT, b"..."))           sent at once
    await line.say_output(data)             sent when the other side has room for it
    for kind, payload in await line.next()  what the other side said; then line.took(size)

Rules: a missing number ends the call, as a piece that NATS does not deliver is lost. A side that has received
nothing for a while asks. So it notices a lost last piece, and a call that the other side has forgotten. If
the other side sends beyond its credit, the call ends: nothing piles up here.
This file must never know the purpose of a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from cortexfs.core import wire
from cortexfs.core.errors import Fault
from cortexfs.peers.prompt import Bell, in_task
from cortexfs.team import messages
from cortexfs.team.messages import NUMBER, PIECE, WINDOW
from cortexfs.team.nats_client import Client
from cortexfs.team.nats_wire import Delivery

MAX_QUEUED = 2 * WINDOW  # bytes, without standard input: the credit of the other side, and some more
MAX_MESSAGES = 1 << 16  # of any size
_MAX_PIECE = 2 << 20
QUIET_SECONDS = 3.0
QUIET_LOOKS = 5  # checks without news, after which the other side is given up


async def until_one_ends(*tasks: Callable[[], Awaitable[None]]) -> None:
    """Run these together until the first ends. Raises its Fault or OSError, if it ended with one."""
    problems: list[Fault | OSError] = []
    await in_task()
    async with trio.open_nursery() as nursery:

        async def run(task: Callable[[], Awaitable[None]]) -> None:
            try:
                await task()
            except (Fault, OSError) as problem:
                problems.append(problem)
            nursery.cancel_scope.cancel()

        for each in tasks:
            nursery.start_soon(run, each)
    if problems:
        raise problems[0]


class CallLine:
    """A call's two directions. Each has its own attributes: numbers, bytes, and a bell for a waiting task."""

    def __init__(self, client: Client, subject: str, peer: str, user: str = "") -> None:
        self.peer = peer
        self.user = user  # the calling user of that machine
        self._client = client
        self._subject = subject
        self._sent_count = 0
        self._received_count = 0
        self._splitter = wire.Splitter(_MAX_PIECE)
        self._queue: list[tuple[int, bytes]] = []
        self._queued = 0  # bytes of it, without standard input
        self._input_room = 0  # bytes of standard input that may still come
        self._news = Bell()  # for the task that waits for messages,
        self._room = Bell()  # and for the task that waits for room to send
        self._credit = WINDOW
        self._unreported = 0
        self.is_cancelled = False  # the other side has cancelled the call
        self._is_unanswered = False
        self._quiet = (-1, 0)  # the number of pieces at the last check, and of checks without news
        self._fault: Fault | None = None

    # -- sending

    def has_room(self, data: bytes) -> bool:
        """Returns True if these bytes of a stream may be sent at once, and counts them if so."""
        if self.is_cancelled or self._credit <= 0 or len(data) > PIECE:
            return False
        self._credit -= len(data)
        return True

    def say(self, *pieces: tuple[int, bytes]) -> None:
        if not pieces:
            return
        data = NUMBER.pack(self._sent_count & 0xFFFFFFFF) + b"".join(wire.message(*each) for each in pieces)
        self._client.publish(self._subject, data)
        self._sent_count += 1
        self._input_room += sum(_number(payload) for kind, payload in pieces if kind == wire.WANT)

    async def say_output(self, kind: int, data: bytes) -> None:
        """Send bytes of a stream within the credit."""
        await in_task()
        for at in range(0, len(data), PIECE):
            while self._credit <= 0 and not self.is_cancelled:
                self._check()
                await self._room.rung()
            if self.is_cancelled:
                return
            part = data[at : at + PIECE]
            self._credit -= len(part)
            self.say((kind, part))
            await self._client.room()

    def took(self, size: int) -> None:
        """Give credit for bytes that have been passed on."""
        self._unreported += size
        if self._unreported >= WINDOW // 4:
            self.say((messages.CREDIT, wire.U32.pack(self._unreported)))
            self._unreported = 0

    # -- receiving

    def hear(self, delivery: Delivery) -> None:
        """Take in a piece of the call, from the connection."""
        if self._fault is not None:  # nothing more is kept, even if the waiting task learns of it late
            return
        if delivery.status == "503":
            self._is_unanswered = True
            self.break_off(Fault("EHOSTDOWN", f"{self.peer} is not connected to the team now"))
            return
        try:
            self._take(delivery.data)
        except Fault as fault:
            self.break_off(fault)

    def _take(self, data: bytes) -> None:
        if len(data) < NUMBER.size:
            raise Fault("EPROTO", f"{self.peer} has sent an invalid piece of a call")
        if data == messages.UNKNOWN:
            raise Fault("EHOSTDOWN", f"{self.peer} was away during the call, and has ended it")
        if NUMBER.unpack_from(data)[0] != self._received_count & 0xFFFFFFFF:
            raise Fault("EHOSTDOWN", f"a message of {self.peer} was lost on its way")
        self._received_count += 1
        pieces, is_asked = self._splitter.feed(memoryview(data)[NUMBER.size :]), False
        for kind, payload in pieces:
            if kind == messages.CREDIT:
                self._credit = min(WINDOW, self._credit + _number(payload))
                self._room.ring()
                continue
            is_asked = is_asked or kind == messages.ASK
            if kind in (messages.ASK, messages.ANSWER):
                continue
            if kind == wire.STDIN:
                self._input_room -= len(payload)
            else:
                self._queued += len(payload)
            self._queue.append((kind, payload))
            if kind == messages.CANCEL:
                self.is_cancelled = True  # the rest of a stream is dropped
                self._room.ring()
        if is_asked:  # once, even if this piece asks several times
            self.say((messages.ANSWER, b""))
        is_much = self._queued > MAX_QUEUED or max(len(pieces), len(self._queue)) > MAX_MESSAGES
        if not self._splitter.clean or is_much or self._input_room < 0:
            raise Fault("EPROTO", f"{self.peer} has sent more than this machine allowed")
        self._news.ring()

    def look(self) -> None:
        """Ask, if nothing has come since the last check. Break off, if nothing has come for too long."""
        count, looks = self._quiet
        looks = looks + 1 if count == self._received_count else 0
        self._quiet = (self._received_count, looks)
        if looks > QUIET_LOOKS:
            self.break_off(Fault("EHOSTDOWN", f"{self.peer} has not answered during the call"))
        elif looks:
            with contextlib.suppress(Fault):  # the connection is away, which its reader notices
                self.say((messages.ASK, b""))

    def break_off(self, fault: Fault) -> None:
        """End the call: nothing more will come."""
        self._fault = self._fault or fault
        self._news.ring()
        self._room.ring()

    async def hears_soon(self) -> bool:
        """Returns True if `next` need not wait; False after a moment, or at once in a task."""
        if not self._is_settled:
            await self._news.rings_soon()
        return self._is_settled

    async def hears(self) -> None:
        """Wait until `next` need not wait."""
        if not self._is_settled:
            await in_task()
        while not self._is_settled:
            await self._news.rung()

    @property
    def _is_settled(self) -> bool:
        return bool(self._queue) or self._fault is not None

    async def next(self) -> list[tuple[int, bytes]]:
        """Returns the messages that have come. Raises a Fault when no more will."""
        await self.hears()
        if not self._queue:
            self._check()
        found, self._queue, self._queued = self._queue, [], 0
        return found

    @property
    def is_unheard(self) -> bool:
        """Returns True if NATS found no receiver of this call, and nothing has come from one."""
        return self._received_count == 0 and self._is_unanswered

    def has_heard(self, kind: int) -> bool:
        """Returns True if such a message waits for `next`."""
        return any(each == kind for each, _ in self._queue)

    def put_back(self, pieces: list[tuple[int, bytes]]) -> None:
        """Put these back, to be returned first by `next`."""
        self._queue[:0] = pieces
        self._queued += sum(len(payload) for _, payload in pieces)

    def _check(self) -> None:
        if self._fault is not None:
            raise Fault(self._fault.code, self._fault.message)


def _number(payload: bytes) -> int:
    if len(payload) != wire.U32.size:
        raise Fault("EPROTO", "a number in a call has the wrong size")
    number: int = wire.U32.unpack(payload)[0]
    return number


class CallLines:
    """The active calls of one direction, by the last tokens of their subjects."""

    def __init__(self) -> None:
        self._by_run: dict[tuple[str, str], CallLine] = {}

    def __len__(self) -> int:
        return len(self._by_run)

    def of(self, peer: str, user: str = "") -> int:
        """Returns the number of calls with a machine, or of a user there."""
        lines = self._by_run.values()
        return sum(each.peer == peer and user in ("", each.user) for each in lines)

    def begin(self, peer: str, run: str, line: CallLine) -> Callable[[], None]:
        """Let this line receive its pieces. Returns a function that ends this."""
        key = (peer, run)
        if key in self._by_run:
            raise Fault("EPROTO", "a call with this id is running already")
        self._by_run[key] = line
        return partial(self._by_run.__delitem__, key)

    def hear(self, peer: str, run: str, delivery: Delivery) -> bool:
        line = self._by_run.get((peer, run))
        if line is not None:
            line.hear(delivery)
        return line is not None

    async def watch(self) -> None:
        """Check all of them regularly, for ever."""
        while True:
            await trio.sleep(QUIET_SECONDS)
            for line in list(self._by_run.values()):
                line.look()

    def lose(self, peer: str | None, fault: Fault) -> None:
        """End the calls with one machine that is gone, or with all."""
        for (machine, _), line in list(self._by_run.items()):
            if peer in (None, machine):
                line.break_off(fault)
