"""An MCP server with all that the official conformance suite asks for, by the official SDK, over stdio.

The suite's scenarios state its names and answers. The product knows none of them.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

Context = ServerRequestContext[Any, Any]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
TEXT: dict[str, Any] = {"type": "string"}


def text(said: str) -> types.TextContent:
    return types.TextContent(text=said)


def embedded(uri: str, mime: str, said: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime, text=said))


PICTURE = types.ImageContent(data=PIXEL, mime_type="image/png")
MIXED = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
FIXED: dict[str, list[types.ContentBlock]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [PICTURE],
    "test_audio_content": [types.AudioContent(data=SOUND, mime_type="audio/wav")],
    "test_embedded_resource": [embedded("test://embedded-resource", "text/plain", "An embedded resource.")],
    "test_multiple_content_types": [text("Multiple content types test:"), PICTURE, MIXED],
    "test_link": [types.ResourceLink(uri="test://static-text", name="static")],
    "json_schema_2020_12_tool": [text("It is the schema that counts.")],
}


async def elicited(context: Context, message: str, properties: dict[str, Any]) -> list[types.ContentBlock]:
    schema = {"type": "object", "properties": properties, "required": []}
    said = await context.session.elicit_form(message, schema, context.request_id)
    return [text(f"Elicitation completed: action={said.action}, content={json.dumps(said.content)}")]


async def fails(context: Context, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    raise ValueError("This tool intentionally returns an error for testing")


async def logs(context: Context, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        params = types.LoggingMessageNotificationParams(level="info", data=said)
        await context.session.send_notification(
            types.LoggingMessageNotification(params=params), context.request_id
        )
    return [text("logged")]


async def progresses(context: Context, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    for done in (0, 50, 100):
        await context.session.report_progress(done, 100)
    return [text("progressed")]


async def samples(context: Context, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    asked = types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(
            messages=[types.SamplingMessage(role="user", content=text(arguments["prompt"]))], max_tokens=100
        )
    )
    said = await context.session.send_request(asked, types.CreateMessageResult)
    assert isinstance(said.content, types.TextContent)
    return [text(f"LLM response: {said.content.text}")]


async def asks(context: Context, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    return await elicited(context, arguments["message"], {"username": TEXT, "email": TEXT})


async def asks_with_defaults(context: Context, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    return await elicited(context, "Please review", {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    })  # fmt: skip


async def asks_with_choices(context: Context, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    plain = ["option1", "option2", "option3"]
    titled = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]
    old = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}
    return await elicited(context, "Please choose", {
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", **old},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    })  # fmt: skip


async def asks_to_open(context: Context, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    said = await context.session.elicit_url("Please log in", arguments["url"], "e1", context.request_id)
    return [text(f"Elicitation completed: action={said.action}")]


Made = Callable[[Context, dict[str, Any]], Awaitable[list[types.ContentBlock]]]
MADE: dict[str, tuple[Made, dict[str, Any]]] = {
    "test_error_handling": (fails, {}),
    "test_tool_with_logging": (logs, {}),
    "test_tool_with_progress": (progresses, {}),
    "test_sampling": (samples, {"prompt": TEXT}),
    "test_elicitation": (asks, {"message": TEXT}),
    "test_elicitation_sep1034_defaults": (asks_with_defaults, {}),
    "test_elicitation_sep1330_enums": (asks_with_choices, {}),
    "test_elicitation_url": (asks_to_open, {"url": TEXT}),
}
SCHEMA_2020: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": TEXT, "city": TEXT}}},
    "properties": {"name": TEXT, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
    schemas: dict[str, dict[str, Any]] = {name: {"type": "object"} for name in FIXED}
    schemas["json_schema_2020_12_tool"] = SCHEMA_2020
    for name, (_, properties) in MADE.items():
        schemas[name] = {"type": "object", "properties": properties, "required": [*properties]}
    tools = [
        types.Tool(name=name, description=f"Does {name}.", input_schema=schemas[name]) for name in schemas
    ]
    return types.ListToolsResult(tools=tools)


async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    if params.name in FIXED:
        return types.CallToolResult(content=FIXED[params.name])
    try:
        return types.CallToolResult(content=await MADE[params.name][0](context, params.arguments or {}))
    except (ValueError, MCPError) as error:
        return types.CallToolResult(content=[text(str(error))], is_error=True)


RESOURCES: dict[str, types.TextResourceContents | types.BlobResourceContents] = {
    "test://static-text": types.TextResourceContents(
        uri="test://static-text",
        mime_type="text/plain",
        text="This is the text of the static resource.",
    ),
    "test://static-binary": types.BlobResourceContents(
        uri="test://static-binary", mime_type="image/png", blob=PIXEL
    ),
    "test://watched-resource": types.TextResourceContents(
        uri="test://watched-resource", mime_type="text/plain", text="watched"
    ),
}


async def list_resources(context: Context, params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[
            types.Resource(name=uri[7:], uri=uri, mime_type=one.mime_type, description=f"Holds {uri[7:]}.")
            for uri, one in RESOURCES.items()
        ]
    )


async def list_templates(context: Context, params: Any) -> types.ListResourceTemplatesResult:
    one = types.ResourceTemplate(
        name="template", uri_template="test://template/{id}/data", mime_type="application/json"
    )
    return types.ListResourceTemplatesResult(resource_templates=[one])


async def read_resource(
    context: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    uri = str(params.uri)
    if uri in RESOURCES:
        return types.ReadResourceResult(contents=[RESOURCES[uri]])
    if not uri.startswith("test://template/"):
        raise MCPError(-32002, f"there is no {uri}")
    number = uri.split("/")[3]
    said = json.dumps({"id": number, "templateTest": True, "data": f"Data for ID: {number}"})
    one = types.TextResourceContents(uri=uri, mime_type="application/json", text=said)
    return types.ReadResourceResult(contents=[one])


async def subscribe(context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
    await context.session.send_resource_updated(params.uri)
    return types.EmptyResult()


async def unsubscribe(context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
}


async def list_prompts(context: Context, params: Any) -> types.ListPromptsResult:
    made = [
        types.Prompt(
            name=name,
            description=f"Says {name}.",
            arguments=[types.PromptArgument(name=each, description=each, required=True) for each in wanted],
        )
        for name, wanted in PROMPTS.items()
    ]
    return types.ListPromptsResult(prompts=made)


async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    given = params.arguments or {}
    said: list[types.ContentBlock]
    match params.name:
        case "test_simple_prompt":
            said = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            said = [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            inside = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            said = [inside, text("Please process the embedded resource above.")]
        case _:
            said = [PICTURE, text("Please analyze the image above.")]
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=each) for each in said])


async def complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    words = [word for word in ("paris", "park", "party", "test") if word.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=words, total=len(words), has_more=False))


async def set_level(context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def main() -> None:
    server: Server[Any] = Server(
        "conforming",
        version="1.0.0",
        title="A conforming server",
        instructions="Ask for what the suite asks for.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    options = server.create_initialization_options()
    options.capabilities.tasks = types.ServerTasksCapability(list=types.TasksListCapability())
    async with stdio_server() as (read, write):
        await server.run(read, write, options)


anyio.run(main)
