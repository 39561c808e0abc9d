"""The three tools of `ctx mcp serve --code`, in place of the mount's own tools: find, describe, run.

    code = CodeTools(root, patterns)
    code.tools                                  their definitions
    result = await code.call(name, arguments, progress)

Rules: a client learns of a tool when it asks for it, and of a result what its script prints. The daemon lists
the tools that this user may run, confines scripts (daemon/confined.py) and holds them to the same patterns:
no limit is enforced here. A name from a client is looked up, and never becomes a path.
This file must never know transports or sessions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from textwrap import shorten
from typing import Any

import msgspec
from mcp import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, Tool, ToolAnnotations

from cortexfs.client.results import Failed
from cortexfs.core import finding, frames
from cortexfs.core.finding import AllowedRow
from cortexfs.core.jsontext import nearest
from cortexfs.mcp.results import McpResult
from cortexfs.mcp.running import printed, run

RUNNER = "bin/cortexfs-object-runner"  # below the root, as are the next two, which it runs
ALLOWED, CONFINED = ".allowed", ".confined"
ALL = ("*",)
FOUND = 6  # tools in an answer of find: a model reads all of them
BRIEF = 100  # characters of a tool's description there
STATUSES = "\nexit status: "  # begins the last part of a tool's --help
MAX_DESCRIBED = 20  # in one request, as each takes a call

_TEXT = {"type": "string"}
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
TOOLS = (
    Tool(
        name="find",
        description="Find tools by words that say what they do. Prints the best names, with a sentence.",
        input_schema={"type": "object", "properties": {"words": _TEXT}, "required": ["words"]},
        annotations=_READS,
    ),
    Tool(
        name="describe",
        description="Print the arguments and effects of tools, by their names.",
        input_schema={
            "type": "object",
            "properties": {"names": {"type": "array", "items": _TEXT, "maxItems": MAX_DESCRIBED}},
            "required": ["names"],
        },
        annotations=_READS,
    ),
    Tool(
        name="run",
        description=(
            "Run a script with /bin/sh. Each tool is a program: $CTX_ROOT/tool/NAME --key value, or with JSON"
            " as its one argument or on standard input; it prints text. Pipe and loop, and print only what"
            " you need: you see what the script prints. Files for later go in $TMPDIR; there is no network."
        ),
        input_schema={
            "type": "object",
            "properties": {"script": _TEXT, "timeout_secs": {"type": "number"}},
            "required": ["script"],
        },
        annotations=ToolAnnotations(read_only_hint=False, open_world_hint=True),
    ),
)


class CodeTools:
    def __init__(self, root: str, patterns: Sequence[str] = ()) -> None:
        self._root = root
        self._patterns = patterns

    async def call(
        self, name: str, arguments: Mapping[str, Any], progress: Callable[[str], Awaitable[None]]
    ) -> CallToolResult:
        result = McpResult()
        try:
            match name, arguments:
                case "find", {"words": str(words)}:
                    result.add(frames.Delta(text=await self._found(words)))
                case "describe", {"names": [*names]}:
                    result.add(frames.Delta(text=await self._described(names[:MAX_DESCRIBED])))
                case "run", {"script": str(script), **more}:
                    confined = [f"{self._root}/{CONFINED}", *self._patterns]
                    limit = {key: value for key, value in more.items() if key == "timeout_secs"}
                    input_ = msgspec.json.encode({"cmd": script} | limit)
                    hear = partial(result.hear, progress=progress)
                    await run(f"{self._root}/{RUNNER}", input_, hear, arguments=confined)
                case _:
                    definition = next((tool for tool in TOOLS if tool.name == name), None)
                    if definition is None:
                        raise MCPError(
                            INVALID_PARAMS, f"there is no tool {name!r}: there are find, describe, run"
                        )
                    why = f"{name} takes {msgspec.json.encode(definition.input_schema).decode()}"
                    raise Failed("EINVAL", why)
        except Failed as failed:
            result.fail(failed)
        return result.whole()

    async def _rows(self) -> str:
        """Returns the lines about the tools that a script may run."""
        return await printed([f"{self._root}/{RUNNER}", f"{self._root}/{ALLOWED}", *(self._patterns or ALL)])

    async def _found(self, words: str) -> str:
        found = finding.best(await self._rows(), finding.words_of(words))[:FOUND]
        lines = [f"{self._name(row)}: {shorten(row.sentence, BRIEF, placeholder='...')}" for row in found]
        return "\n".join(lines) or "No tool matches these words; try others."

    def _name(self, row: AllowedRow) -> str:
        """Returns the name of a tool; the path of a user's own tool."""
        return row.name if row.object == f"tool/{row.name}" else f"$CTX_ROOT/{row.object}"

    async def _described(self, names: Sequence[Any]) -> str:
        rows = {row.name: row for row in finding.rows(await self._rows())}
        texts = []
        for name in dict.fromkeys(map(str, names)):
            if (row := rows.get(name.rpartition("/")[2])) is None:
                mend = nearest(name, rows) or "; ask find, with words for the task"
                texts.append(f"There is no tool {name[:100]!r}{mend}")
            else:
                help_text = await printed([f"{self._root}/{row.object}", "--help"])
                texts.append(help_text.partition(STATUSES)[0])
        return "\n".join(texts)
