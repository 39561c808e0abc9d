"""The plugins that hook in, and the call of one: in its host, as the caller whom it is about.

    hooks.apply(plugins)                the plugins that are served, in the order of enabling
    hooks.of("middleware:pre")          those that have this hook, in that order
    await hooks.call(plugin, name, site, data)

Main path: middleware.py asks about calls of tools, events.py tells what happens; both call here.

Rules: where no plugin has a hook, nothing is made or looked at but the answer of `of`. A plugin acts as the
caller, in that caller's host, confined as that is; the daemon never acts for one. What it answers is bounded.
This file must never know what a plugin is asked.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import HOOK_SECONDS, LOAD_SECONDS, MAX_SHOWN, POST, PRE, TOOL_EVENTS, Failure
from cortexfs.pool.call import HostCall
from cortexfs.pool.host_queue import Turnstile
from cortexfs.pool.pool import Pool

# The host ends a hook after 5 s, which begin when the plugin is loaded. This is for a host that does not.
SECONDS = LOAD_SECONDS + HOOK_SECONDS + 1
UMASK = 0o077
_MAX_ANSWER = 2 * MAX_SHOWN  # a changed input, and what stands around it


class Site(NamedTuple):
    """The run that a hook is about: as whom it acts, where, and how the run is called."""

    identity: hostcalls.Identity
    session: str = ""
    turn: str = ""
    directory: str = "/"  # where no descriptor is
    cwd: int | None = None
    stream: socket.socket | None = None  # of whoever called, for a host that has yet to start
    umask: int = UMASK
    call: str = ""  # of an agent's run


class Hooks:
    def __init__(self, pool: Pool, failure: Failure = "closed") -> None:
        self.failure = failure
        self.plugins: tuple[hostcalls.Plugin, ...] = ()
        self.words: frozenset[str] = frozenset()  # of all hooks
        self.of_tools = False  # whether any is about calls of tools: all that these cost where none is
        self._pool = pool
        self._turnstile = Turnstile(pool)
        self._by: dict[str, tuple[hostcalls.Plugin, ...]] = {}

    def apply(self, plugins: Iterable[hostcalls.Plugin]) -> None:
        """From now on these; what is under way goes on."""
        self.plugins = tuple(plugin for plugin in plugins if plugin.hooks)
        self.words = words = frozenset(word for plugin in self.plugins for word in plugin.hooks)
        self._by = {word: tuple(one for one in self.plugins if word in one.hooks) for word in words}
        self.of_tools = not words.isdisjoint((PRE, POST, *TOOL_EVENTS))

    def of(self, word: str) -> tuple[hostcalls.Plugin, ...]:
        return self._by.get(word, ())

    async def call(self, plugin: hostcalls.Plugin, name: str, site: Site, data: bytes) -> bytes:
        """Call a hidden tool of the plugin; what it says. Raises its Fault."""
        invocation = hostcalls.Invocation(name, site.session or None, str(site.identity.uid), "hook")
        cwd, directory = site.cwd, site.directory
        if cwd is not None:
            enclosed = hostcalls.is_enclosed(plugin, site.identity)
            cwd, directory = (None, os.readlink(f"/proc/self/fd/{cwd}")) if enclosed else (cwd, "")
        asked = hostcalls.CallRequest(site.turn, invocation, None, data, site.umask, {}, directory)
        said = bytearray()

        def hear(kind: int, payload: bytes) -> None:
            """Raises one of call.GARBAGE, which ends the call."""
            if kind == wire.DELTA:
                said.extend(payload)
                if len(said) > _MAX_ANSWER:
                    raise Fault("EFBIG", f"it answers over {_MAX_ANSWER >> 10} KiB")

        one = HostCall(hear, _pass)
        try:
            find = partial(self._turnstile.host_of, plugin, site.identity, site.stream)
            await one.run(self._pool, find, asked, SECONDS, cwd)
        finally:
            self._turnstile.freed(site.identity.uid)
        if one.fault is not None:
            raise Fault(one.fault.code, one.fault.message.replace("the tool", "the plugin", 1))
        return bytes(said)

    def outlast(self, site: Site) -> Callable[[], None]:
        """Have hosts start for this person until the answer is called, also when they have left."""
        return self._pool.people.outlast(site.identity, site.stream)

    async def met(self, identity: hostcalls.Identity) -> None:
        """Have hosts start with this person's powers, also when they have left, who is there now."""
        await self._pool.people.met(identity)

    async def follow(self, words: Iterable[str], site: Site) -> None:
        """Have hosts of whoever has one of these hooks, where they can only follow the caller now: it may be
        gone when there is something to tell."""
        if not site.identity.is_elsewhere:
            return
        for plugin in dict.fromkeys(one for word in words for one in self.of(word)):
            with contextlib.suppress(Fault):  # which is said when something is not told
                self._pool.release(await self._turnstile.host_of(plugin, site.identity, site.stream))


async def _pass(*_: frames.Frame) -> None:
    """Drops frames beside the answer: they are for nobody."""
