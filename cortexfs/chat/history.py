"""The lines that were typed before: one JSON string each, in a file that is its user's alone and stays small.

Rules: several chats append to one file, so a line is written at once and whole; whoever opens a file
that has grown too long writes its newer half anew. A history that cannot be kept is no reason to fail.
This file must never know terminals.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

MAX_ENTRIES = 1000
MAX_ENTRY = 16 << 10  # a pasted log is not what somebody looks for again
MAX_FILE = 1 << 20


class History:
    def __init__(self, path: Path | None) -> None:
        """Without a path it remembers nothing."""
        self._path = path or Path(os.devnull, "nowhere")

    def load(self) -> list[str]:
        """The entries, oldest first."""
        try:
            with open(self._path, "rb", opener=_private) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - MAX_FILE))
                entries = _entries(file.read(MAX_FILE))
        except OSError:
            return []
        if size > MAX_FILE or len(entries) > 2 * MAX_ENTRIES:
            with contextlib.suppress(OSError):
                self._shorten(entries)
        return entries[-MAX_ENTRIES:]

    def add(self, text: str) -> None:
        # A terminal of another locale may have sent what is no character.
        line = msgspec.json.encode(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")) + b"\n"
        if len(line) > MAX_ENTRY:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path, "ab", buffering=0, opener=_private) as file:
                file.write(line)

    def _shorten(self, entries: list[str]) -> None:
        kept: list[bytes] = []
        room = MAX_FILE // 2
        for entry in reversed(entries[-MAX_ENTRIES:]):
            line = msgspec.json.encode(entry) + b"\n"
            if (room := room - len(line)) < 0:
                break
            kept.append(line)
        aside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with open(aside, "wb", opener=_private) as file:
            file.writelines(reversed(kept))
        os.replace(aside, self._path)


def _private(path: str, flags: int) -> int:
    """A pipe in its place is not waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


def _entries(data: bytes) -> list[str]:
    """Returns the lines that can be read; the first may be cut, and other programs may have written here."""
    found = []
    for line in data.split(b"\n"):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found.append(msgspec.json.decode(line, type=str))
    return found
