"""The tools of an MCP server as tools of the SDK.

Main path: `tools` opens the connection that this host keeps (keeper.py). It makes a tool of each listed tool,
beside the tools that are the server itself (server_tools.py). A call goes to the open connection, or to a new
one.

Rules: a server's texts are bounded, and its names become names of the tree. A tool that cannot be one here is
left out, and the log says why.
This file must never know the protocol.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls, names
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import takes
from cortexfs.host.call.runtime import own_umask
from cortexfs.host.call.wrong_tool import WrongTool
from cortexfs.host.mcp import answers, server_tools
from cortexfs.host.mcp.keeper import Keeper, target_of

if TYPE_CHECKING:
    from mcp_types import Tool, ToolAnnotations

MAX_DESCRIPTION = 8 << 10  # characters; a model reads them all
MAX_SCHEMA = 128 << 10
_keepers: dict[str, Keeper] = {}
_keeping = threading.Lock()


class RemoteTool(sdk.Tool):
    def __init__(self, keeper: Keeper, tool: Tool, name: str) -> None:
        self._keeper = keeper
        self._remote = tool.name
        self.name = name
        words = (
            tool.description or tool.title or f"{tool.name} of the MCP server {keeper.target.name}"
        ).strip()
        self.description = words[:MAX_DESCRIPTION] or tool.name
        self.input_schema = tool.input_schema
        self.timeout_secs = keeper.target.timeout
        effects = (effect_of(keeper.target.name, tool.annotations),)
        self.capabilities = sdk.ToolCapabilities(emits_progress=True, effects=effects)

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        keeper = self._keeper.of(runtime)
        if keeper.session is not None:
            return server_tools.call_tool(keeper, self._remote, input, runtime)
        result = keeper.link(runtime.emit_progress).call(self._remote, input, runtime)
        keeper.worked()
        return answers.result_of(result, runtime)


def effect_of(server: str, hints: ToolAnnotations | None) -> sdk.ToolEffect:
    """Returns the effect that a tool's hints amount to. By the protocol a tool without hints may do
    anything."""
    reads = hints is not None and hints.read_only_hint is True
    is_open = hints is None or hints.open_world_hint is not False
    if reads:
        kind = sdk.ToolEffectKind.NETWORK_REQUEST if is_open else sdk.ToolEffectKind.READ_FILE
        return sdk.ToolEffect(kind, f"MCP server {server}")
    destroys = hints is None or hints.destructive_hint is not False
    reversibility = (
        sdk.EffectReversibility.IRREVERSIBLE if destroys else sdk.EffectReversibility.PARTIALLY_REVERSIBLE
    )
    return sdk.ToolEffect(sdk.ToolEffectKind.RUN_PROCESS, f"MCP server {server}", reversibility)


def _keeper(plugin: hostcalls.Plugin) -> Keeper:
    with _keeping:
        if plugin.name not in _keepers:
            _keepers[plugin.name] = Keeper(target_of(plugin), umask=own_umask())
        return _keepers[plugin.name]


def greeted(plugin: hostcalls.Plugin, tell: Callable[[str], object]) -> Keeper:
    """Returns the keeper of a server that has greeted. `tell` gets the server's earlier output."""
    keeper = _keeper(plugin)
    try:
        keeper.link(tell)
    except ModuleNotFoundError:
        why = "MCP servers need the extra mcp, which is not installed: pip install 'cortexfs[mcp]'"
        raise Fault("EHOSTDOWN", why) from None
    return keeper


def tools(plugin: hostcalls.Plugin) -> Iterable[sdk.Tool]:
    keeper = greeted(plugin, str)
    keeper.served = keeper.version
    return list(adapted(keeper))


def has_changed(plugin: hostcalls.Plugin) -> bool:
    keeper = _keepers.get(plugin.name)
    return keeper is not None and keeper.version != keeper.served


def await_change(plugin: hostcalls.Plugin, runtime: sdk.ToolRuntime) -> None:
    _keeper(plugin).await_change(runtime)


def adapted(keeper: Keeper) -> Iterable[sdk.Tool]:
    """Yields the server itself, and each of its tools that can be a tool here."""
    itself = list(server_tools.of_server(keeper))
    yield from itself
    used = {tool.name for tool in itself}
    keeper.names.clear()
    for tool in keeper.listed:
        if not takes(keeper.target.tools, tool.name):
            continue
        try:
            if len(msgspec.json.encode(tool.input_schema)) > MAX_SCHEMA:
                raise Fault("EMSGSIZE", f"its schema is over {MAX_SCHEMA >> 10} KiB")
            name = _free(f"{keeper.target.name}.{tool.name}", used)
        except Fault as fault:  # the others are tools all the same
            print(f"the MCP server {keeper.target.name}: {tool.name[:100]!r} is left out: {fault.message}")
            continue
        used.add(name)
        if tool.execution is not None and tool.execution.task_support == "required":
            yield WrongTool(name, "it runs only as a task, which CortexFS does not support")
            continue
        keeper.names[tool.name] = name
        yield RemoteTool(keeper, tool, name)


def _free(proposal: str, used: set[str]) -> str:
    """Returns a name of the tree that no other tool of the server has."""
    name = names.clean(proposal)
    number = 2
    while name in used:
        end = f"-{number}"
        name = names.clean(proposal)[: names.MAX_COMPONENT - len(end)] + end
        number += 1
    return name


def reset(plugin: hostcalls.Plugin) -> None:
    """Go on with another token."""
    _keeper(plugin).renew(target_of(plugin))


def drop_all() -> None:
    """Close the connections before the process ends."""
    for keeper in list(_keepers.values()):
        keeper.close()
