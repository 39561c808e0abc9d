"""An MCP server for tests that asks its client for a model's answer, its roots, and its capabilities."""

from __future__ import annotations

import json
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

Context = ServerRequestContext[Any, Any]
SCHEMA: dict[str, Any] = {"type": "object"}
TOOLS = ("sample", "roots", "declared")


async def sampled(context: Context, prompt: str, hint: str = "", tokens: int = 100) -> str:
    preferences = types.ModelPreferences(hints=[types.ModelHint(name=hint)]) if hint else None
    asked = types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(
            messages=[types.SamplingMessage(role="user", content=types.TextContent(text=prompt))],
            system_prompt="You are a server's model.",
            model_preferences=preferences,
            max_tokens=tokens,
        )
    )
    said = await context.session.send_request(asked, types.CreateMessageResult)
    assert isinstance(said.content, types.TextContent)
    return f"{said.model} says: {said.content.text}"


async def sample(context: Context, given: dict[str, Any]) -> str:
    """Ask `times` times. Returns the last answer, or a refusal with the number of answers before it."""
    prompt = given.get("prompt", "x") * given.get("size", 1)
    text = ""
    for found in range(given.get("times", 1)):
        try:
            text = await sampled(context, prompt, given.get("hint", ""), given.get("tokens", 100))
        except MCPError as refused:
            return f"refused after {found}: {refused.error.message}"
    return text


async def call(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    given = params.arguments or {}
    if params.name == "sample":
        text = await sample(context, given)
    elif params.name == "roots":
        try:
            said = await context.session.send_request(types.ListRootsRequest(), types.ListRootsResult)
            text = json.dumps([str(one.uri) for one in said.roots])
        except MCPError as refused:
            text = f"refused: {refused.error.message}"
    else:
        told = context.session.client_params
        assert told is not None
        text = told.capabilities.model_dump_json(by_alias=True, exclude_none=True)
    return types.CallToolResult(content=[types.TextContent(text=text)])


async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=SCHEMA) for name in TOOLS])


async def main() -> None:
    server: Server[Any] = Server("asking", on_list_tools=list_tools, on_call_tool=call)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
