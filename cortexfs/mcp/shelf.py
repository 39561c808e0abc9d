"""The files of a mount as resources of an MCP server: this user's sessions, and control files of objects.

Main path: `McpShelf.add_to` lets a server list, read and watch the files. Clients can also read the links in
results of tools (`remember`): a link names a file of this user's, or a resource of an MCP server of the
mount.

Rules: all files are read as this user. Below the root, only files in a folder of an object, which ends in
`.d`, can be read; elsewhere, only files that a result has named. If patterns limit the offer, only the files
of offered tools can be read. A file that hangs holds up its own request alone.
This file must never know transports.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import mimetypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio
import msgspec
from anyio import to_thread
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    CallToolResult,
    EmptyResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceLink,
    ResourceTemplate,
    SubscribeRequestParams,
    TextResourceContents,
    UnsubscribeRequestParams,
)

from cortexfs.client import media
from cortexfs.client.results import Failed
from cortexfs.core import frames
from cortexfs.core.frames import AnyFrame
from cortexfs.core.mcp_session import OBJECT
from cortexfs.mcp.offer import McpOffer
from cortexfs.mcp.relay import connection
from cortexfs.mcp.running import run

NOT_FOUND = -32002  # the protocol's code for a missing resource
MAX_LISTED = 1000  # sessions, the newest first
PAGE = 200
MAX_FILE = 4 << 20  # bytes
MAX_LINKS = 1000
MAX_WATCHED = 1000
READ_SECONDS = 5.0
WATCHER = "watcher"  # the key in the state of a connection
TYPES = {".md": "text/markdown", ".jsonl": "application/jsonl", "schema": "application/json"}
SESSIONS = ("agent/*.d/session/*", "model/*.d/session/*", "model/*/*.d/session/*")

Context = ServerRequestContext[Any, Any]
Stamp = tuple[int, int] | None
Watcher = object  # a session, or the stand-in of a request that listens


class McpShelf:
    def __init__(self, root: str, offer: McpOffer) -> None:
        self._root, self._real = root, os.path.realpath(root)
        self._offer = offer
        # By link of a result: the path of the object of its MCP server, or "" for a file.
        self._links: dict[str, str] = {}
        self._watched: dict[tuple[Watcher, str], Stamp] = {}

    def add_to(self, server: Server[Any]) -> None:
        listing, uris = PaginatedRequestParams, SubscribeRequestParams
        server.add_request_handler("resources/list", listing, self._list)
        server.add_request_handler("resources/templates/list", listing, self._templates)
        server.add_request_handler("resources/read", ReadResourceRequestParams, self._read)
        server.add_request_handler("resources/subscribe", uris, self._subscribe)
        server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, self._unsubscribe)

    def remember(self, tool: str, result: CallToolResult) -> CallToolResult:
        """Let clients read the links of a tool's result."""
        server = f"{os.path.dirname(tool)}/{os.path.basename(tool).partition('.')[0]}.{OBJECT}"
        for part in result.content:
            if isinstance(part, ResourceLink) and not part.uri.startswith(("http://", "https://")):
                is_file = part.uri.startswith("file://")
                self._links.pop(part.uri, None)
                self._links[part.uri] = "" if is_file else server
        for uri in [*self._links][:-MAX_LINKS]:
            del self._links[uri]
        return result

    async def changed(self) -> list[tuple[Watcher, str]]:
        """Returns the watchers of resources that have changed since the last look."""
        watched = [*self._watched.items()]
        now = await _in_thread(lambda: [_stamp(self._path(uri)) for (_, uri), _ in watched])
        found = [key for (key, before), stamp in zip(watched, now or [], strict=False) if stamp != before]
        for (key, _), stamp in zip(watched, now or [], strict=False):
            if key in self._watched:
                self._watched[key] = stamp
        return found

    async def watch(self, watcher: Watcher, uri: str) -> None:
        if (path := self._path(uri)) is None:
            raise MCPError(INVALID_PARAMS, f"{uri[:1000]} is no file of the mount; only those can be watched")
        if len(self._watched) >= MAX_WATCHED:
            raise MCPError(INVALID_PARAMS, f"{MAX_WATCHED} resources are watched already")
        self._watched[watcher, uri] = await _in_thread(partial(_stamp, path))

    def forget(self, watcher: Watcher) -> None:
        self._watched = {key: stamp for key, stamp in self._watched.items() if key[0] is not watcher}

    async def _list(self, _: Context, params: PaginatedRequestParams) -> ListResourcesResult:
        begin = int(params.cursor) if params.cursor and params.cursor.isdecimal() else 0
        paths = await _in_thread(self._paths) or []
        more = str(begin + PAGE) if len(paths) > begin + PAGE else None
        resources = [
            Resource(uri=Path(path).as_uri(), name=self._title(path), mime_type=_type(path))
            for path in paths[begin : begin + PAGE]
        ]
        return ListResourcesResult(resources=resources, next_cursor=more)

    def _paths(self) -> list[str]:
        """Returns this user's sessions, the newest first, and then the descriptions of tools."""
        tools = [f"{path}.d/description" for path in self._offer.paths]
        if self._offer.is_bounded:
            return tools
        home = f"{self._root}/home/{os.getuid()}"
        found = [path for each in SESSIONS for path in glob.iglob(f"{glob.escape(home)}/{each}/latest.md")]
        return sorted(found, key=lambda path: _stamp(path) or (0, 0), reverse=True)[:MAX_LISTED] + tools

    def _title(self, path: str) -> str:
        parts = path.removeprefix(f"{self._root}/").split("/")
        if "session" in parts:
            object_, _, session = "/".join(parts[2:]).partition(".d/session/")
            return f"{object_}, session {session.partition('/')[0]}"
        return f"{parts[-2].removesuffix('.d')}: {parts[-1]}"

    async def _templates(self, _: Context, __: PaginatedRequestParams) -> ListResourceTemplatesResult:
        root, home = Path(self._root).as_uri(), f"{Path(self._root).as_uri()}/home/{os.getuid()}"
        rows = [("a file beside a tool: description, schema, effects", f"{root}/tool/{{tool}}.d/{{file}}")]
        if not self._offer.is_bounded:
            rows += [
                ("a file beside an agent: system.md, tools, policy", f"{root}/agent/{{agent}}.d/{{file}}"),
                (
                    "a session with an agent: latest.md, messages.jsonl, events.jsonl",
                    f"{home}/agent/{{agent}}.d/session/{{session}}/{{file}}",
                ),
                (
                    "a session with a model: latest.md, messages.jsonl, events.jsonl",
                    f"{home}/model/{{provider}}/{{model}}.d/session/{{session}}/{{file}}",
                ),
            ]
        templates = [ResourceTemplate(name=name, uri_template=template) for name, template in rows]
        return ListResourceTemplatesResult(resource_templates=templates)

    async def _read(self, _: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        uri = str(params.uri)
        if server := self._links.get(uri):
            return await _read_resource(server, uri)
        path = self._path(uri) or (_path_of(uri) if uri in self._links else None)
        with contextlib.suppress(OSError):
            if path and (data := await _in_thread(partial(media.content, path, MAX_FILE))) is not None:
                return ReadResourceResult(contents=[_contents(uri, path, data)])
        raise MCPError(NOT_FOUND, f"there is no resource {uri[:1000]} here")

    def _path(self, uri: str) -> str | None:
        """Returns the real path of the file of the mount, or None if it may not be read."""
        if (path := _path_of(uri)) is None:
            return None
        path = os.path.normpath(path)
        inside = os.path.relpath(path, self._real if path.startswith(f"{self._real}/") else self._root)
        parts = inside.split("/")
        if parts[0] == ".." or not any(part.endswith(".d") for part in parts[:-1]):
            return None
        if self._offer.is_bounded:
            tool = parts[1].removesuffix(".d") if len(parts) == 3 and parts[0] == "tool" else ""
            if not tool or self._offer.path(tool) is None:
                return None
        return f"{self._real}/{inside}"

    async def _subscribe(self, context: Context, params: SubscribeRequestParams) -> EmptyResult:
        await self.watch(self._watcher(context), str(params.uri))
        return EmptyResult()

    def _watcher(self, context: Context) -> Watcher:
        """Returns one watcher for each client, as the SDK makes a session for each request."""
        client = connection(context)
        if WATCHER not in client.state:
            client.state[WATCHER] = context.session
            client.exit_stack.callback(self.forget, context.session)
        return client.state[WATCHER]

    async def _unsubscribe(self, context: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        self._watched.pop((self._watcher(context), str(params.uri)), None)
        return EmptyResult()


async def _in_thread(work: Callable[[], Any]) -> Any:
    """Returns None if `work` takes too long."""
    with anyio.move_on_after(READ_SECONDS):
        return await to_thread.run_sync(work, abandon_on_cancel=True)
    return None


async def _read_resource(server: str, uri: str) -> ReadResourceResult:
    """Read a resource of an MCP server, in a run of its object."""
    pieces: list[str] = []

    async def hear(frame: AnyFrame) -> None:
        if isinstance(frame, frames.Delta):
            pieces.append(frame.text)

    request = {"method": "resources/read", "params": {"uri": uri}}
    try:
        await run(server, msgspec.json.encode(request), hear)
        return ReadResourceResult.model_validate_json("".join(pieces), by_name=False)
    except (Failed, ValueError) as failed:
        raise MCPError(NOT_FOUND, f"{uri[:1000]} cannot be read: {failed}"[:2000]) from None


def _path_of(uri: str) -> str | None:
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = unquote(parts.path)
    is_path = parts.scheme == "file" and not parts.netloc and path.startswith("/") and "\0" not in path
    return path if is_path else None


def _stamp(path: str | None) -> Stamp:
    try:
        status = os.stat(path or "")
        return status.st_mtime_ns, status.st_size
    except OSError:
        return None


def _type(path: str) -> str:
    name = os.path.basename(path)
    known = TYPES.get(name) or TYPES.get(os.path.splitext(name)[1])
    return known or mimetypes.guess_type(name)[0] or "text/plain"


def _contents(uri: str, path: str, data: bytes) -> TextResourceContents | BlobResourceContents:
    try:
        return TextResourceContents(uri=uri, mime_type=_type(path), text=data.decode())
    except UnicodeDecodeError:
        return BlobResourceContents(uri=uri, mime_type=_type(path), blob=base64.b64encode(data).decode())
