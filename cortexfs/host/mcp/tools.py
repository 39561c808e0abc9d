"""The tools of an MCP server as tools of the SDK.

Main path: `tools` opens the connection that this host keeps (`Keeper`), and makes a tool of each that the
server lists. A call goes to the connection there is, or to a new one.

Rules: a server's words are bounded, and its names made names of the tree; a tool that cannot be one is left
out, and said in the log. One connection serves all calls of a host; one that ended is opened again at the
next call, and not sooner than BACKOFF says when it keeps ending. Texts of an answer are the output. Pictures
and other bytes become files of the caller's, in a directory that is his alone; of those of one host the
newest MAX_FILES stay. A resource that is only named stays where it is.
This file must never know the protocol.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls, names
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.host.call.runtime import apart

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool, ToolAnnotations

    from cortexfs.host.mcp.connection import Link

MAX_DESCRIPTION = 8 << 10  # characters; a model reads them all
MAX_SCHEMA = 128 << 10
MAX_FILES = 100
MAX_BYTES = 16 << 20  # of one file
MAX_PARTS = 1000  # of one answer
MAX_ADDRESS = 8 << 10
BACKOFF = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds to wait, by how often it was of no use
LOOK_SECONDS = 1.0  # after which a wait looks whether it is still wanted
_keepers: dict[str, Keeper] = {}
_keeping = threading.Lock()
_filing = threading.Lock()
_files: deque[str] = deque()
_folder: list[str] = []


class Keeper:
    """The connection that a host keeps, and what the server listed last."""

    def __init__(self, told: McpTarget) -> None:
        self.told = told
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._failures, self._why = 0, ""
        self._next = 0.0
        self._changes = threading.Condition()
        self.listed: list[Tool] = []
        self.version = 0

    def link(self) -> Link:
        with self._lock:
            if self._link is not None:
                self._link.settle()
            if self._link is None or not self._link.is_open:
                if self._link is not None:
                    self._link.close()  # whatever of it is left
                self._open()
            assert self._link is not None
            return self._link

    def _open(self) -> None:
        if (wait := self._next - time.monotonic()) > 0:
            why = self._why or f"the MCP server {self.told.name} has ended {self._failures} times in a row"
            raise Fault("EHOSTDOWN", f"{why}; it is started again in {wait:.0f} s at the earliest")
        # Until it has answered a call.
        self._next = time.monotonic() + BACKOFF[min(self._failures, len(BACKOFF) - 1)]
        self._failures += 1
        self._link = apart(_imported)(self.told, self.changed)
        try:
            self.changed(self._link.open())
        except Fault as fault:
            self._why = fault.message
            raise
        self._why = ""

    def worked(self) -> None:
        """A call has been answered: that was a connection."""
        self._failures, self._next = 0, 0.0

    def changed(self, listed: list[Tool]) -> None:
        with self._changes:
            if self.version == 0 or listed != self.listed:
                self.listed = listed
                self.version += 1
            self._changes.notify_all()

    def await_change(self, runtime: sdk.ToolRuntime) -> None:
        """Return when there is another list than now, or the connection or the caller has gone. One that had
        gone before is opened again: the server may have been replaced."""
        seen, link = self.version, self.link()
        with self._changes:
            while self.version == seen and not runtime.cancelled and link.is_open:
                self._changes.wait(LOOK_SECONDS)

    def close(self) -> None:
        link = self._link  # without the lock, which who opens it may hold for long
        if link is not None:
            link.close()
            link.join()


def _imported() -> type[Link]:
    """Of a host that host/warm.py forked it is there. Elsewhere it costs 0.4 s."""
    from cortexfs.host.mcp.connection import Link

    return Link


class RemoteTool(sdk.Tool):
    def __init__(self, keeper: Keeper, tool: Tool, name: str) -> None:
        self._keeper = keeper
        self._remote = tool.name
        self.name = name
        words = (
            tool.description or tool.title or f"{tool.name} of the MCP server {keeper.told.name}"
        ).strip()
        self.description = words[:MAX_DESCRIPTION] or tool.name
        self.input_schema = tool.input_schema
        self.timeout_secs = keeper.told.timeout
        effects = (effect_of(keeper.told.name, tool.annotations),)
        self.capabilities = sdk.ToolCapabilities(emits_progress=True, effects=effects)

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        result = self._keeper.link().call(self._remote, input, runtime)
        self._keeper.worked()
        return result_of(result)


def effect_of(server: str, said: ToolAnnotations | None) -> sdk.ToolEffect:
    """Returns the effect that a tool's hints come to. Who gives none may do anything, as the protocol has
    it."""
    reads = said is not None and said.read_only_hint is True
    is_open = said is None or said.open_world_hint is not False
    if reads:
        kind = sdk.ToolEffectKind.NETWORK_REQUEST if is_open else sdk.ToolEffectKind.READ_FILE
        return sdk.ToolEffect(kind, f"MCP server {server}")
    destroys = said is None or said.destructive_hint is not False
    undone = (
        sdk.EffectReversibility.IRREVERSIBLE if destroys else sdk.EffectReversibility.PARTIALLY_REVERSIBLE
    )
    return sdk.ToolEffect(sdk.ToolEffectKind.RUN_PROCESS, f"MCP server {server}", undone)


def told_of(plugin: hostcalls.Plugin) -> McpTarget:
    try:
        return msgspec.json.decode(plugin.target, type=McpTarget)
    except msgspec.MsgspecError as error:
        raise Fault("EPROTO", f"the daemon did not say what {plugin.name} is: {error}") from None


def _keeper(plugin: hostcalls.Plugin) -> Keeper:
    with _keeping:
        if plugin.name not in _keepers:
            _keepers[plugin.name] = Keeper(told_of(plugin))
        return _keepers[plugin.name]


def tools(plugin: hostcalls.Plugin) -> Iterable[sdk.Tool]:
    keeper = _keeper(plugin)
    try:
        keeper.link()
    except ModuleNotFoundError as missing:
        why = f"MCP servers need the package {missing.name}; install cortexfs[mcp]"
        raise Fault("EHOSTDOWN", why) from None
    with _keeping:
        _served[plugin.name] = keeper.version
    return list(adapted(keeper))


_served: dict[str, int] = {}  # which list the tools of a plugin were made of


def has_changed(plugin: hostcalls.Plugin) -> bool:
    keeper = _keepers.get(plugin.name)
    return keeper is not None and keeper.version != _served.get(plugin.name)


def await_change(plugin: hostcalls.Plugin, runtime: sdk.ToolRuntime) -> None:
    _keeper(plugin).await_change(runtime)


def adapted(keeper: Keeper) -> Iterable[sdk.Tool]:
    """Returns those of the server's tools that can be tools here."""
    taken: set[str] = set()
    wanted = keeper.told.tools
    for tool in keeper.listed:
        if wanted and not any(fnmatchcase(tool.name, pattern) for pattern in wanted):
            continue
        try:
            if len(msgspec.json.encode(tool.input_schema)) > MAX_SCHEMA:
                raise Fault("EMSGSIZE", f"its schema is over {MAX_SCHEMA >> 10} KiB")
            name = _free(f"{keeper.told.name}.{tool.name}", taken)
        except Fault as fault:  # the others are tools all the same
            print(f"the MCP server {keeper.told.name}: {tool.name[:100]!r} is no tool: {fault.message}")
            continue
        taken.add(name)
        yield RemoteTool(keeper, tool, name)


