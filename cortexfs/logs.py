"""The objects' logs: one JSON line a finished run, bounded by rotation (abi.md 3).

A line is kept in memory for at most FLUSH_SECONDS and then appended, so that a call does not pay
for a write; whoever reads or stats a log gets what was logged up to then. `NAME.1` is the rotated
half and is not shown in the tree.
This file must never know what a line says; who calls it keeps inputs, outputs and secrets out.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import trio

FLUSH_SECONDS = 0.1


class Logs:
    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._pending: dict[tuple[str, str], list[bytes]] = {}
        self._wake = trio.Event()
        self.error = ""

    def append(self, class_: str, name: str, line: bytes) -> None:
        """Log one line, which ends in a newline."""
        self._pending.setdefault((class_, name), []).append(line)
        self._wake.set()

    async def run(self) -> None:
        """Write what was appended, until cancelled; nothing is written when nothing happens."""
        while True:
            await self._wake.wait()
            await trio.sleep(FLUSH_SECONDS)
            self._wake = trio.Event()
            self.flush()

    def flush(self) -> None:
        pending, self._pending = self._pending, {}
        failure = ""
        for (class_, name), lines in pending.items():
            try:
                self._write(self._path(class_, name), b"".join(lines))
            except OSError as error:  # a full disk must not end the service
                failure = f"the log of {class_}/{name} cannot be written: {error.strerror}"
        if pending:
            self.error = failure

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab", buffering=0) as file:
            size = file.tell()
            if not size or size + len(data) <= self._limit:
                if file.write(data) != len(data):  # what is left of the disk; half a line is none
                    file.truncate(size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return
        os.replace(path, path.with_name(path.name + ".1"))
        self._write(path, data)

    def size(self, class_: str, name: str) -> int:
        return self._stat(class_, name)[0]

    def mtime(self, class_: str, name: str) -> float:
        """When the log last grew; 0 when it never did."""
        return self._stat(class_, name)[1]

    def read(self, class_: str, name: str, offset: int, size: int) -> bytes:
        self._settle(class_, name)
        try:
            with open(self._path(class_, name), "rb", buffering=0) as file:
                return os.pread(file.fileno(), size, offset)
        except FileNotFoundError:
            return b""

    def find(self, class_: str, name: str, part: bytes) -> bytes | None:
        """The line that holds these bytes, also in the rotated half. It reads all: call it in a thread."""
        path = self._path(class_, name)
        for half in (path, path.with_name(path.name + ".1")):
            with contextlib.suppress(FileNotFoundError):
                data = half.read_bytes()
                if (at := data.find(part)) >= 0:
                    return data[data.rfind(b"\n", 0, at) + 1 : data.find(b"\n", at)]
        return None

    def drop(self, class_: str, name: str) -> None:
        """The object has gone, and who makes and removes many of them is to leave nothing. It blocks."""
        self._pending.pop((class_, name), None)
        path = self._path(class_, name)
        for half in (path, path.with_name(path.name + ".1")):
            with contextlib.suppress(OSError):
                half.unlink()

    def _stat(self, class_: str, name: str) -> tuple[int, float]:
        self._settle(class_, name)
        try:
            found = os.stat(self._path(class_, name))
        except FileNotFoundError:
            return 0, 0.0
        return found.st_size, found.st_mtime

    def _settle(self, class_: str, name: str) -> None:
        if (class_, name) in self._pending:
            self.flush()

    def _path(self, class_: str, name: str) -> Path:
        return self._directory / class_ / f"{name}.jsonl"
