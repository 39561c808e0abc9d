"""The answers of an MCP server as results of tools, and its earlier messages for the reader of the run.

Rules: texts are the output; texts and media keep their order. Pictures and other bytes become files of the
caller's, in a directory of the caller's alone, where the newest MAX_FILES stay. A resource that is only named
stays where it is. In a session, messages before an answer are passed on unchanged, as their reader speaks the
protocol. Elsewhere progress is passed on as progress, and a line of the server's log as a note; no reader
could use the rest.
This file must never know connections, or who asks.
"""

from __future__ import annotations

import base64
import binascii
import glob
import mimetypes
import os
import stat
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import SOURCE, ServerError, ServerMessage

if TYPE_CHECKING:
    from mcp_types import CallToolResult

# Types that Python's table lacks, or has by an older name.
ENDS = {
    "audio/wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/flac": ".flac",
    "image/webp": ".webp",
}
MAX_FILES = 100
MAX_BYTES = 16 << 20  # of one file
MAX_PARTS = 1000  # of one answer
MAX_ADDRESS = 8 << 10
PROGRESS, NOTE = "notifications/progress", "notifications/message"
_filing = threading.Lock()


class ServerSays(Fault):
    """The server answered with an error."""

    def __init__(self, code: str, message: str, details: ServerError) -> None:
        super().__init__(code, message)
        self.details = details


def result_of(result: CallToolResult, runtime: sdk.ToolRuntime) -> sdk.ToolResult:
    """Returns the result of a call. Texts and media are sent in their order."""
    parts: list[str | sdk.Attachment] = []
    for part in result.content[:MAX_PARTS]:
        text = _text(part)
        if (piece := _medium(part) if text is None else text) is not None:
            parts.append(piece)
    if not result.content and result.structured_content is not None:
        parts.append(msgspec.json.encode(result.structured_content).decode())
    if result.is_error:
        media = tuple(part for part in parts if isinstance(part, sdk.Attachment))
        return sdk.ToolResult("\n".join(piece for piece in parts if isinstance(piece, str)), media, True)
    return _in_order(parts, runtime)


def texts_of(result: CallToolResult) -> str:
    return "\n".join(text for part in result.content[:MAX_PARTS] if (text := _text(part)) is not None)


def _in_order(parts: Sequence[str | sdk.Attachment], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
    """Texts are separate lines, even with media between them."""
    texts = [part for part in parts if isinstance(part, str)]
    media = [part for part in parts if isinstance(part, sdk.Attachment)]
    if not texts or not media:
        return sdk.ToolResult("\n".join(texts), tuple(media))
    line = ""
    for part in parts:
        if isinstance(part, str):
            runtime.emit(line + part)
            line = "\n"
        else:
            runtime.emit_event(part)
    return sdk.ToolResult("")


def _text(part: Any) -> str | None:
    if part.type == "text":
        return str(part.text)
    if part.type == "resource" and hasattr(part.resource, "text"):
        return str(part.resource.text)
    return None


def _medium(part: Any) -> sdk.Attachment | None:
    match part.type:
        case "image" | "audio":
            return _attachment(part.type, part.mime_type, part.data)
        case "resource":
            mime = part.resource.mime_type or "application/octet-stream"
            return _attachment(_kind(mime), mime, part.resource.blob)
        case "resource_link":
            mime = part.mime_type or "application/octet-stream"
            caption = part.title or part.description or part.name
            return sdk.Attachment(_kind(mime), mime, part.uri[:MAX_ADDRESS], caption[:MAX_ADDRESS], part.size)
    return None


def _kind(mime: str) -> str:
    kind = mime.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "file"


def _attachment(kind: str, mime: str, data: str) -> sdk.Attachment:
    if len(data) > MAX_BYTES * 4 // 3 + 4:
        raise Fault("EMSGSIZE", f"the MCP server answered with a file of over {MAX_BYTES >> 20} MiB")
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Fault("EPROTO", "the MCP server answered with a file that is not base64") from None
    with _filing:
        folder = _folder()
        extension = ENDS.get(mime) or mimetypes.guess_extension(mime) or ""
        number, path = tempfile.mkstemp(extension, "", folder)
        with open(number, "wb") as file:
            file.write(content)
        _forget_oldest(folder)
    return sdk.Attachment(kind, mime, path, None, len(content))


def _forget_oldest(folder: str) -> None:
    """Other hosts of the caller's add and remove files there, too."""
    files: list[tuple[int, str]] = []
    for entry in os.scandir(folder):
        with suppress(OSError):
            files.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    for _, path in sorted(files)[:-MAX_FILES]:
        with suppress(OSError):
            os.unlink(path)


def _folder() -> str:
    """Returns the caller's directory; another one, always the same, if others have taken its name."""
    try:
        base = os.path.join(tempfile.gettempdir(), f"ctx-mcp-{os.geteuid()}")
        with suppress(FileExistsError):
            os.mkdir(base, 0o700)
        for path in chain([base], glob.iglob(f"{glob.escape(base)}-*")):
            with suppress(FileNotFoundError):
                found, own = os.lstat(path), stat.S_IFDIR | 0o700
                if found.st_uid == os.geteuid() and found.st_mode & ~0o7000 == own:
                    return path
        return tempfile.mkdtemp(prefix=f"{os.path.basename(base)}-")
    except FileNotFoundError:  # a view shows no folder for temporary files
        line = "/tmp\t/tmp\trw\t-"
        why = f"the answer has a file, but the agent's view lacks a folder; add to its mount table: {line}"
        raise Fault("EACCES", why) from None


def of_resource(answer: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
    """Returns the contents of a resources/read answer: texts, and bytes as files."""
    parts: list[str | sdk.Attachment] = []
    for part in answer.get("contents", [])[:MAX_PARTS]:
        mime = str(part.get("mimeType") or "application/octet-stream")
        if "blob" in part:
            parts.append(_attachment(_kind(mime), mime, str(part["blob"])))
        else:
            parts.append(str(part.get("text", "")))
    return _in_order(parts, runtime)


def pass_on(runtime: sdk.ToolRuntime, server: str, message: ServerMessage, *, as_it_is: bool) -> None:
    params = message.params
    if as_it_is:
        runtime.emit_observer(SOURCE, msgspec.json.encode(message).decode())
    elif message.method == PROGRESS:
        runtime.emit_progress(_progress(params["progress"], params.get("total"), params.get("message")))
    elif message.method == NOTE:
        data = params.get("data")
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        runtime.emit_observer(f"{server}: {params.get('level', 'info')}", text)


def _progress(progress: float, total: float | None, message: str | None) -> str:
    done = f"{progress:g}/{total:g}" if total else f"{progress:g}"
    return f"{message} ({done})" if message and total else message or done
