"""Plugins of kind mcp of manifest.json: one tool that passes calls on to a JSON-RPC server by HTTP.

    POST <entryPoint>   {"jsonrpc":"2.0","id":1,"method":...,"params":{...}}

It is not the Model Context Protocol (tools.py is): there is no greeting, and no list of tools.

Rules: an answer counts if its status is 2xx, its id is the request's, and it has a result or an error.
Requests go only to the manifest's address, and no redirect is followed. A private address is refused unless
the manifest names this machine, or an administrator has granted it.
This file must never know how a call arrives, nor what a manifest looks like.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls, networks
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.targets import NETWORK, RpcEndpoint
from cortexfs.core.manifestjson import capabilities as permissions
from cortexfs.host.call.effects import effects_of
from cortexfs.host.net import fetch
from cortexfs.net import web

TOOL_SECONDS = 30
MAX_ANSWER = 16 << 20
_LOOPBACK = ("127.0.0.0/8", "::1/128")
_ID = 1  # as upstream's: each request has a connection of its own
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


class _Error(msgspec.Struct, frozen=True):
    message: str
    code: int = 0


class _Answer(msgspec.Struct, frozen=True):
    jsonrpc: str
    id: int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def tools(plugin: hostcalls.Plugin) -> Iterable[sdk.Tool]:
    return [RpcTool(plugin.name, targets.declared(plugin, RpcEndpoint))]


class RpcTool(sdk.Tool):
    timeout_secs = TOOL_SECONDS

    def __init__(self, plugin: str, endpoint: RpcEndpoint) -> None:
        self._plugin = plugin
        self._endpoint = endpoint
        self.name = f"mcp_{plugin}"
        self.description = endpoint.description or f"MCP plugin: {plugin}"
        self.input_schema = schema(endpoint.methods)
        effects = effects_of(permissions.effects(endpoint.capabilities))
        self.capabilities = sdk.ToolCapabilities(effects=effects)

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        if not set(NETWORK) & set(self._endpoint.capabilities):
            raise Fault("EACCES", f"{self._plugin} has none of the capabilities {' and '.join(NETWORK)}")
        wake: web.Wake = queue.SimpleQueue()
        runtime.on_cancel(lambda: wake.put(None))
        call = {"jsonrpc": "2.0", "id": _ID, "method": input["method"], "params": input.get("params", {})}
        request = web.WebRequest("POST", self._endpoint.url, _HEADERS, msgspec.json.encode(call))
        loopback = _LOOPBACK if networks.is_loopback(urlsplit(self._endpoint.url).hostname) else ()
        private = (*self._endpoint.private, *loopback)
        answer = fetch.fetch(request, private, wake, most=MAX_ANSWER + 1, redirects=0)
        if answer is None:
            raise sdk.ExecutionFailed("cancelled", "ECANCELED")
        return self._result(answer)

    def _result(self, answer: fetch.HttpAnswer) -> sdk.ToolResult:
        subject = f"the server of {self._plugin}"
        if not answer.reached:
            code = {403: "EACCES", 408: "ETIMEDOUT"}.get(answer.status, "EHOSTDOWN")
            why = answer.body.decode(errors="replace").removeprefix("host: ")
            raise sdk.ExecutionFailed(f"{subject}: {why}", code)
        if not 200 <= answer.status < 300:
            raise sdk.ExecutionFailed(f"{subject} answers HTTP {answer.status}", "EREMOTEIO")
        if len(answer.body) > MAX_ANSWER:
            raise sdk.ExecutionFailed(f"{subject} answered with over {MAX_ANSWER >> 20} MiB", "EMSGSIZE")
        try:
            reply = _decode(answer.body)
        except UNREADABLE as error:
            raise sdk.ExecutionFailed(f"{subject} does not answer in JSON-RPC: {error}", "EPROTO") from None
        if reply.jsonrpc != "2.0" or reply.id != _ID:
            raise sdk.ExecutionFailed(f"{subject} answered another request", "EPROTO")
        if reply.error is not None:
            return sdk.ToolResult.error(reply.error.message)
        if reply.result is msgspec.UNSET:
            raise sdk.ExecutionFailed(f"{subject} answered with neither a result nor an error", "EPROTO")
        return sdk.ToolResult.success(msgspec.json.format(bytes(reply.result), indent=-1).decode())


def schema(methods: tuple[str, ...]) -> dict[str, Any]:
    method: dict[str, Any] = {"type": "string", "description": "The method to call."}
    if methods:
        method["enum"] = list(methods)
    params = {"type": "object", "description": "Its parameters."}
    return {
        "type": "object",
        "properties": {"method": method, "params": params},
        "required": ["method"],
        "additionalProperties": False,
    }
