"""One call between two machines, from either side: pieces in order, credit, and its end.

    line.say((wire.WANT, b"..."))           sent at once
    await line.say_output(data)             sent when the other side has room for it
    for kind, payload in await line.next()  what the other side said; then line.took(size)

Rules: a number that is missing ends the call, as what NATS does not deliver is gone. A side that has heard
nothing for a while asks, so that the last piece is missed, too, and a call that the other side does not know
any more. What the other side sends beyond its credit ends it: nothing is piled up here.
This file must never know what a call is about.
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

MAX_QUEUED = 2 * WINDOW  # bytes beside standard input: what the other side had credit for, and some words
MAX_MESSAGES = 1 << 16  # however short
_MAX_PIECE = 2 << 20
QUIET_SECONDS = 3.0
QUIET_LOOKS = 5  # that have found nothing new, until the other side is given up


async def until_one_ends(*tasks: Callable[[], Awaitable[None]]) -> None:
    """Run these together until the first has ended; raises the Fault or OSError that it ended with."""
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
    """A call's two directions: each has its own attributes, for numbers, bytes and whoever waits."""

    def __init__(self, client: Client, subject: str, peer: str, user: str = "") -> None:
        self.peer = peer
        self.user = user  # of that machine, who calls
        self._client = client
        self._subject = subject
        self._said = 0
        self._heard = 0
        self._splitter = wire.Splitter(_MAX_PIECE)
        self._queue: list[tuple[int, bytes]] = []
        self._queued = 0  # bytes of it, but for standard input
        self._wanted = 0  # bytes of standard input that may still come
        self._news = Bell()  # for whoever waits for what is said,
        self._room = Bell()  # and for whoever waits to say something
        self._credit = WINDOW
        self._taken = 0
        self.left = False  # the other side has cancelled it
        self._is_unanswered = False
        self._quiet = (-1, 0)  # how much had been heard at the last look, and how many looks found no more
        self._fault: Fault | None = None

    # -- said

    def has_room(self, data: bytes) -> bool:
        """Returns True where these bytes of a stream may be said at once, which are counted then."""
        if self.left or self._credit <= 0 or len(data) > PIECE:
            return False
        self._credit -= len(data)
        return True

    def say(self, *said: tuple[int, bytes]) -> None:
        if not said:
            return
        data = NUMBER.pack(self._said & 0xFFFFFFFF) + b"".join(wire.message(*each) for each in said)
        self._client.publish(self._subject, data)
        self._said += 1
        self._wanted += sum(_number(payload) for kind, payload in said if kind == wire.WANT)

    async def say_output(self, kind: int, data: bytes) -> None:
        """Say a stream's bytes within the credit."""
        await in_task()
        for at in range(0, len(data), PIECE):
            while self._credit <= 0 and not self.left:
                self._check()
                await self._room.rung()
            if self.left:
                return
            part = data[at : at + PIECE]
            self._credit -= len(part)
            self.say((kind, part))
            await self._client.room()

    def took(self, size: int) -> None:
        """Give credit for what has been passed on."""
        self._taken += size
        if self._taken >= WINDOW // 4:
            self.say((messages.CREDIT, wire.U32.pack(self._taken)))
            self._taken = 0

    # -- heard

    def hear(self, delivery: Delivery) -> None:
        """A piece of the call, from the connection."""
        if self._fault is not None:  # nothing more is kept, though whoever waits may be long in hearing of it
            return
        if delivery.status == "503":
            self._is_unanswered = True
            self.break_off(Fault("EHOSTDOWN", f"nobody answers for {self.peer} now"))
            return
        try:
            self._take(delivery.data)
        except Fault as fault:
            self.break_off(fault)

    def _take(self, data: bytes) -> None:
        if len(data) < NUMBER.size:
            raise Fault("EPROTO", f"{self.peer} sends what is no piece of a call")
        if data == messages.UNKNOWN:
            raise Fault("EHOSTDOWN", f"{self.peer} was away during the call, and has ended it")
        if NUMBER.unpack_from(data)[0] != self._heard & 0xFFFFFFFF:
            raise Fault("EHOSTDOWN", f"a part of what {self.peer} said was lost on its way")
        self._heard += 1
        said, is_asked = self._splitter.feed(memoryview(data)[NUMBER.size :]), False
        for kind, payload in said:
            if kind == messages.CREDIT:
                self._credit = min(WINDOW, self._credit + _number(payload))
                self._room.ring()
                continue
            is_asked = is_asked or kind == messages.ASK
            if kind in (messages.ASK, messages.ANSWER):
                continue
            if kind == wire.STDIN:
                self._wanted -= len(payload)
            else:
                self._queued += len(payload)
            self._queue.append((kind, payload))
            if kind == messages.CANCEL:
                self.left = True  # what is still said of a stream is dropped
                self._room.ring()
        if is_asked:  # once, however often this piece does
            self.say((messages.ANSWER, b""))
        is_much = self._queued > MAX_QUEUED or max(len(said), len(self._queue)) > MAX_MESSAGES
        if not self._splitter.clean or is_much or self._wanted < 0:
            raise Fault("EPROTO", f"{self.peer} sends more than it was given room for")
        self._news.ring()

    def look(self) -> None:
        """Ask, where nothing was heard since the last look; break off where nothing is for too long."""
        heard, looks = self._quiet
        looks = looks + 1 if heard == self._heard else 0
        self._quiet = (self._heard, looks)
        if looks > QUIET_LOOKS:
            self.break_off(Fault("EHOSTDOWN", f"{self.peer} has not answered during the call"))
        elif looks:
            with contextlib.suppress(Fault):  # the connection is away, which its reader sees
                self.say((messages.ASK, b""))

    def break_off(self, fault: Fault) -> None:
        """End the call: nothing more is to be heard."""
        self._fault = self._fault or fault
        self._news.ring()
        self._room.ring()

    async def hears_soon(self) -> bool:
        """Returns True if `next` need not wait; False after a moment, or at once in a task."""
        if not self._is_settled:
            await self._news.rings_soon()
        return self._is_settled

    async def hears(self) -> None:
        """Returns when `next` need not wait."""
        if not self._is_settled:
            await in_task()
        while not self._is_settled:
            await self._news.rung()

    @property
    def _is_settled(self) -> bool:
        return bool(self._queue) or self._fault is not None

    async def next(self) -> list[tuple[int, bytes]]:
        """Returns what has come; raises a Fault when no more will."""
        await self.hears()
        if not self._queue:
            self._check()
        found, self._queue, self._queued = self._queue, [], 0
        return found

    @property
    def is_unheard(self) -> bool:
        """Returns True while the other side has said nothing in this call."""
        return self._heard == 0 and self._is_unanswered

    def has_heard(self, kind: int) -> bool:
        """Returns True if such a message waits for `next`."""
        return any(each == kind for each, _ in self._queue)

    def put_back(self, said: list[tuple[int, bytes]]) -> None:
        """Have `next` return these first."""
        self._queue[:0] = said
        self._queued += sum(len(payload) for _, payload in said)

    def _check(self) -> None:
        if self._fault is not None:
            raise Fault(self._fault.code, self._fault.message)


