"""fs.read: a file or a part of it, streamed in chunks, so that memory does not depend on its size."""

from __future__ import annotations

import os
from binascii import b2a_base64
from codecs import utf_8_decode
from collections.abc import Generator, Iterable, Iterator
from typing import Annotated, Literal

from cortexfs.sdk import ExecutionFailed, InvalidInput, ToolEffect, ToolEffectKind, tool
from cortexfs.tools.support.paths import at_least, checked, opened_regular, shown

# A frame takes 128 KiB of text. A chunk starts with at most 3 bytes of a character that the last one began.
TEXT_CHUNK = (128 << 10) - 4
BASE64_CHUNK = 96 << 10  # becomes 128 KiB
_CONTINUATION = bytes(range(0x80, 0xC0))


@tool(
    name="fs.read",
    effects=[ToolEffect(ToolEffectKind.READ_FILE)],
    background_safe=True,
    description="""\
Read a file, whole or in part, and return exactly its content, without line numbers or other decoration.
Use it to look at source code, configuration, logs and data. For a long file give offset and limit \
(lines), or start and length (bytes); without them the whole file is returned, however large. Lines end \
at a newline, and a carriage return is part of the line.
It is for UTF-8 text: for anything else it fails with EILSEQ, and encoding=base64 returns the bytes in \
base64. A character belongs to the byte range that its first byte lies in, so adjacent ranges join \
without a gap.
Do not use it for directories (fs.list), to find text in many files (fs.search), or for pipes and \
devices.""",
)
def read(
    path: Annotated[str, "The file to read."],
    offset: Annotated[int, "The first line to return; lines count from 1."] = 1,
    limit: Annotated[int | None, "How many lines to return; all, if left out."] = None,
    start: Annotated[int | None, "The first byte to return; bytes count from 0."] = None,
    length: Annotated[int | None, "How many bytes to return; all, if left out."] = None,
    encoding: Annotated[Literal["utf-8", "base64"], "base64 for files that are not text."] = "utf-8",
) -> Generator[str, None, str]:
    at_least(1, offset=offset, limit=limit)
    at_least(0, start=start, length=length)
    by_lines, by_bytes = (offset, limit) != (1, None), (start, length) != (None, None)
    if by_lines and (by_bytes or encoding == "base64"):
        raise InvalidInput("offset and limit count lines of text: they do not go with bytes or base64")
    with opened_regular(checked(path)) as file:
        if start:
            os.lseek(file.fileno(), min(start, 2**63 - 1), os.SEEK_SET)
        if encoding == "base64":
            return (yield from _but_last(_base64(_chunks(file.fileno(), length, BASE64_CHUNK))))
        chunks = _characters(file.fileno(), start or 0, length)
        text = _text(_lines(chunks, offset - 1, limit) if by_lines else chunks, path)
        return (yield from _but_last(text))


def _but_last(pieces: Iterable[str]) -> Generator[str, None, str]:
    """Yields all pieces but the last, and returns the last, which is sent together with the end."""
    last = ""
    try:
        for piece in pieces:
            if last:
                yield last
            last = piece
    except ExecutionFailed:
        yield last
        raise
    return last


def _chunks(fd: int, length: int | None, size: int) -> Iterator[bytes]:
    while length is None or length > 0:
        chunk = os.read(fd, size if length is None else min(size, length))
        if not chunk:
            return
        if length is not None:
            length -= len(chunk)
        yield chunk


def _characters(fd: int, start: int, length: int | None) -> Iterator[bytes]:
    """Yields the bytes of the characters that begin within the range."""
    begun = not start
    for chunk in _chunks(fd, length, TEXT_CHUNK):
        if not begun:
            chunk = chunk[:3].lstrip(_CONTINUATION) + chunk[3:]
        begun = begun or bool(chunk)
        yield chunk
    if length and begun:
        rest = os.read(fd, 3)
        yield rest[: len(rest) - len(rest.lstrip(_CONTINUATION))]


def _lines(chunks: Iterable[bytes], skip: int, limit: int | None) -> Iterator[bytes]:
    for chunk in chunks:
        if skip:
            newlines = chunk.count(b"\n")
            if newlines < skip:
                skip -= newlines
                continue
            chunk = chunk[_after(chunk, skip) :]
            skip = 0
        if limit is not None:
            newlines = chunk.count(b"\n")
            if newlines >= limit:
                yield chunk[: _after(chunk, limit)]
                return
            limit -= newlines
        yield chunk


def _after(chunk: bytes, newlines: int) -> int:
    """Returns the position behind that many newlines."""
    place = 0
    for _ in range(newlines):
        place = chunk.index(b"\n", place) + 1
    return place


def _text(chunks: Iterable[bytes], path: str) -> Iterator[str]:
    rest = b""
    try:
        for chunk in chunks:
            data = rest + chunk if rest else chunk
            text, length = utf_8_decode(data, "strict", False)
            rest = data[length:]
            if text:
                yield text
        utf_8_decode(rest, "strict", True)
    except UnicodeDecodeError:
        raise ExecutionFailed(
            f"{shown(path)} is not UTF-8 text; encoding=base64 returns its bytes", "EILSEQ"
        ) from None


def _base64(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        size = len(data) - len(data) % 3
        rest = data[size:]
        if size:
            yield b2a_base64(data[:size], newline=False).decode()
    if rest:
        yield b2a_base64(rest, newline=False).decode()
