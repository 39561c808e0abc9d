"""A WebAssembly plugin's memory between its calls, and beyond its process: texts by key, in SQLite.

Rules: what a call sets is written when that call ends, in one transaction, also when the call has failed; a
process that is killed loses its last call, never half of one. Everything is bounded, and what does not fit
is told. There is one connection, used by one thread at a time.
This file must never know what the keys mean, nor how a plugin is called.
"""

from __future__ import annotations

import sqlite3

MAX_KEY = 1 << 10
MAX_VALUE = 64 << 10
MAX_KEYS = 10_000
MAX_TOTAL = 16 << 20
_BUSY_SECONDS = 2.0  # another host of the same user writes, for some ms
_TABLE = "CREATE TABLE IF NOT EXISTS state (plugin TEXT, key BLOB, value BLOB, PRIMARY KEY (plugin, key))"


class Full(Exception):
    """The plugin wants to keep too much."""


class WasmState:
    """`path` is the file; without one, nothing outlives the process."""

    def __init__(self, path: str, plugin: str) -> None:
        self._plugin = plugin
        self._database = sqlite3.connect(
            path or ":memory:", timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        if path:
            self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(_TABLE)
        self._set: dict[bytes, bytes] = {}
        self._room: tuple[int, int] | None = None

    def get(self, key: bytes) -> bytes | None:
        if key in self._set:
            return self._set[key]
        found = self._database.execute(
            "SELECT value FROM state WHERE plugin = ? AND key = ?", (self._plugin, key)
        ).fetchone()
        return bytes(found[0]) if found else None

    def set(self, key: bytes, value: bytes) -> None:
        if not 0 < len(key) <= MAX_KEY:
            raise Full(f"a key of its state has {len(key)} bytes; it may have 1 to {MAX_KEY}")
        if len(value) > MAX_VALUE:
            raise Full(f"a value of its state has {len(value)} bytes, over the limit of {MAX_VALUE}")
        before = self.get(key)
        keys, size = self._room or self._counted()
        keys += before is None
        size += len(value) - len(before) if before is not None else len(key) + len(value)
        if keys > MAX_KEYS or size > MAX_TOTAL:
            raise Full(f"its state is over {MAX_KEYS} keys or {MAX_TOTAL >> 20} MiB")
        self._room = keys, size
        self._set[key] = value

    def _counted(self) -> tuple[int, int]:
        size = "SELECT count(*), coalesce(sum(length(key) + length(value)), 0) FROM state WHERE plugin = ?"
        keys, total = self._database.execute(size, (self._plugin,)).fetchone()
        return int(keys), int(total)

    def keep(self) -> None:
        """The call is over."""
        self._room = None
        if self._set:
            rows = [(self._plugin, key, value) for key, value in self._set.items()]
            self._set = {}
            self._database.execute("BEGIN IMMEDIATE")
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", rows)
