"""The logs of runs: one JSON line for each finished run, bounded by rotation (abi.md 3.18, 3.19).

    tool/fs.read.jsonl             all runs of an object, for the daemon's owner
    home/1000/tool/fs.read.d/log   one user's runs of it, for that user (core/tree/session_places.py
    has the layout)

A line is kept in memory for at most FLUSH_SECONDS and then appended, so that a call does not pay for a write.
A read or stat of a log includes all lines logged up to then. `NAME.1` is the rotated half and is not shown in
the tree. Each user's lines have a file of their own, so that no user's runs rotate another's away. A user has
MAX_OF_USER such files; beyond that, the files with the oldest last write are removed.
This file must never know what a line says; its callers keep inputs, outputs and secrets out.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

import trio

from cortexfs.core.tree.session_places import RUNS_NAME
from cortexfs.state import whole_files

FLUSH_SECONDS = 0.1
MAX_OF_USER = 1000  # so that listing a home stays quick, however many tools there are
OLDER = ".1"

log = logging.getLogger("cortexfs.state.run_logs")


class _Log(NamedTuple):
    class_: str
    name: str
    uid: int | None  # the user of a user's own log; None for the object's log


class Logs:
    def __init__(self, directory: Path, limit: int) -> None:
        self.root = directory
        self._limit = limit
        self._pending: dict[_Log, list[bytes]] = {}
        self._grown: set[int] = set()  # users with a new log
        self._wake = trio.Event()
        self.error = ""
        self.lost = ""  # that lines were lost, also once the fault is over

    def append(self, class_: str, name: str, line: bytes, uid: int | None = None) -> None:
        """Log one line, which ends in a newline. With a uid, it goes to that user's own log of the object."""
        self._pending.setdefault(_Log(class_, name, uid), []).append(line)
        self._wake.set()

    async def run(self) -> None:
        """Write appended lines, until cancelled. While no line is appended, nothing is written."""
        while True:
            await self._wake.wait()
            await trio.sleep(FLUSH_SECONDS)
            self._wake = trio.Event()
            self.flush()
            while self._grown:
                await trio.to_thread.run_sync(self.trim, self._grown.pop())

    def flush(self) -> None:
        """Write all lines that were appended up to now."""
        pending, self._pending = self._pending, {}
        self._write_all(pending)

    def settle(self, uid: int) -> None:
        self._write_all({which: self._pending.pop(which) for which in [*self._pending] if which.uid == uid})

    def _write_all(self, pending: dict[_Log, list[bytes]]) -> None:
        failure = ""
        for which, lines in pending.items():
            try:
                self._write(which, b"".join(lines))
            except OSError as error:  # a full disk must not end the service
                if not (failure or self.error):  # warn once, as a disk stays full for a while
                    log.warning("the log of %s/%s cannot be written: %s", *which[:2], error.strerror)
                failure = f"a log of runs cannot be written: {error.strerror}; daemon.log names the log"
                self.lost = f"a log of runs lacks lines, as it could not be written: {error.strerror}"
        if pending:
            self.error = failure

    def _write(self, which: _Log, data: bytes) -> None:
        path = self._path(which)
        with self._opened(path) as file:
            size = file.tell()
            if not size and which.uid is not None:
                self._grown.add(which.uid)
            if not size or size + len(data) <= self._limit:
                whole_files.append(file.fileno(), data, size)  # half a line is useless
                return
        os.replace(path, _older(path))
        self._write(which, data)

    @staticmethod
    def _opened(path: Path) -> BinaryIO:
        """Returns the open file. Creates it and its folder, which its user may be removing just now."""
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):
                return open(path, "ab", buffering=0, opener=whole_files.private)
            path.parent.mkdir(parents=True, exist_ok=True)
        raise FileNotFoundError(errno.ENOENT, "its folder is removed again and again", path)

    def stat(self, class_: str, name: str) -> tuple[int, float]:
        """Returns the log's size, and the time when it last grew; both are 0 if it never did."""
        try:
            found = os.stat(self._path(self._settled(class_, name)))
        except FileNotFoundError:
            return 0, 0.0
        return found.st_size, found.st_mtime

    def read(self, class_: str, name: str, offset: int, size: int) -> bytes:
        which = self._settled(class_, name)
        try:
            with open(self._path(which), "rb", buffering=0) as file:
                return os.pread(file.fileno(), size, offset)
        except FileNotFoundError:
            return b""

    def find(self, class_: str, name: str, part: bytes, uid: int | None = None) -> bytes | None:
        """Returns the line that contains `part`, also of the rotated half. It reads all, so use a thread."""
        path = self._path(_Log(class_, name, uid))
        for half in (path, _older(path)):
            with contextlib.suppress(FileNotFoundError):
                data = half.read_bytes()
                if (at := data.find(part)) >= 0:
                    return data[data.rfind(b"\n", 0, at) + 1 : data.find(b"\n", at)]
        return None

    def drop(self, class_: str, name: str) -> None:
        """Remove the log of an object that is gone: many short-lived objects leave nothing. It blocks."""
        which = _Log(class_, name, None)
        self._pending.pop(which, None)
        _remove(self._path(which))

    def trim(self, uid: int) -> None:
        """Remove a user's oldest logs beyond MAX_OF_USER. It blocks."""
        home = self.root / "home" / str(uid)
        found = [path for depth in ("*", "model/*") for path in home.glob(f"{depth}/*.d/{RUNS_NAME}")]
        for path in sorted(found, key=_written)[:-MAX_OF_USER]:
            _remove(path)
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    def _settled(self, class_: str, name: str) -> _Log:
        which = _Log(class_, name, None)
        if which in self._pending:
            self.flush()
        return which

    def _path(self, which: _Log) -> Path:
        if which.uid is None:
            return self.root / which.class_ / f"{which.name}.jsonl"
        return self.root / "home" / str(which.uid) / which.class_ / f"{which.name}.d" / RUNS_NAME


def _older(path: Path) -> Path:
    return path.with_name(path.name + OLDER)


def _written(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0


def _remove(path: Path) -> None:
    for half in (_older(path), path):
        with contextlib.suppress(OSError):
            half.unlink()
