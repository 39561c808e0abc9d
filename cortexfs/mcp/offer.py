"""The tools of a mount that MCP clients are offered, as the mount's files describe them.

Rules: every tool that this process may list and execute is offered if the patterns allow it. Nothing is read
that another program of this user could not read. The object of an MCP server itself (core/mcp_session.py) is
no tool for a model, and is offered only if a pattern is its name. A tool's files are read again when its
times have changed. While the mount does not answer, the former tools stay on offer.
This file must never know sessions or transports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from mcp_types import Tool, ToolAnnotations

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Effect
from cortexfs.core.mcp_session import OBJECT
from cortexfs.core.policy.risk import effects_of
from cortexfs.models.formats.format import sent
from cortexfs.sdk import ToolEffectKind

# Kinds that change nothing, and kinds that stay on this machine. Unknown kinds are in neither.
READING = {kind.value for kind in ToolEffectKind if not kind.is_mutating}
STAYING = {
    ToolEffectKind.READ_FILE,
    ToolEffectKind.READ_SECRET,
    ToolEffectKind.WRITE_FILE,
    ToolEffectKind.DELETE_FILE,
    ToolEffectKind.PERSIST_MEMORY,
    ToolEffectKind.SCHEDULE_TASK,
    ToolEffectKind.INTROSPECT_RUNTIME,
}
PAGE = 200  # tools in one answer, some hundred KiB of schemas

Paths: TypeAlias = Callable[[], Iterable[str]]
Mark: TypeAlias = tuple[int, int]


class McpTool(NamedTuple):
    path: str
    mark: Mark
    tool: Tool


class McpOffer:
    """The tools by the names that clients use, which are in the alphabet that models accept."""

    def __init__(self, paths: Paths, patterns: Sequence[str] = ()) -> None:
        self._paths = paths
        self._patterns = patterns
        self._known: dict[str, McpTool] = {}
        self._by_name: dict[str, McpTool] = {}

    def renew(self) -> bool:
        """Read the mount again. Returns True if clients see a change."""
        found: dict[str, McpTool] = {}
        try:
            for path in self._paths():
                name = os.path.basename(path)
                if name not in found and self._is_wanted(name) and (offered := self._look(name, path)):
                    found[name] = offered
        except OSError:
            return False
        before, self._known = self._known, dict(sorted(found.items()))
        self._by_name = {}
        names = sent(self._known)
        for name, entry in self._known.items():
            new = names.get(name, name)
            self._by_name[new] = entry._replace(tool=entry.tool.model_copy(update={"name": new}))
        return before != self._known

    def _is_wanted(self, name: str) -> bool:
        if name.endswith(f".{OBJECT}"):
            return name in self._patterns
        return not self._patterns or any(fnmatchcase(name, each) for each in self._patterns)

    def page(self, after: str | None) -> tuple[list[Tool], str | None]:
        """Returns a page of tools and the next cursor, which is the last name of the page."""
        names = sorted(name for name in self._by_name if after is None or name > after)
        tools = [self._by_name[name].tool for name in names[:PAGE]]
        return tools, names[PAGE - 1] if len(names) > PAGE else None

    def path(self, name: str) -> str | None:
        """Returns the path of a tool by a client's name for it, or by its own name."""
        offered = self._by_name.get(name) or self._known.get(name)
        return offered.path if offered else None

    @property
    def unmet(self) -> list[str]:
        """The patterns that match no tool now."""
        return [each for each in self._patterns if not any(fnmatchcase(name, each) for name in self._known)]

    @property
    def is_bounded(self) -> bool:
        """Returns True if patterns limit the offer."""
        return bool(self._patterns)

    @property
    def paths(self) -> list[str]:
        return [entry.path for entry in self._known.values()]

    def _look(self, name: str, path: str) -> McpTool | None:
        """Returns None for a tool that this user may not run, or that has just gone."""
        try:
            status = os.stat(path)
            mark = (status.st_ino, status.st_mtime_ns)
            former = self._known.get(name)
            if former and (former.path, former.mark) == (path, mark):
                return former
            if not os.access(path, os.X_OK):
                return None
            return McpTool(path, mark, described(name, os.path.realpath(path)))
        except (OSError, ValueError, Fault):
            return None


def described(name: str, path: str) -> Tool:
    """Returns the tool at `path`, by its control files."""
    schema = json.loads(_control(path, "schema"))
    if schema.get("type") != "object":  # the protocol requires it; the input of a tool is always an object
        schema = {**schema, "type": "object"}
    return Tool(
        name=name,
        title=name,
        description=_control(path, "description").strip(),
        input_schema=schema,
        annotations=hints(effects_of(_control(path, "effects"))),
    )


def hints(effects: Sequence[Effect]) -> ToolAnnotations:
    """Returns the declared effects as the hints of MCP."""
    changing = [effect for effect in effects if effect.kind not in READING]
    undone = all(effect.reversibility == "reversible" for effect in changing)
    return ToolAnnotations(
        read_only_hint=not changing,
        destructive_hint=None if not changing else not undone,
        open_world_hint=any(effect.kind not in STAYING for effect in effects),
    )


def _control(path: str, name: str) -> str:
    with open(f"{path}.d/{name}", encoding="utf-8", errors="replace") as file:
        return file.read()
