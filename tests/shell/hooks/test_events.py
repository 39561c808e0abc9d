"""events.py with hosts that the test plays: limits, order, and events that no plugin receives."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
import trio

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.hooks import events
from cortexfs.hooks.events import HookEvents
from cortexfs.hooks.registry import Hooks, Site
from tests.shell.calling import no_hosts
from tests.waiting import PATIENCE

ME = hostcalls.Identity(1, 1, ())
EAR = hostcalls.Plugin("ear", "1", "esm", "{}", hooks=("session:start",))
SITE = Site(ME)


class Heard(Hooks):
    """A plugin whose hosts take events once `may` is set."""

    def __init__(self) -> None:
        super().__init__(no_hosts())
        self.apply([EAR])
        self.may = trio.Event()
        self.heard: list[tuple[hostcalls.Identity, str]] = []
        self.fault: Fault | None = None

    async def call(self, plugin: hostcalls.Plugin, name: str, site: Site, data: bytes) -> bytes:
        await self.may.wait()
        if self.fault:
            raise self.fault
        self.heard.append((site.identity, msgspec.json.decode(data)["sessionId"]))
        return b""


@contextlib.asynccontextmanager
async def telling() -> AsyncIterator[tuple[HookEvents, Heard]]:
    heard = Heard()
    made = HookEvents(heard)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            yield made, heard
            heard.may.set()
            while made._queues:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


async def test_they_come_once_and_in_order() -> None:
    # issue 6: "the ten events delivered once to plugins that declare them"
    async with telling() as (made, heard):
        for number in range(5):
            made.tell("session:start", SITE, sessionId=str(number))
            made.tell("session:end", SITE, sessionId=str(number))  # no plugin declares this event
    assert heard.heard == [(ME, str(number)) for number in range(5)]


async def test_what_waits_is_bounded() -> None:
    # Of the originals: "fire-and-forget with queue bound"
    async with telling() as (made, heard):
        for number in range(events.MAX_EVENTS + 10):
            made.tell("session:start", SITE, sessionId=str(number))
        assert made.dropped == 10
        large = "x" * (events.MAX_BYTES // 4)  # four of these are a little over the limit
        other = Site(hostcalls.Identity(2, 2, ()))
        for _ in range(5):
            made.tell("session:start", other, sessionId=large)
        assert made.dropped == 12
        for number in range(events.MAX_QUEUES + 1):
            made.tell("session:start", Site(hostcalls.Identity(3, number, ())), sessionId="x")
        assert made.dropped == 13
    assert len(heard.heard) == events.MAX_EVENTS + 3 + events.MAX_QUEUES


async def test_what_cannot_be_delivered_is_dropped() -> None:
    async with telling() as (made, heard):
        heard.fault = Fault("EHOSTDOWN", "its host does not start")
        for number in range(3):
            made.tell("session:start", SITE, sessionId=str(number))
    assert (heard.heard, made.dropped) == ([], 3)


async def test_what_comes_from_inside_of_a_plugin_is_told_to_nobody() -> None:
    # an event must not cause another event
    async with telling() as (made, heard):
        inside = hostcalls.Identity(1, 1, (), unheard=True)
        made.tell("session:start", Site(inside), sessionId="x")
    assert heard.heard == []
