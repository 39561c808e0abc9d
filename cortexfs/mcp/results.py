"""The frames of a run, as the result of an MCP call.

Rules: a file that a tool made is included if it is small and its first bytes confirm its type. Else the
client gets its address. An output is bounded, and the result says how much was cut.
This file must never know how a tool is run.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mcp_types import (
    Annotations,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)

from cortexfs.client import media
from cortexfs.client.results import Failed, failure
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame

MAX_TEXT = 4 << 20  # characters of one output; no model reads as much
MAX_FILE = 4 << 20  # bytes of one included file
MAX_MEDIA = 16 << 20  # bytes of all included files of a call
MAX_PARTS = 100  # files and notes of a call
PLAYED = ("image/", "audio/")  # the types for which MCP has a kind of content

Content = TextContent | ImageContent | AudioContent | ResourceLink


class McpResult:
    """The result of one call, gathered frame by frame."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._kept_size = 0
        self._size = 0
        self._media = 0
        self._parts: list[Content] = []
        self._failed: Failed | None = None

    def add(self, frame: AnyFrame) -> None:
        if isinstance(frame, frames.Delta):
            piece = frame.text[: MAX_TEXT - self._kept_size] if self._size == self._kept_size else ""
            self._size += len(frame.text)
            self._kept_size += len(piece)
            self._pieces.append(piece)
        elif isinstance(frame, frames.Media):
            self._add_part(self._attached(frame.attachment))
        elif isinstance(frame, frames.Observer):
            note = f"{frame.source}: {frame.content}" if frame.source else frame.content
            self._add_part(TextContent(text=note, annotations=Annotations(audience=["assistant"])))
        else:
            self._failed = self._failed or failure(frame)

    async def hear(self, frame: AnyFrame, progress: Callable[[str], Awaitable[None]]) -> None:
        """Take a frame, or pass its message on if it reports progress."""
        if isinstance(frame, frames.Progress):
            await progress(frame.message)
        else:
            self.add(frame)

    def fail(self, failed: Failed) -> None:
        self._failed = self._failed or failed

    def whole(self) -> CallToolResult:
        text = "".join(self._pieces)
        if self._size > self._kept_size:
            text += f"\n[{self._size - self._kept_size} more characters were cut]"
        content: list[Content] = [TextContent(text=text)] if text else []
        content += self._parts
        if self._failed:
            content.append(TextContent(text=f"{self._failed.code}: {self._failed.message}"))
        return CallToolResult(content=[*content], is_error=self._failed is not None)

    def _add_part(self, part: Content) -> None:
        if len(self._parts) < MAX_PARTS:
            self._parts.append(part)

    def _attached(self, attachment: Any) -> Content:
        fields = attachment if isinstance(attachment, dict) else {}
        url, mime = str(fields.get("url", "")), str(fields.get("mime_type", ""))
        data = media.at(url, MAX_FILE) if mime.startswith(PLAYED) else None
        if data is not None and media.mime_of(data) == mime and self._media + len(data) <= MAX_MEDIA:
            self._media += len(data)
            kind = ImageContent if mime.startswith("image/") else AudioContent
            return kind(data=base64.b64encode(data).decode(), mime_type=mime)
        caption, size = fields.get("caption"), fields.get("size")
        return ResourceLink(
            name=os.path.basename(url[:1000].rstrip("/")) or "file",
            uri=Path(url).as_uri() if url.startswith("/") else url,
            description=caption if isinstance(caption, str) else None,
            mime_type=mime or None,
            size=size if isinstance(size, int) else None,
        )


def enclosed(data: bytes) -> ImageContent | AudioContent | TextContent | EmbeddedResource:
    """Returns a file as content, of the type that its first bytes show."""
    if len(data) > MAX_FILE:
        raise Fault("EFBIG", f"a file of the prompt is over {MAX_FILE >> 20} MiB")
    encoded = base64.b64encode(data).decode()
    mime = media.mime_of(data)
    if mime and mime.startswith(PLAYED):
        kind = ImageContent if mime.startswith("image/") else AudioContent
        return kind(data=encoded, mime_type=mime)
    with contextlib.suppress(UnicodeDecodeError):
        return TextContent(text=data.decode())
    return EmbeddedResource(resource=BlobResourceContents(uri="prompt:file", blob=encoded))