def _number(payload: bytes) -> int:
    if len(payload) != wire.U32.size:
        raise Fault("EPROTO", "a number of a call is none")
    number: int = wire.U32.unpack(payload)[0]
    return number


class CallLines:
    """The calls of one direction that go on, by the subject's last tokens."""

    def __init__(self) -> None:
        self._by_run: dict[tuple[str, str], CallLine] = {}

    def __len__(self) -> int:
        return len(self._by_run)

    def of(self, peer: str, user: str = "") -> int:
        """Returns how many there are with a machine, or of a user there."""
        lines = self._by_run.values()
        return sum(each.peer == peer and user in ("", each.user) for each in lines)

    def begin(self, peer: str, run: str, line: CallLine) -> Callable[[], None]:
        """Have it hear its pieces; returns what ends that."""
        key = (peer, run)
        if key in self._by_run:
            raise Fault("EPROTO", "a call of that name goes on already")
        self._by_run[key] = line
        return partial(self._by_run.__delitem__, key)

    def hear(self, peer: str, run: str, delivery: Delivery) -> bool:
        line = self._by_run.get((peer, run))
        if line is not None:
            line.hear(delivery)
        return line is not None

    async def watch(self) -> None:
        """Look after all of them, for ever."""
        while True:
            await trio.sleep(QUIET_SECONDS)
            for line in list(self._by_run.values()):
                line.look()

    def lose(self, peer: str | None, fault: Fault) -> None:
        """A machine is gone, or all are."""
        for (who, _), line in list(self._by_run.items()):
            if peer in (None, who):
                line.break_off(fault)
