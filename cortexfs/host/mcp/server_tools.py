"""An MCP server itself as tools: `SERVER.mcp` for the protocol's requests, `SERVER.read_resource` for models.

Rules: neither calls a tool of the server's, as each of these is an object with a policy of its own. The
requests of a session's client are answered in its session, unchanged.
This file must never know how a server is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import (
    ANSWER,
    CALL,
    GREETING,
    LIST,
    LISTEN,
    METHODS,
    NAME_KEY,
    OBJECT,
    ServerAnswer,
)
from cortexfs.host.mcp import answers

if TYPE_CHECKING:
    from cortexfs.host.mcp.connection import Link
    from cortexfs.host.mcp.keeper import Keeper

T = TypeVar("T")
SECONDS = 604_800  # a week: a listener stays as long as its client
MAX_LISTED = 1000  # resources
MAX_PAGES = 100
_TOOLS = "call its tools by their own objects, as in: ls /ctx/tool"
_ALONE = "this method works only in a session, as in ctx mcp serve"
# Their settings belong to a connection, and the calls of a host share one.
_OF_SESSIONS = (LISTEN, ANSWER, "resources/subscribe", "resources/unsubscribe", "logging/setLevel")
_PARAMS = {"type": "object", "description": "The parameters of the method."}


def call_tool(keeper: Keeper, name: str, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
    """Call a tool in a session. The output is the whole answer; a failed answer's texts are the error."""
    result = answer_of(keeper, runtime, lambda link: link.call(name, input, runtime))
    runtime.emit(_as_json(result.model_dump(by_alias=True, mode="json", exclude_none=True)))
    return sdk.ToolResult(answers.texts_of(result) if result.is_error else "", (), result.is_error)


def answer_of(keeper: Keeper, runtime: sdk.ToolRuntime, ask: Callable[[Link], T]) -> T:
    """Returns the server's answer. In a session, an error of the server's is output, too."""
    try:
        answer = ask(keeper.link(runtime.emit_progress))
    except answers.ServerSays as error:
        if keeper.session is not None:
            runtime.emit(msgspec.json.encode(ServerAnswer(error=error.details)).decode())
        raise
    keeper.worked()
    return answer


def _as_json(answer: dict[str, Any]) -> str:
    return msgspec.json.encode(ServerAnswer(answer)).decode()


def of_server(keeper: Keeper) -> Iterator[sdk.Tool]:
    yield ServerTool(keeper)
    if keeper.link().agreed.capabilities.resources is not None:
        yield ResourceTool(keeper)


def _capabilities(server: str) -> sdk.ToolCapabilities:
    effects = (sdk.ToolEffect(sdk.ToolEffectKind.NETWORK_REQUEST, f"MCP server {server}"),)
    return sdk.ToolCapabilities(emits_observer_text=True, effects=effects)


class ServerTool(sdk.Tool):
    def __init__(self, keeper: Keeper) -> None:
        server = keeper.target.name
        self._keeper = keeper
        self.name = f"{server}.{OBJECT}"
        self.description = (
            f"Asks the MCP server {server} for its resources, prompts and completions. "
            'For people and programs: prompts/list, or prompts/get --params \'{"name": "..."}\'.'
        )
        methods = [GREETING, *METHODS]
        method_schema = {"type": "string", "description": f"One of: {', '.join(methods)}."}
        self.input_schema = {
            "type": "object",
            "properties": {"method": method_schema, "params": _PARAMS},
            "required": ["method"],
        }
        if listed := keeper.link().prompts:
            self.input_schema["prompts"] = msgspec.to_builtins(listed)
        self.timeout_secs = SECONDS
        self.capabilities = _capabilities(server)

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        method, params = input["method"], input.get("params", {})
        keeper = self._keeper.of(runtime)
        if keeper.session is None and method in _OF_SESSIONS:
            raise Fault("EINVAL", _ALONE)
        if method in (LISTEN, ANSWER):
            return self._of_session(keeper, method, params, runtime)
        if method == CALL:
            raise Fault("EINVAL", _TOOLS)
        if method == GREETING:
            answer = keeper.link().agreed.model_dump(by_alias=True, mode="json", exclude_none=True)
        elif method not in METHODS:
            raise Fault("EINVAL", f"method: {method!r} is not one of {', '.join((GREETING, *METHODS))}")
        else:
            answer = answer_of(keeper, runtime, lambda link: link.request(method, params, runtime))
            if method == LIST:
                self._mark(answer)
        return sdk.ToolResult(_as_json(answer) if keeper.session else msgspec.json.encode(answer).decode())

    def _mark(self, answer: dict[str, Any]) -> None:
        """Name the object of each tool in a list of tools. Tools that are no objects are left out."""
        known = self._keeper.names
        answer["tools"] = [tool for tool in answer.get("tools", []) if tool.get("name") in known]
        for tool in answer["tools"]:
            tool["_meta"] = {**tool.get("_meta", {}), NAME_KEY: known[tool["name"]]}

    def _of_session(
        self, keeper: Keeper, method: str, params: dict[str, Any], runtime: sdk.ToolRuntime
    ) -> sdk.ToolResult:
        link = keeper.link()
        if method == ANSWER:
            try:
                link.asking.answer(params["id"], msgspec.convert(params, ServerAnswer))
            except (KeyError, msgspec.ValidationError) as error:
                raise Fault("EINVAL", f"an answer needs an id, and a result or an error: {error}") from None
            return sdk.ToolResult("")
        try:
            link.listen(runtime)
        finally:
            self._keeper.leave(keeper)
        raise Fault("EHOSTDOWN", f"the MCP server {keeper.target.name} has ended the connection")


class ResourceTool(sdk.Tool):
    def __init__(self, keeper: Keeper) -> None:
        server = keeper.target.name
        self._keeper = keeper
        self.name = f"{server}.read_resource"
        self.description = (
            f"Reads a resource of the MCP server {server} by its URI. Without a URI, lists the resources "
            "and the templates of URIs."
        )
        uri = {"type": "string", "description": "A listed URI, or a URI made from a template."}
        self.input_schema = {"type": "object", "properties": {"uri": uri}}
        self.timeout_secs = keeper.target.timeout
        self.capabilities = _capabilities(server)

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        keeper = self._keeper.of(runtime)
        link = keeper.link(runtime.emit_progress)
        if uri := input.get("uri"):
            answer = link.request("resources/read", {"uri": uri}, runtime)
            keeper.worked()
            return answers.of_resource(answer, runtime)
        found = {kind: _entries(link, kind, runtime) for kind in _LISTS}
        keeper.worked()
        return sdk.ToolResult(msgspec.json.encode(found).decode())


_LISTS = {"resources": "resources/list", "resourceTemplates": "resources/templates/list"}


def _entries(link: Link, kind: str, runtime: sdk.ToolRuntime) -> list[Any]:
    """Returns all pages of a list, up to MAX_LISTED."""
    found: list[Any] = []
    cursor: dict[str, Any] = {}
    for _ in range(MAX_PAGES):
        try:
            page = link.request(_LISTS[kind], cursor, runtime)
        except answers.ServerSays:
            if kind == "resources" or found:
                raise
            return []  # a server may have no templates, and then not know the method
        found += page.get(kind, [])
        if not page.get("nextCursor") or len(found) >= MAX_LISTED:
            break
        cursor = {"cursor": page["nextCursor"]}
    return found[:MAX_LISTED]
