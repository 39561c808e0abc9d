"""The tools of a run: those that its agent has, each as it is at the moment.

    tools = Toolbox(world, names, hidden)
    tools.now(name)            a tool, or None if the agent does not have it (any more)
    tools.offers()             their descriptions for the model

The model is not told of the `hidden` tools. If it calls one all the same, the call is decided about like any
other, so that the refusal names the line and the mount table.

Rules: the names are fixed when a run begins, and each tool is looked up when it is called. A plugin can be
disabled or replaced meanwhile, and a permission for the former tool does not hold for the new one.
This file must never know which calls are made, or which are allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

import msgspec

from cortexfs.agents.ports import AgentPorts
from cortexfs.core.arguments import dryrun
from cortexfs.core.hostcalls import Effect, Plugin
from cortexfs.core.registry import Object
from cortexfs.models.ask.question import ToolOffer

# The tool that a permission is for: of this name, from this plugin, with these effects.
Meaning: TypeAlias = tuple[str, Plugin | None, tuple[Effect, ...]]


class Toolbox:
    def __init__(
        self,
        world: AgentPorts,
        names: Collection[str],
        hidden: Collection[str] = (),
        uid: int | None = None,
    ) -> None:
        self._world = world
        self._uid = uid  # of the person for whom the run is
        self._names = dict.fromkeys(names)
        self._hidden = hidden

    def __iter__(self) -> Iterator[Object]:
        found = (self.now(name) for name in self._names if name not in self._hidden)
        return (tool for tool in found if tool is not None and not tool.status.startswith("broken"))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self)

    def now(self, name: str) -> Object | None:
        return self._world.find("tool", name, self._uid) if name in self._names else None

    def offers(self) -> list[ToolOffer]:
        return [ToolOffer(tool.name, tool.description, _schema(tool)) for tool in self]


def _schema(tool: Object) -> dict[str, Any]:
    schema = schema_of(tool)
    return dryrun.shown(schema) if tool.dry_run_flag else schema


def schema_of(tool: Object) -> dict[str, Any]:
    schema: dict[str, Any] = msgspec.json.decode(tool.schema)
    return schema


def meaning(tool: Object) -> Meaning:
    return tool.name, tool.plugin, tool.capabilities.effects
