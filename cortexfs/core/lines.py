"""Lines of at most 1 MiB, both ways: bytes into lines, frames into lines.

Rules: at most one line is held, and of that at most 1 MiB. A longer line on the way in is dropped
as it streams. On the way out, a longer text goes into several frames.
This file must never know what a request or a session is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE, Frame

# The beginning of an event's line (abi.md 6.1: the field order is type, id, run).
HEAD = re.compile(rb'^\{"type":"([a-z_]+)","id":"([1-9][0-9]{0,17})","run":"([^"\\\n]+)"', re.MULTILINE)


class LineSplitter:
    """Makes lines, without their newlines, of bytes. None stands for a line that was too long."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._dropping = False

    @property
    def held(self) -> int:
        """Returns how many bytes of an unfinished line are kept: always less than MAX_LINE."""
        return len(self._buffer)

    def drop(self) -> None:
        """Forget the unfinished line; the rest of it is dropped as it streams."""
        self._buffer.clear()
        self._dropping = True

    def feed(self, data: bytes) -> list[bytes | None]:
        """Returns the lines that `data` completes. Empty data is the end, and completes a last line too."""
        if not data:
            return [self._finish()] if self._buffer else []
        found: list[bytes | None] = []
        *ended, rest = data.split(b"\n")
        for part in ended:
            found += self._hold(part)
            if not self._dropping:
                found.append(self._finish())
            self._dropping = False
        return found + self._hold(rest)

    def _hold(self, part: bytes) -> list[None]:
        if self._dropping:
            return []
        if len(self._buffer) + len(part) < MAX_LINE:  # the newline counts
            self._buffer += part
            return []
        self._buffer.clear()
        self._dropping = True
        return [None]

    def _finish(self) -> bytes:
        line = bytes(self._buffer)
        self._buffer.clear()
        return line


def encode(frame: Frame) -> bytes:
    """Returns the lines of a frame that is no event: several if its text is too long for one."""
    lines = []
    rest: Frame | None = frame
    while rest is not None:
        line, rest = _first_line(rest)
        lines.append(line)
    return b"".join(lines)


def events(output: Iterable[Frame], run: str, number: int) -> list[bytes]:
    """Returns the lines of frames that become events of a run, numbered from `number` on."""
    found: list[bytes] = []
    for frame in output:
        rest: Frame | None = frame
        while rest is not None:
            line, rest = _first_line(msgspec.structs.replace(rest, id=str(number + len(found)), run=run))
            found.append(line)
    return found


def _first_line(frame: Frame) -> tuple[bytes, Frame | None]:
    """Returns a line with as much of the frame as a line may hold, and a frame with the rest of its text."""
    text = _text(frame)
    if text is None or len(text) < MAX_LINE:
        line = frames.encode_lines([frame])
        if len(line) <= MAX_LINE:
            return line, None
    room = MAX_LINE - len(frames.encode(_with(frame, "")))
    head = _beginning(text, room) if text and room > 0 else ""
    if text is None or not head:
        raise Fault("EMSGSIZE", f"a {kind(frame)} frame is over {MAX_LINE} bytes and holds no text to split")
    return frames.encode(_with(frame, head)), _with(frame, text[len(head) :])


def kind(frame: Frame) -> str:
    """Returns the value of the frame's `type`."""
    return str(frame.__struct_config__.tag)


def _text(frame: Frame) -> str | None:
    if isinstance(frame, frames.Delta | frames.ReasoningDelta):
        return frame.text
    if isinstance(frame, frames.Message):
        return "".join(part.text for part in frame.content)
    return None


def _with(frame: Frame, text: str) -> Frame:
    if isinstance(frame, frames.Delta | frames.ReasoningDelta):
        return msgspec.structs.replace(frame, text=text)
    if isinstance(frame, frames.Message):
        return msgspec.structs.replace(frame, content=[frames.Text(text)])
    return frame


def _beginning(text: str, room: int) -> str:
    """Returns the longest beginning of `text` that takes at most `room` bytes in a JSON string."""
    text = text[:room]
    body = msgspec.json.encode(text)[1:-1]
    if len(body) <= room:
        return text
    end = room
    while body[end] & 0xC0 == 0x80:  # inside a character's UTF-8
        end -= 1
    slash = body.rfind(b"\\", max(end - 5, 0), end)  # an escape has 2 bytes, or 6
    slashes = slash + 1 - len(body[: slash + 1].rstrip(b"\\"))
    size = 6 if body[slash + 1 : slash + 2] == b"u" else 2
    if slashes % 2 and slash + size > end:  # an even number of backslashes are whole escapes
        end = slash
    return msgspec.json.decode(b'"' + body[:end] + b'"', type=str)
