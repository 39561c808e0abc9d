"""The tools that a caller may run, a line for each (core/tree/metadata.py): the output of `.allowed`.

Rules: a person may run every tool that exists for that person. A caller under a label sees only the tools
that the policies of its agents allow. Lines about everybody's tools are made once for each registry. Many
decisions for one caller do not keep other callers waiting.
This file must never know how the lines are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import trio
from msgspec.structs import replace

from cortexfs.agents.permissions import Powers, is_agents
from cortexfs.agents.ports import AgentPorts
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Object, Registry
from cortexfs.core.tree import metadata
from cortexfs.daemon.confined import is_allowed, patterns_of

IN_A_ROW = 50  # decisions of some 50 us each, before other tasks get a turn


class AllowedTools:
    def __init__(self, world: AgentPorts, registry: Callable[[], Registry]) -> None:
        self._world = world
        self._registry = registry
        self._lines_of_all: tuple[Registry, bytes] | None = None

    async def answer(self, identity: Identity, patterns: Sequence[bytes] = ()) -> bytes:
        """Returns the lines. With patterns, only of tools that a script may run for the caller's client."""
        registry = self._registry()
        if patterns and not identity.label and identity.script is None:
            identity = replace(identity, script=patterns_of(patterns))
        if not identity.label and identity.script is None:
            if self._lines_of_all is None or self._lines_of_all[0] is not registry:
                self._lines_of_all = registry, await _lines(_tools(registry, None))
            return self._lines_of_all[1] + await _lines(_tools(registry, identity.uid))
        tools = (*_tools(registry, None), *_tools(registry, identity.uid))
        if not identity.label:
            return await _lines(tools, partial(is_allowed, identity))
        if not is_agents(identity.label):
            return b""
        return await _lines(Powers(self._world, identity.label, identity.uid).runnable(tools, identity))


async def _lines(tools: Iterable[Object], is_told: Callable[[Object], bool] = lambda tool: True) -> bytes:
    lines = []
    for number, tool in enumerate(tools, 1):
        if is_told(tool):
            lines.append(metadata.row(tool))
        if not number % IN_A_ROW:
            await trio.lowlevel.checkpoint()
    return "".join(lines).encode()


def _tools(registry: Registry, home: int | None) -> Iterator[Object]:
    """Yields the tools in the home of a user; for None, everybody's tools."""
    return (object_ for object_ in registry if object_.class_ == "tool" and object_.home == home)
