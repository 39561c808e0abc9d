"""MCP Apps: the page that an MCP server has for a tool (its `_meta.ui.resourceUri`), in a frame of panels.py.

    opened = await apps.open(asked)     the frame of a tool's app; ENOENT for a tool without one
    await apps.ask(asked)               tools/call and resources/read, at the frame's own server

Rules: the object SERVER.mcp answers for lists and resources, and `ctx mcp call` makes each call. An app may
call the tools of its server that are for apps, and read its server's resources. It may reach no host,
whatever its `_meta.ui.csp` asks for.
This file must never know how a frame is drawn.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Any

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.mcp_session import LIST, NAME_KEY
from cortexfs.web import children
from cortexfs.web.children import WebPlace
from cortexfs.web.http import PageAnswer, PageRequest, answer_of
from cortexfs.web.panels import PanelFrame, PanelFrames, effects_of, text_of
from cortexfs.web.telling import object_named, waited

KIND = "text/html;profile=mcp-app"
SCHEME = "ui://"
PAGE = "app.html"
MAX_APP = 4 << 20  # characters of a resource
MAX_PAGES = 20
_SERVER = re.compile(r"plugin:mcp:([\w.+-]+)@")
READ = "resources/read"


class McpApps:
    def __init__(self, place: WebPlace, frames: PanelFrames) -> None:
        self._place = place
        self._frames = frames
        self.routes = {
            "/api/app/find": self.find,
            "/api/app/open": self.open,
            "/api/app/tool": self.tool,
            "/api/app/ask": self.ask,
        }

    async def find(self, request: PageRequest) -> PageAnswer:
        """Returns the address of a tool's app, or null for a tool without one."""
        _, _, uri = await self._found(request)
        return answer_of({"uri": uri})

    async def open(self, request: PageRequest) -> PageAnswer:
        server, tool, uri = await self._found(request)
        if uri is None:
            raise Fault("ENOENT", f"{object_named(request)} has no app")
        html = self._frames.page((await self._page(server, uri)).encode(), scripted=False)
        path = f"{self._place.root}/tool/{server}.mcp"
        look = partial(waited, partial(_check_exists, path, server))
        frame = PanelFrame(server, tool["name"], PAGE, {PAGE: html}, [path], look)
        await self._frames.add(frame)
        title = str(tool.get("title") or tool["name"])
        return answer_of(
            {"frame": frame.id, "path": frame.path, "title": title, "tool": tool, "plugin": server}
        )

    async def _found(self, request: PageRequest) -> tuple[str, dict[str, Any], str | None]:
        """Returns the MCP server of a tool, the tool, and the address of its app; None without one."""
        object_ = object_named(request)
        origin = await waited(partial(text_of, f"{self._place.root}/{object_}.d/origin"))
        if server := _SERVER.match(origin):
            for tool in await self._tools(server[1]):
                if tool["_meta"].get(NAME_KEY) == object_.rpartition("/")[2]:
                    return server[1], tool, _uri(tool)
        return "", {}, None

    async def ask(self, request: PageRequest) -> PageAnswer:
        frame = await self._frames.known(request)
        method, params = request.text("method"), request.fields.get("params")
        if not isinstance(params, dict):
            raise Fault("EINVAL", "params: expected an object")
        if method == READ:
            return answer_of(await self._answer(frame.owner, READ, {"uri": params.get("uri")}))
        if method == "tools/call":
            tool = await self._own(frame, params.get("name"))
            words = ("mcp", "call", "--json", "--", frame.owner, tool["name"])
            arguments = msgspec.json.encode(params.get("arguments") or {}).decode()
            return answer_of(await children.command(self._place, words, arguments))
        raise Fault("EACCES", f"an app may only ask for tools/call and {READ}, not for {method[:100]}")

    async def tool(self, request: PageRequest) -> PageAnswer:
        """Returns the object of a tool of the app's server, and whether a person is asked before a call."""
        frame = await self._frames.known(request)
        tool = await self._own(frame, request.text("tool"))
        return answer_of(await effects_of(self._place, f"tool/{tool['_meta'][NAME_KEY]}"))

    async def _own(self, frame: PanelFrame, name: object) -> dict[str, Any]:
        """Returns the tool if the app may call it. Its own tool is allowed, as a person has chosen it."""
        for tool in await self._tools(frame.owner):
            if tool["name"] == name and (name == frame.part or "app" in _visible(tool)):
                return tool
        raise Fault("EACCES", f"{frame.owner} has no tool {str(name)[:100]} that its apps may call")

    async def _tools(self, server: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        for _ in range(MAX_PAGES):
            page = await self._answer(server, LIST, params)
            found += page.get("tools", [])
            if not page.get("nextCursor"):
                break
            params = {"cursor": page["nextCursor"]}
        return found

    async def _page(self, server: str, uri: str) -> str:
        contents = (await self._answer(server, READ, {"uri": uri})).get("contents", [])
        for content in contents if isinstance(contents, list) else ():
            if not isinstance(content, dict):
                continue
            if str(content.get("mimeType")).replace(" ", "") == KIND and isinstance(content.get("text"), str):
                return str(content["text"])
        raise Fault("EPROTO", f"the MCP server {server} has no {KIND} at {uri[:200]}")

    async def _answer(self, server: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Returns the answer of a server, by its object."""
        request = {"method": method, "params": params}
        text, fault = await children.answered(self._place, f"tool/{server}.mcp", request, MAX_APP)
        if fault:
            raise fault
        try:
            found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        except UNREADABLE:
            raise Fault(
                "EPROTO", f"the answer of the MCP server {server} is not JSON, or is too long"
            ) from None
        return found


def _ui(tool: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool's entry about its app. In the extension's first version it was only the address."""
    meta = tool.get("_meta") or {}
    found = meta.get("ui")
    return found if isinstance(found, dict) else {"resourceUri": meta.get("ui/resourceUri")}


def _uri(tool: dict[str, Any]) -> str | None:
    uri = _ui(tool).get("resourceUri")
    return uri if isinstance(uri, str) and uri.startswith(SCHEME) else None


def _visible(tool: dict[str, Any]) -> Any:
    return _ui(tool).get("visibility") or ("model", "app")


def _check_exists(path: str, server: str) -> None:
    if not os.path.exists(path):
        raise Fault("ENOENT", f"the MCP server {server} is not there any more")