def _free(wanted: str, taken: set[str]) -> str:
    """A name of the tree for it, which no other tool of the server has."""
    name = names.clean(wanted)
    number = 2
    while name in taken:
        end = f"-{number}"
        name = names.clean(wanted)[: names.MAX_COMPONENT - len(end)] + end
        number += 1
    return name


def drop_all() -> None:
    """Close the connections before the process ends."""
    for keeper in list(_keepers.values()):
        keeper.close()


def result_of(said: CallToolResult) -> sdk.ToolResult:
    texts: list[str] = []
    media: list[sdk.Attachment] = []
    for part in said.content[:MAX_PARTS]:
        if (text := _text(part)) is not None:
            texts.append(text)
        elif (medium := _medium(part)) is not None:
            media.append(medium)
    if not texts and said.structured_content is not None:
        texts.append(msgspec.json.encode(said.structured_content).decode())
    return sdk.ToolResult("\n".join(texts), tuple(media), said.is_error)


def _text(part: Any) -> str | None:
    if part.type == "text":
        return str(part.text)
    if part.type == "resource" and hasattr(part.resource, "text"):
        return str(part.resource.text)
    return None


def _medium(part: Any) -> sdk.Attachment | None:
    match part.type:
        case "image" | "audio":
            return _kept(part.type, part.mime_type, part.data)
        case "resource":
            mime = part.resource.mime_type or "application/octet-stream"
            return _kept(_kind(mime), mime, part.resource.blob)
        case "resource_link":
            mime = part.mime_type or "application/octet-stream"
            caption = part.title or part.description or part.name
            return sdk.Attachment(_kind(mime), mime, part.uri[:MAX_ADDRESS], caption[:MAX_ADDRESS], part.size)
    return None


def _kind(mime: str) -> str:
    kind = mime.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "file"


def _kept(kind: str, mime: str, data: str) -> sdk.Attachment:
    if len(data) > MAX_BYTES * 4 // 3 + 4:
        raise Fault("EMSGSIZE", f"the MCP server answered with a file of over {MAX_BYTES >> 20} MiB")
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Fault("EPROTO", "the MCP server answered with a file that is no base64") from None
    with _filing:
        if not _folder or not os.path.isdir(_folder[0]):
            _folder[:] = [tempfile.mkdtemp(prefix="ctx-mcp-")]
        number, path = tempfile.mkstemp(mimetypes.guess_extension(mime) or "", "", _folder[0])
        with open(number, "wb") as file:
            file.write(content)
        _files.append(path)
        while len(_files) > MAX_FILES:
            with suppress(OSError):
                os.unlink(_files.popleft())
    return sdk.Attachment(kind, mime, path, None, len(content))
