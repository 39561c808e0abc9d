"""Events: each is sent once to the plugins that declare its type, in a host of the user whom it concerns.

    events.tell("session:start", site, sessionId=...)

Main path: `tell` puts an event into the queue of a plugin and a caller, and `_deliver` empties it one by one,
so that events arrive in order. The sender of an event never waits.

Rules: queues are bounded. An event that finds no room or cannot be delivered is dropped and counted. A call
that a plugin with hooks makes causes no events, so no event causes another one.
This file must never know the cause of an event.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import trio

from cortexfs.core import hooks, hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import EVENT
from cortexfs.core.safe_text import one_line
from cortexfs.hooks.recent import RecentEvents
from cortexfs.hooks.registry import Hooks, Site
from cortexfs.pool.host import Host

MAX_EVENTS = 256  # waiting events of one plugin and caller
MAX_BYTES = 16 << 20  # all waiting events of one user
MAX_QUEUES = 64  # of one user, with those of the user's agents
LAST_SECONDS = 2.0  # for hosts to receive "daemon:status" before the daemon ends
DAEMON = "cortexfs"
STATUS = "daemon:status"

_Key: TypeAlias = tuple[hostcalls.Plugin, hostcalls.Identity]

log = logging.getLogger("cortexfs")


class _Queue:
    def __init__(self, let_go: Callable[[], None]) -> None:
        self.let_go = let_go  # lets the people of the event's user go
        self.waiting: deque[tuple[Site, bytes]] = deque()
        self.size = 0
        self.is_full = False


class HookEvents:
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._queues: dict[_Key, _Queue] = {}
        self._nursery: trio.Nursery | None = None
        self.dropped = 0
        self.recent = RecentEvents()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None

    def tell(self, type_: str, site: Site, **payload: Any) -> None:
        """Send an event to the plugins that declare its type. Returns at once."""
        plugins = self._hooks.of(type_)
        if plugins and not site.identity.unheard:
            event = hooks.event(type_, **payload)
            for plugin in plugins:
                self._put((plugin, site.identity), site, event)

    def started(self, host: Host) -> None:
        """Tell the plugin of a host that has just started that the daemon is up."""
        self._tell_host(host, "up")

    def _tell_host(self, host: Host, status: str) -> None:
        if STATUS in host.plugin.hooks and host.identity.label != hostcalls.DESCRIBER:
            event = hooks.event(STATUS, daemon=DAEMON, status=status)
            self._put((host.plugin, host.identity), Site(host.identity), event)

    async def end(self, hosts: list[Host]) -> None:
        """Tell these hosts that the daemon ends, after their waiting events. Wait LAST_SECONDS at most."""
        with trio.move_on_after(LAST_SECONDS):
            for host in hosts:
                self._tell_host(host, "down")
            while self._queues:  # noqa: ASYNC110  # polls only while the daemon ends
                await trio.sleep(LAST_SECONDS / 50)

    def _put(self, key: _Key, site: Site, event: bytes) -> None:
        self.recent.add(key[0].name, site.identity.uid, event)
        own = [queue for (_, identity), queue in self._queues.items() if identity.uid == site.identity.uid]
        queue = self._queues.get(key)
        if queue is None:
            if self._nursery is None or len(own) >= MAX_QUEUES:
                self.dropped += 1
                return
            queue = self._queues[key] = _Queue(self._hooks.people.outlast(site.identity, site.stream))
            self._nursery.start_soon(self._deliver, key, queue)
        if len(queue.waiting) < MAX_EVENTS and sum(each.size for each in own) + len(event) <= MAX_BYTES:
            queue.is_full = False
            queue.size += len(event)
            queue.waiting.append((site._replace(cwd=None, directory="/", stream=None), event))
            return
        self.dropped += 1
        if not queue.is_full:  # log the first dropped event alone
            queue.is_full = True
            log.warning("events: too many wait for the plugin %s; further ones are dropped", key[0].name)

    async def _deliver(self, key: _Key, queue: _Queue) -> None:
        plugin = key[0]
        try:
            while queue.waiting:
                site, event = queue.waiting.popleft()
                queue.size -= len(event)
                try:
                    await self._hooks.call(plugin, EVENT, site, event)
                except Fault as fault:  # later events would arrive out of order
                    count = 1 + len(queue.waiting)
                    queue.waiting.clear()
                    self.dropped += count
                    why = one_line(fault.message)
                    log.warning("events: %d were not delivered to the plugin %s: %s", count, plugin.name, why)
        finally:
            del self._queues[key]
            queue.let_go()
