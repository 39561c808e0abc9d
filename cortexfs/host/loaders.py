"""A plugin's tools, whatever its kind, and their descriptors for the daemon.

Rules: a plugin's faults are its own: each error in here says which plugin is broken and why. All kinds become
tools of the SDK, so that a host describes, checks and runs them alike.
This file must never know what a call is.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.mcp_server import KIND as MCP_SERVER
from cortexfs.host.call import bugs, wrong_tool
from cortexfs.host.call.runtime import ToolCancelled, sentence
from cortexfs.host.call.validation import Validator
from cortexfs.host.call.wrong_tool import WrongTool
from cortexfs.host.esm import tools
from cortexfs.host.mcp import manifest_rpc
from cortexfs.host.mcp import tools as mcptools
from cortexfs.host.native import library
from cortexfs.host.net import exchange
from cortexfs.host.process import jsonl, one_shot, script
from cortexfs.host.wasm import tools as wasm


def loaded(
    plugin: hostcalls.Plugin, environment: Mapping[bytes, bytes] | None = None
) -> dict[str, tuple[sdk.Tool, Validator]]:
    """Returns the plugin's tools by name. Of two with one name the later counts. `environment` is the first
    call's; it is every call's if hosts are chosen by it (hostcalls.of_call)."""
    try:
        if plugin.kind == hostcalls.NATIVE and environment is not None:
            os.environb.clear()
            os.environb.update(environment)
        load = _LOADERS[plugin.kind]
        return {tool.name: (tool, Validator(tool.input_schema)) for tool in load(plugin)}
    except (Fault, ToolCancelled):
        raise
    except BaseException as error:  # a plugin's code may raise anything, SystemExit too; it is its fault
        why = f"{sentence(error)}{bugs.log_bug(plugin, error)}"
        own = plugin.target.partition(":")[0]
        if plugin.path and isinstance(error, ModuleNotFoundError) and error.name != own:
            why += "; put its package beside the plugin's modules: pip install --target lib PACKAGE"
        raise Fault("EPROTO", f"the plugin {plugin.name} does not load: {why}") from None


def _python(plugin: hostcalls.Plugin) -> Iterable[sdk.Tool]:
    if plugin.path and plugin.path not in sys.path:
        sys.path.insert(0, plugin.path)
    module, _, attribute = plugin.target.partition(":")
    target: Any = importlib.import_module(module)
    own = os.path.join(plugin.path, module.partition(".")[0])
    there = getattr(target, "__file__", None) or "a part of Python"
    if plugin.path and _has_module(own) and not there.startswith(own):
        raise ImportError(f"the module {module} is {there}; give the plugin's module another name")
    for part in filter(None, attribute.split(".")):
        target = getattr(target, part)
    info, found = sdk.tools_of(target)
    if info:
        library.compare(plugin, info)
    return found


def _has_module(path: str) -> bool:
    return os.path.isfile(f"{path}.py") or os.path.isdir(path)


def _programs(plugin: hostcalls.Plugin) -> Iterable[sdk.Tool]:
    declared = targets.declared(plugin, targets.Programs)
    if declared.protocol == "argv":
        return script.tools(declared.tools)
    if declared.protocol == "jsonl":
        companions = jsonl.Companions()
        return [jsonl.StreamingTool(program, companions) for program in declared.tools]
    return [one_shot.ProcessTool(program) for program in declared.tools]


# Names that begin so are for the daemon alone: no tool has one. Only commands among them are described.
HIDDEN = ":"

_LOADERS: Mapping[str, Callable[[hostcalls.Plugin], Iterable[sdk.Tool]]] = {
    "python": _python,
    targets.PROCESS: _programs,
    targets.NATIVE: library.tools,
    targets.WASM: wasm.tools,
    targets.ESM: tools.tools,
    MCP_SERVER: mcptools.tools,
    targets.RPC: manifest_rpc.tools,
    hostcalls.EXCHANGE: lambda plugin: [exchange.ProviderExchange()],
}


def begin(plugin: hostcalls.Plugin, tell: Callable[[str], object]) -> None:
    """Wait for slow preparations before the tools can be loaded. `tell` receives their progress."""
    if plugin.kind == MCP_SERVER:
        mcptools.greeted(plugin, tell)


def has_changed(plugin: hostcalls.Plugin) -> bool:
    return mcptools.has_changed(plugin) if plugin.kind == MCP_SERVER else script.has_changed()


def reset(plugin: hostcalls.Plugin) -> None:
    """Have the loaded plugin go on with the settings in `plugin`."""
    (mcptools if plugin.kind == MCP_SERVER else tools).reset(plugin)


def news(tool: sdk.Tool) -> str:
    """Returns a script's comment if it differs from the one that the daemon knows; else ""."""
    return tool.news if isinstance(tool, script.ScriptTool) else ""


def await_change(plugin: hostcalls.Plugin, runtime: sdk.ToolRuntime) -> None:
    """Wait until the tools change; may return earlier."""
    if plugin.kind != MCP_SERVER:
        raise Fault("EINVAL", f"the plugin {plugin.name} is not an MCP server, so its tools do not change")
    mcptools.await_change(plugin, runtime)


def is_described(tool: sdk.Tool) -> bool:
    return not tool.name.startswith(HIDDEN) or "command" in tool.facts()


def described(tool: sdk.Tool) -> bytes:
    try:
        if why := wrong_tool.schema_fault(tool):
            tool = WrongTool(tool.name, why)
        data = msgspec.json.encode(sdk.descriptor(tool))
        msgspec.json.decode(data, type=hostcalls.Descriptor)  # so that its fault is no other tool's
        return data
    except Exception as error:  # a schema may hold anything
        why = f"it cannot be described: {sentence(error)}"
        return msgspec.json.encode(sdk.descriptor(WrongTool(tool.name, why)))


_leaving = threading.Lock()


def leave() -> NoReturn:
    """End this host in good order: the daemon needs it no more."""
    with _leaving:  # a second caller waits for the first
        try:
            library.drop_all()
            wasm.drop_all()
            tools.drop_all()
            mcptools.drop_all()
        finally:
            os._exit(os.EX_OK)
