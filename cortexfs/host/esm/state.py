"""An ESM plugin's memory beyond its process: texts by key, its own settings, and what the host reported to
it.

Rules: each change is a transaction of its own, so a resolved promise means that the database has the change.
All sizes are bounded, and the plugin gets an error for a change beyond them. One connection serves all
processes of a plugin in a host, one at a time.
This file must never know what the keys mean, nor how a plugin asks.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from cortexfs.host.call.plugin_state import MAX_KEY, MAX_KEYS, MAX_TOTAL, MAX_VALUE, database

_STATE, _SETTING, _TOLD = "state", "setting", "told"
_TABLE = """CREATE TABLE IF NOT EXISTS kept
    (plugin TEXT, kind TEXT, key TEXT, size INTEGER, value TEXT, PRIMARY KEY (plugin, kind, key))
    WITHOUT ROWID"""

_UNKNOWN = (-1, 0, 0)  # version, keys and bytes


class StateRefusal(Exception):
    """The plugin's request is impossible; the sentence is for its author."""


class EsmState:
    """`path` is the file; without one, nothing outlives the host."""

    def __init__(self, path: str, plugin: str) -> None:
        self._plugin = plugin
        self._lock = threading.Lock()
        self._database = database(path, _TABLE)
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._room = _UNKNOWN
        self._answers: dict[str, Callable[..., Any]] = {
            "state.get": lambda key: self._get(_STATE, _key(key)),
            "state.set": lambda key, value: self._set(_STATE, _key(key), value),
            "state.delete": lambda key: self._remove(_STATE, _key(key)),
            "state.list": lambda: self._values(_STATE),
            "config.set": lambda key, value: self._set(_SETTING, _key(key), _text(value)),
        }

    def close(self) -> None:
        """Close the database; later requests are refused."""
        with self._lock:
            self._database.close()

    def answer(self, request: str, args: tuple[Any, ...]) -> Any:
        """Answer a plugin's request. Raises `StateRefusal` with the reason if it fails."""
        try:
            return self._answers[request](*args)
        except (KeyError, TypeError):
            raise StateRefusal(f"the host has no request {request[:100]} with these arguments") from None
        except sqlite3.Error as error:
            raise StateRefusal(f"its state cannot be read or written: {error}") from None

    def settings(self) -> dict[str, Any]:
        """Returns the settings that the plugin itself has set."""
        return {key: msgspec.json.decode(value) for key, value in self._values(_SETTING).items()}

    def last_value(self, name: str) -> Any:
        """Returns the value that the plugin was last told; None if none."""
        value = self._get(_TOLD, name)
        return None if value is None else msgspec.json.decode(value)

    def tell(self, name: str, value: Any) -> None:
        with self._lock:
            self._put(_TOLD, name, _text(value), 0)

    def forget(self, name: str) -> None:
        """Forget that the plugin was told."""
        self._remove(_TOLD, name)

    # -- the table

    def _remove(self, kind: str, key: str) -> None:
        with self._lock:
            statement = "DELETE FROM kept WHERE plugin = ? AND kind = ? AND key = ?"
            self._database.execute(statement, (self._plugin, kind, key))
            self._room = _UNKNOWN

    def _get(self, kind: str, key: str) -> str | None:
        with self._lock:
            query = "SELECT value FROM kept WHERE plugin = ? AND kind = ? AND key = ?"
            found = self._database.execute(query, (self._plugin, kind, key)).fetchone()
        return found and str(found[0])

    def _values(self, kind: str) -> dict[str, str]:
        with self._lock:
            query = "SELECT key, value FROM kept WHERE plugin = ? AND kind = ? ORDER BY key"
            return dict(self._database.execute(query, (self._plugin, kind)).fetchall())

    def _set(self, kind: str, key: str, value: str) -> None:
        if not isinstance(value, str) or (size := len(value.encode(errors="replace"))) > MAX_VALUE:
            raise StateRefusal(f"a value of its state must be a text of at most {MAX_VALUE} bytes")
        size += len(key.encode(errors="replace"))
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            with self._database:
                query = "SELECT size FROM kept WHERE plugin = ? AND kind = ? AND key = ?"
                before = self._database.execute(query, (self._plugin, kind, key)).fetchone()
                keys, total = self._count()
                keys, total = keys + (before is None), total + size - (before[0] if before else 0)
                if keys > MAX_KEYS or total > MAX_TOTAL:
                    raise StateRefusal(f"its state is over {MAX_KEYS} keys or {MAX_TOTAL >> 20} MiB")
                self._put(kind, key, value, size)
            self._room = (self._version(), keys, total)

    def _put(self, kind: str, key: str, value: str, size: int) -> None:
        statement = "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)"
        self._database.execute(statement, (self._plugin, kind, key, size, value))

    def _count(self) -> tuple[int, int]:
        """Returns keys and bytes, counted again only if another connection has written."""
        if self._room[0] != self._version():
            every = "SELECT count(*), coalesce(sum(size), 0) FROM kept WHERE plugin = ? AND kind != ?"
            self._room = (self._version(), *self._database.execute(every, (self._plugin, _TOLD)).fetchone())
        return self._room[1:]

    def _version(self) -> int:
        return int(self._database.execute("PRAGMA data_version").fetchone()[0])


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _key(key: object) -> str:
    if not isinstance(key, str) or not 0 < len(key.encode(errors="replace")) <= MAX_KEY:
        raise StateRefusal(f"a key of its state must be a text of 1 to {MAX_KEY} bytes")
    return key
