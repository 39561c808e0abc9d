"""Pictures, sounds and films that tools make: their MIME types, and the bytes at their addresses.

    mime = mime_of(data)             by the first bytes, and never by a name
    data = at("/tmp/a.png", 1 << 20)     None where it is no file, is too large, or is elsewhere

Rule: a file that a tool names is read without waiting, with the rights of this process.
This file must never know how a picture is shown.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import stat

# The MIME type, the first bytes of such a file, and those from the eighth on where two types begin alike.
_SIGNS: tuple[tuple[str, tuple[bytes, ...], bytes], ...] = (
    ("image/png", (b"\x89PNG\r\n\x1a\n",), b""),
    ("image/jpeg", (b"\xff\xd8\xff",), b""),
    ("image/gif", (b"GIF87a", b"GIF89a"), b""),
    ("image/webp", (b"RIFF",), b"WEBP"),
    ("audio/wav", (b"RIFF",), b"WAVE"),
    ("audio/mpeg", (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"), b""),
    ("audio/ogg", (b"OggS",), b""),
    ("audio/flac", (b"fLaC",), b""),
    ("video/webm", (b"\x1aE\xdf\xa3",), b""),
    ("application/pdf", (b"%PDF-",), b""),
)


def mime_of(data: bytes) -> str | None:
    if data[4:8] == b"ftyp":
        return "video/mp4"
    for mime, signs, further in _SIGNS:
        if data.startswith(signs) and data[8:].startswith(further):
            return mime
    return None


def at(url: str, most: int) -> bytes | None:
    """Returns the bytes at an address that costs nothing to read: a file, or a `data:` URL."""
    with contextlib.suppress(OSError, ValueError):
        if url.startswith("data:") and ";base64," in url[:100]:
            found = base64.b64decode(url.partition(",")[2], validate=True)
            return found if len(found) <= most else None
        if url.startswith("/"):
            found = content(url, most + 1)
            return found if len(found) <= most else None
    return None


def content(path: str, most: int) -> bytes:
    """Returns the beginning of a regular file. Raises OSError for any other: reading a pipe or a device must
    not wait."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read(most)
