"""Pages of plugins and MCP servers, each in a frame of its own, and the requests that they may make.

    opened = await frames.open(asked)     the frame of a panel or widget; `ctx plugin ui` says if it is shown
    frames.answer(path, origin)           a file of a frame: its page once, and only then the files beside it
    await frames.ask(asked)               the answer to a page's request about its own plugin

Rules: the owner of a frame is set when it is opened, and never by the frame's messages. Its address is a
secret of this process. The page has an opaque origin, even if it is opened by itself, and reaches nothing: no
other file, no host, no storage, no window. Commands and objects do all that it asks for, as the user, and
only for its own plugin. A frame is forgotten when its plugin is not shown any more.
This file must never know how a frame is drawn.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
import subprocess
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE, shown
from cortexfs.web import children, files
from cortexfs.web.children import WebPlace
from cortexfs.web.gate import FRAMED, FRAMES
from cortexfs.web.http import PageAnswer, PageRequest, answer_of
from cortexfs.web.telling import waited

SCRIPT = "cortex.js"  # the first script of a plugin's page
MAX_FRAMES = 64  # open ones; the oldest goes first
MAX_BYTES = 64 << 20  # of all their files
MAX_OUTPUT = 1 << 20  # characters of a tool's output that a page gets
HTML = "text/html"
GONE = "the page has closed this panel; open it again"
RUNNER, EVENTS = "bin/cortexfs-object-runner", ".events"  # of the mount; .events prints its latest events
_START = re.compile(rb"(\s*(?:<!doctype[^>]*>)?)", re.IGNORECASE)
_PLAIN = re.compile(r"[a-zA-Z0-9][\w.+-]*", re.ASCII)
_Stamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]
SANDBOX = "allow-scripts allow-forms"  # forms are sent nowhere, but scripts get their events
# default-src forbids everything that is not listed; `{own}` is the folder of the frame.
POLICY = (
    "sandbox {sandbox}; default-src 'none'; script-src {own} 'unsafe-inline'; "
    "style-src {own} 'unsafe-inline'; img-src {own} data: blob:; media-src {own} data: blob:; "
    "font-src data:; connect-src 'none'; worker-src 'none'; frame-src 'none'; form-action 'none'; "
    "base-uri 'none'; frame-ancestors {origin}"
)


class PanelFrame:
    """A page of a plugin or an MCP server that a tab has open."""

    def __init__(
        self,
        owner: str,
        part: str,
        page: str,
        found: dict[str, PageAnswer],
        watched: list[str],
        look: Callable[[], Awaitable[object]],
    ) -> None:
        """`look` raises a Fault if the page is not shown any more. It is called when a `watched` file has
        changed."""
        self.owner = owner
        self.part = part
        self.path = f"{FRAMES}{secrets.token_urlsafe(32)}/{quote(page)}"
        self.size = sum(len(file.body) for file in found.values())
        self.heard: int | None = None  # the number of the last event that it got; None if it gets no events
        self._watched = watched
        self._look = look
        self._stamp: _Stamp = ()
        self._page = page
        self._files = found

    @property
    def id(self) -> str:
        return self.path.split("/")[2]

    def take(self, name: str) -> PageAnswer | None:
        """Returns a file of the frame. The page is served once, and no other file before it."""
        if name == self._page:
            return self._files.pop(name, None)
        return None if self._page in self._files else self._files.get(name)

    async def begin(self) -> None:
        self._stamp = await waited(partial(_stamp, self._watched))

    async def check(self) -> None:
        """Raises ENOENT if the page is not shown any more."""
        stamp = await waited(partial(_stamp, self._watched))
        if stamp != self._stamp:
            try:
                await self._look()
            except Fault as fault:
                raise Fault("ENOENT", fault.message) from None
            self._stamp = stamp


class PanelFrames:
    """The frames of one process."""

    def __init__(self, place: WebPlace) -> None:
        self._place = place
        self._open: dict[str, PanelFrame] = {}
        self._script = (files.FOLDER / SCRIPT).read_bytes()
        self.routes = {
            "/api/frame/open": self.open,
            "/api/frame/close": self.close,
            "/api/frame/still": self.still,
            "/api/frame/ask": self.ask,
            "/api/frame/tool": self.tool,
            "/api/frame/run": self.run,
        }

    async def add(self, frame: PanelFrame) -> None:
        """Add a frame. The oldest frames make room."""
        await frame.begin()
        while self._open and not self._has_room(frame):
            del self._open[next(iter(self._open))]
        self._open[frame.id] = frame

    def _has_room(self, frame: PanelFrame) -> bool:
        size = sum(other.size for other in self._open.values())
        return len(self._open) < MAX_FRAMES and size + frame.size <= MAX_BYTES

    def page(self, html: bytes, scripted: bool = True) -> PageAnswer:
        """Returns the page with our script first, after the doctype that keeps browsers in standards mode."""
        _, start, rest = _START.split(html.removeprefix(b"\xef\xbb\xbf"), 1)
        script = b"<script>%s</script>" % self._script if scripted else b""
        return PageAnswer((start or b"<!doctype html>") + script + rest, f"{HTML}; charset=utf-8")

    def answer(self, path: str, origin: str) -> PageAnswer | None:
        """Returns the file at an address, with the policy that a browser enforces on it."""
        if not path.startswith(FRAMES):
            return None
        id_, _, name = unquote(path.removeprefix(FRAMES)).partition("/")
        frame = self._open.get(id_)
        if frame is None or (found := frame.take(name)) is None:
            return None
        policy = POLICY.format(sandbox=SANDBOX, own=f"{origin}{FRAMES}{id_}/", origin=origin)
        return found._replace(headers={**FRAMED, "Content-Security-Policy": policy})

    async def open(self, request: PageRequest) -> PageAnswer:
        plugin, part = request.text("plugin"), request.text("part")
        facts = await self._facts(plugin, part)
        found = {name: self._file(kind, data) for name, (kind, data) in facts.pop("files").items()}
        look = partial(self._facts, plugin, part)
        frame = PanelFrame(plugin, part, facts.pop("page"), found, facts.pop("watched"), look)
        if facts["is_hooked"]:
            frame.heard = max((event.number for event in await _events(self._place)), default=0)
        await self.add(frame)
        return answer_of({**facts, "frame": frame.id, "path": frame.path})

    def _file(self, kind: str, data: str) -> PageAnswer:
        content = base64.b64decode(data)
        return self.page(content) if kind.startswith(HTML) else PageAnswer(content, kind)

    async def _facts(self, plugin: str, part: str) -> dict[str, Any]:
        facts: dict[str, Any] = await children.command(
            self._place, ("plugin", "ui", "--json", "--", plugin, part)
        )
        return facts

    async def close(self, request: PageRequest) -> PageAnswer:
        self._open.pop(request.text("frame"), None)
        return answer_of({})

    async def still(self, request: PageRequest) -> PageAnswer:
        """Returns the new events of the frame's plugin. Raises a Fault if the frame has to go."""
        frame = await self.known(request)
        if frame.heard is None:
            return answer_of({"events": []})
        later = await _events(self._place, str(frame.heard))
        found = [event for event in later if event.plugin == frame.owner]
        frame.heard = max((event.number for event in found), default=frame.heard)
        return answer_of({"events": [event.parts for event in found]})

    async def known(self, request: PageRequest) -> PanelFrame:
        """Returns the frame of the request. Raises ENOENT if its page is not shown any more."""
        frame = self._open.get(request.text("frame"))
        if frame is None:
            raise Fault("ENOENT", GONE)
        try:
            await frame.check()
        except Fault as fault:
            if fault.code == "ENOENT":
                self._open.pop(frame.id, None)
            raise
        return frame

    async def ask(self, request: PageRequest) -> PageAnswer:
        """Answer a page's request to its plugin, by method and path. Only run() calls a tool."""
        frame = await self.known(request)
        method, path = request.text("method", "GET"), request.text("path")
        if path == "config" and method in ("GET", "PUT"):
            return await self._config(frame, request if method == "PUT" else None)
        if path == "settings" and method == "GET":
            return answer_of(await self._settings(frame))
        own = "config, settings and tools/NAME"
        raise Fault("EACCES", f"{frame.owner} may not ask for {method} {path[:200]}, only for {own}")

    async def run(self, request: PageRequest) -> PageAnswer:
        """Call a tool of the frame's plugin. Our page has asked the user before, if tool() says so.
        The result has the form of a manifest.json's tools."""
        frame, tool = await self.known(request), request.text("tool")
        object_ = await waited(partial(self._own, frame.owner, tool))
        args, begun = _object(request), trio.current_time()
        output, fault = await children.answered(self._place, object_, args, MAX_OUTPUT)
        took = round((trio.current_time() - begun) * 1000)
        found = {"toolName": tool, "success": not fault, "output": output, "durationMs": took}
        return answer_of(found | ({"error": fault.message} if fault else {}))

    async def _settings(self, frame: PanelFrame) -> Any:
        return await children.command(self._place, ("plugin", "config", "--fields", "--", frame.owner))

    async def _config(self, frame: PanelFrame, request: PageRequest | None) -> PageAnswer:
        """Set the settings that a request has, if there is one. Returns all settings but the secrets."""
        values = _object(request) if request else {}
        known = [setting["key"] for setting in await self._settings(frame)] if values else []
        for key in values.keys() - set(known):
            raise Fault("EINVAL", f"{shown(key[:100])} is no setting of {frame.owner}")
        for key, value in values.items():
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            words = ("plugin", "config", "--", frame.owner, key, "-")
            await children.output(self._place, words, text)
        found = await self._settings(frame)
        return answer_of(
            {setting["key"]: setting["value"] for setting in found if setting["type"] != "secret"}
        )

    async def tool(self, request: PageRequest) -> PageAnswer:
        """Returns the object of a tool of the frame's plugin, and whether a person is asked before a call."""
        frame = await self.known(request)
        object_ = await waited(partial(self._own, frame.owner, request.text("tool")))
        return answer_of(await effects_of(self._place, object_))

    def _own(self, plugin: str, tool: str) -> str:
        """Returns the object of a tool. Raises EACCES unless the mount has it from this plugin."""
        object_ = f"tool/{tool}"
        if not _PLAIN.fullmatch(tool) or not _is_of(f"{self._place.root}/{object_}.d/origin", plugin):
            raise Fault("EACCES", f"{tool[:200]} is no tool of {plugin}")
        return object_


