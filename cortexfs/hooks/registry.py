"""The plugins that have hooks, and the call of a hook: in the plugin's host, as the caller of the tool.

    hooks.apply(plugins)                all served plugins, in the order of enabling
    hooks.of("middleware:pre")          the plugins with this hook, in that order
    await hooks.call(plugin, name, site, data)

Main path: middleware.py asks plugins about calls of tools, events.py sends events; both use `call`.

Rules: without hooks, the only cost is the look-up by `of`. A plugin acts as the caller, in the caller's host
and under the same confinement; the daemon never acts for a plugin. Answers are bounded.
This file must never know the questions to plugins.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import HOOK_SECONDS, LOAD_SECONDS, MAX_SHOWN, POST, PRE, TOOL_EVENTS, Failure
from cortexfs.pool.call import HostCall
from cortexfs.pool.pool import Pool

# The host ends a hook 5 s after the plugin has loaded. This limit is for a host that fails to.
SECONDS = LOAD_SECONDS + HOOK_SECONDS + 1
UMASK = 0o077
_MAX_ANSWER = 2 * MAX_SHOWN  # a changed input with its envelope


class Site(NamedTuple):
    """The run that a hook is about: its identity, its directory and its names."""

    identity: hostcalls.Identity
    session: str = ""
    turn: str = ""
    directory: str = "/"  # counts if `cwd` is None
    cwd: int | None = None
    stream: socket.socket | None = None  # the caller's connection, if a host has to start
    umask: int = UMASK
    call: str = ""  # the id of the call in an agent's run


class Hooks:
    def __init__(self, pool: Pool, failure: Failure = "closed") -> None:
        self.failure = failure
        self.plugins: tuple[hostcalls.Plugin, ...] = ()
        self.words: frozenset[str] = frozenset()  # of all plugins
        self.of_tools = False  # whether any hook is about calls of tools
        self.people = pool.people
        self._pool = pool
        self._by_word: dict[str, tuple[hostcalls.Plugin, ...]] = {}

    def apply(self, plugins: Iterable[hostcalls.Plugin]) -> None:
        """Use these plugins from now on. Calls under way go on."""
        self.plugins = tuple(plugin for plugin in plugins if plugin.hooks)
        self.words = words = frozenset(word for plugin in self.plugins for word in plugin.hooks)
        self._by_word = {word: tuple(each for each in self.plugins if word in each.hooks) for word in words}
        self.of_tools = not words.isdisjoint((PRE, POST, *TOOL_EVENTS))

    def of(self, word: str) -> tuple[hostcalls.Plugin, ...]:
        return self._by_word.get(word, ())

    async def call(self, plugin: hostcalls.Plugin, name: str, site: Site, data: bytes) -> bytes:
        """Call a hidden tool of the plugin. Returns its answer, or raises its Fault."""
        invocation = hostcalls.Invocation(name, site.session or None, str(site.identity.uid), "hook")
        cwd, directory = site.cwd, site.directory
        if cwd is not None:
            enclosed = hostcalls.is_enclosed(plugin, site.identity)
            cwd, directory = (None, os.readlink(f"/proc/self/fd/{cwd}")) if enclosed else (cwd, "")
        request = hostcalls.CallRequest(site.turn, invocation, None, data, site.umask, {}, directory)
        answer = bytearray()

        def hear(kind: int, payload: bytes) -> None:
            """Raises one of call.GARBAGE, which ends the call."""
            if kind == wire.DELTA:
                answer.extend(payload)
                if len(answer) > _MAX_ANSWER:
                    raise Fault("EFBIG", f"its answer is over {_MAX_ANSWER >> 10} KiB")

        call = HostCall(hear, _pass)
        find = partial(self._pool.acquire_for, plugin, site.identity, site.stream)
        await call.run(self._pool, find, request, SECONDS, cwd)
        if call.fault is not None:
            raise Fault(call.fault.code, call.fault.message.replace("the tool", "the plugin", 1))
        return bytes(answer)

    async def follow(self, words: Iterable[str], site: Site) -> None:
        """Start the hosts of plugins with these hooks now if the caller is in a container: the caller may be
        gone when an event comes, and a host could not follow it then."""
        if not site.identity.is_elsewhere:
            return
        for plugin in dict.fromkeys(each for word in words for each in self.of(word)):
            with contextlib.suppress(Fault):  # reported when an event is not delivered
                self._pool.release(await self._pool.acquire_for(plugin, site.identity, site.stream))


async def _pass(*_: frames.Frame) -> None:
    """Drop a frame: only the answer counts."""
