"""`ctx mcp call` and `ctx mcp inspect`: use an MCP server from a shell, added to the mount or not.

Rules: an added server is used through the mount, which decides. Any other server is a program of the user, or
an address. Standard output has the answer alone. The server's questions are asked on a terminal; with --yes,
their defaults are the answer.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cortexfs.cli import mounts, output, parser
from cortexfs.cli.mcp.mcp import check_extra
from cortexfs.core import forms
from cortexfs.core.arguments import parse
from cortexfs.core.errors import EXIT_OK, Fault, exit_status
from cortexfs.core.jsontext import nearest
from cortexfs.core.mcp_session import OBJECT
from cortexfs.core.safe_text import one_line

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, Tool

    from cortexfs.mcp.client import McpPlace

MAX_PAGES = 100
MAX_ABOUT = 100  # characters of a description in a list


def call(options: argparse.Namespace) -> int:
    check_extra()
    from cortexfs.mcp import client as mcpclient

    async def use(client: Client) -> CallToolResult:
        tools = {tool.name: tool for tool in await _tools(client)}
        if options.tool not in tools:
            hint = nearest(options.tool, tools) or "; see: ctx mcp inspect --help"
            raise Fault("ENOENT", f"{options.server} has no tool {options.tool!r}{hint}")
        words = [os.fsencode(word) for word in options.words]
        arguments = parse.tool_input(words, tools[options.tool].input_schema, _piped)

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            output.say(f"{message or ''} {progress:g}{f'/{total:g}' if total else ''}".strip())

        return await client.call_tool(options.tool, arguments, progress_callback=progress)

    result = mcpclient.used(_place(options), use, _asking(options.yes), output.say)
    if options.json:
        output.emit(result.model_dump(by_alias=True, mode="json", exclude_none=True))
    else:
        _show(result)
    return _status(result)


def inspect(options: argparse.Namespace) -> None:
    check_extra()
    from cortexfs.mcp import client as mcpclient

    async def use(client: Client) -> dict[str, Any]:
        info, can = client.session.server_info, client.session.server_capabilities
        found: dict[str, Any] = {
            "server": info.model_dump(exclude_none=True) if info else {},
            "protocol": client.protocol_version,
            "instructions": client.session.instructions,
            "tools": [_plain(tool) for tool in await _tools(client)],
        }
        if can and can.resources:
            found["resources"] = [_plain(item) for item in (await client.list_resources()).resources]
            templates = await client.list_resource_templates()
            found["templates"] = [_plain(item) for item in templates.resource_templates]
        if can and can.prompts:
            found["prompts"] = [_plain(item) for item in (await client.list_prompts()).prompts]
        return found

    options.server, *rest = options.command or [options.server]
    options.rest = rest
    found = mcpclient.used(_place(options), use, _asking(False), output.say)
    if options.json:
        output.emit(found)
    else:
        _print(found)


def _place(options: argparse.Namespace) -> McpPlace:
    """Returns the server that the words mean: an address, a server of the mount, or a command line."""
    from cortexfs.mcp.client import McpPlace, of_mount

    server, rest = options.server, getattr(options, "rest", [])
    if server is None:
        raise Fault("EINVAL", "say which server: its name, its URL, or at the end -- COMMAND [ARGS]")
    if server.startswith(("http://", "https://")):
        return McpPlace(url=server, headers=_headers(options.header))
    command = [server, *rest] if rest else _words(server)
    if len(command) == 1:
        is_program = shutil.which(command[0]) is not None
        if root := _root_of(options.root, server, or_program=is_program or "/" in server):
            os.environ["CTX_ROOT"] = root
            return of_mount(server)
    if "/" not in command[0] and shutil.which(command[0]) is None:
        raise Fault("ENOENT", f"there is no program {command[0]!r} in PATH")
    return McpPlace(command=tuple(command))


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line) or [line]
    except ValueError as problem:
        raise Fault("EINVAL", f"the command line {line!r}: {str(problem).lower()}") from None


def _root_of(root_option: str | None, name: str, *, or_program: bool) -> str | None:
    """Returns the mount that has this server. Returns None for a program that no mount has as a server."""
    try:
        root = mounts.answering(root_option)
    except Fault:
        if root_option or not or_program:
            raise
        return None
    if os.path.exists(f"{root}/tool/{name}.{OBJECT}"):
        return root
    if not or_program:
        end = f".{OBJECT}"
        known = [each.removesuffix(end) for each in os.listdir(f"{root}/tool") if each.endswith(end)]
        why = f"there is no MCP server and no program {name!r}"
        parser.check_known(name, known, why, "see: ctx mcp list")
    return None


def _headers(arguments: list[str]) -> Mapping[str, str]:
    from cortexfs.cli.mcp.servers import pairs  # a slow import that only a URL needs

    values = pairs(arguments, ":")
    return {key: sys.stdin.readline().strip() if value is None else value for key, value in values.items()}


async def _tools(client: Client) -> list[Tool]:
    found: list[Tool] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if not (cursor := page.next_cursor):
            break
    return found


def _piped() -> bytes:
    return b"" if sys.stdin.isatty() else sys.stdin.buffer.read(parse.MAX_INPUT + 1)


def _asking(agrees: bool) -> Any:
    def ask(message: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        form = forms.fields(schema)
        if agrees:
            return forms.defaults(form)
        if not sys.stdin.isatty():
            output.say(f"the server asks: {one_line(message)}; answer on a terminal, or say --yes")
            return None
        output.say(one_line(message))
        try:
            return forms.filled(form, _typed_value)
        except (EOFError, KeyboardInterrupt):
            return None

    return ask


def _typed_value(field: forms.FormField) -> Any:
    for line in field.listing:
        output.say(line)
    while True:
        print(field.prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        try:
            return field.read(line)
        except Fault as fault:
            output.say(fault.message)


def _show(result: CallToolResult) -> None:
    stream = sys.stderr if result.is_error else sys.stdout
    for part in result.content:
        if part.type == "text":
            print(part.text, file=stream)
        elif part.type == "resource" and (text := getattr(part.resource, "text", None)) is not None:
            print(text, file=stream)
        elif part.type == "resource_link":
            print(part.uri, file=stream)
        else:
            output.say(f"an answer of the kind {part.type} is left out; --json has it")
    if not result.content and result.structured_content is not None:
        output.emit(result.structured_content)


def _status(result: CallToolResult) -> int:
    """Returns the exit status of an answer. The error of an object ends with its code and a sentence."""
    texts = [part.text for part in result.content if part.type == "text"]
    return exit_status(texts[-1].partition(": ")[0] if texts else "") if result.is_error else EXIT_OK


def _plain(item: Any) -> dict[str, Any]:
    plain: dict[str, Any] = item.model_dump(by_alias=True, mode="json", exclude_none=True)
    return plain


def _print(found: Mapping[str, Any]) -> None:
    server = found["server"]
    print(
        f"{server.get('title') or server.get('name', '')} {server.get('version', '')} ({found['protocol']})"
    )
    if found["instructions"]:
        print(one_line(found["instructions"]))
    for kind, key in (
        ("tools", "name"),
        ("resources", "uri"),
        ("templates", "uriTemplate"),
        ("prompts", "name"),
    ):
        rows = [
            (item[key], one_line(item.get("description", ""))[:MAX_ABOUT]) for item in found.get(kind, [])
        ]
        if rows:
            print()
            output.table((kind, "description"), rows)