class MountEvent(msgspec.Struct, frozen=True):
    """An event of the mount, and the plugin that the mount sends it to. The mount shows this process only its
    own user's events."""

    number: int
    plugin: str = ""
    event: dict[str, Any] = {}

    @property
    def parts(self) -> tuple[str, dict[str, Any]]:
        """Returns the event's type, and its other members."""
        members = dict(self.event)
        return str(members.pop("type", "")), members


_line = msgspec.json.Decoder(MountEvent)


async def _events(place: WebPlace, *words: str) -> list[MountEvent]:
    done = await trio.run_process(
        [f"{place.root}/{RUNNER}", f"{place.root}/{EVENTS}", *words],
        capture_stdout=True,
        stderr=subprocess.DEVNULL,
        check=False,
        env={**place.environ, "CTX_OUTPUT": "text"},
    )
    if done.returncode:
        raise Fault("EHOSTDOWN", "the mount's events cannot be read; see: ctx status")
    try:
        return [_line.decode(line) for line in done.stdout.splitlines()]
    except UNREADABLE:
        raise Fault("EPROTO", f"{EVENTS} of the mount cannot be read") from None


async def effects_of(place: WebPlace, object_: str) -> dict[str, Any]:
    """Returns the effects of a tool, and whether a person is asked before a page calls it."""
    effects = await waited(partial(text_of, f"{place.root}/{object_}.d/effects"))
    asks = any(line.split()[-2:-1] != ["never"] for line in effects.splitlines())
    return {"object": object_, "asks": asks, "effects": effects}


def _object(request: PageRequest) -> dict[str, Any]:
    found = request.fields.get("body")
    if found is not None and not isinstance(found, dict):
        raise Fault("EINVAL", "body: expected an object")
    return found or {}


def _stamp(watched: list[str]) -> _Stamp:
    """Returns, for each file, the facts that change with it."""
    return tuple(map(_of_file, watched))


def _of_file(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _is_of(path: str, plugin: str) -> bool:
    try:
        return text_of(path).startswith(f"plugin:{plugin}@")
    except Fault:
        return False


def text_of(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(1 << 16)
    except OSError as problem:
        raise Fault("ENOENT", f"{path} cannot be read: {problem.strerror}") from None
