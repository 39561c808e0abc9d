"""The questions that a WebAssembly plugin may ask its host: the functions of env.

Rules: a length is untrusted input. Every buffer to write to is in/out: its length word holds the available
room (0: 64 KiB) and then the written length. Longer data are cut. The engine's clock does not interrupt
Python, so nothing here takes long: waits can be woken, and repetitions are counted.
This file must never know how tools are called.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import time
from collections.abc import Mapping

import msgspec

from cortexfs.core.manifest.targets import NETWORK, WasmModule
from cortexfs.host.call.plugin_state import MAX_KEY, MAX_KEYS, MAX_TOTAL, MAX_VALUE, database
from cortexfs.host.net import fetch
from cortexfs.host.wasm import code as wasmcode
from cortexfs.host.wasm.instance import ABI, ContractViolation, HostFunction, Instance
from cortexfs.net import web

ROOM = 65536  # if a length word says 0
MAX_RANDOM = 65536
MAX_LINE = 4 << 10
MAX_LINES = 1000  # of the log, for a call
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class WasmTurn:
    """One call of the plugin's, and its end if it was given up."""

    def __init__(self) -> None:
        self.ended = ""  # the error code of its early end, if any
        self.wake: web.Wake = queue.SimpleQueue()
        self.lines = 0

    def end(self, code: str) -> None:
        self.ended = self.ended or code
        self.wake.put(None)


class CallAbandoned(Exception):
    """The call was cancelled or is late."""


def spelled(text: str) -> str:
    """Returns the text as a part of a variable's name."""
    return re.sub(r"[^A-Z0-9_]", "_", text.upper())


def variables(plugin: str, key: str) -> tuple[str, ...]:
    """Returns the variables that may hold a setting; the first that is set counts."""
    own = (f"CORTEX_PLUGIN_{plugin.upper()}_{key.upper()}", f"CORTEX_PLUGIN_{spelled(plugin)}_{spelled(key)}")
    return (*own, f"CORTEX_WASM_{key.upper()}", f"CORTEX_WASM_{spelled(key)}")


class HostFunctions:
    """The functions, for one instance at a time. `turn` is the running call."""

    def __init__(self, plugin: str, declared: WasmModule, state: WasmState) -> None:
        self._plugin = plugin
        self._declared = declared
        self._state = state
        self.turn = WasmTurn()

    def functions(self, instance: Instance) -> Mapping[str, HostFunction]:
        self._instance = instance
        return {name: getattr(self, name.removeprefix("host_")) for name in wasmcode.IMPORTS}

    def admit(self) -> None:
        if self.turn.ended:
            raise CallAbandoned

    # -- memory, time and chance

    def alloc(self, size: int) -> int:
        return self._instance.alloc(size)

    def free(self, at: int) -> None:
        self._instance.heap.free(at)

    def get_abi_version(self) -> int:
        return ABI

    def get_time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def random(self, at: int, length: int) -> None:
        self._instance.memory.check(at, length)
        if length > MAX_RANDOM:
            raise ContractViolation(f"host_random gives {MAX_RANDOM} bytes at a time, not {length}")
        self._instance.memory.write(at, os.urandom(length))

    # -- the log

    def log(self, at: int, length: int) -> None:
        text = self._instance.memory.read(at, length, MAX_LINE).decode(errors="replace")
        self.turn.lines += 1
        if self.turn.lines <= MAX_LINES:
            print(f"{self._plugin}: {_CONTROL.sub(' ', text)}", file=sys.stderr)
        elif self.turn.lines == MAX_LINES + 1:
            message = f"over {MAX_LINES} lines in one call; the others are lost"
            print(f"{self._plugin}: {message}", file=sys.stderr)

    # -- its settings and state

    def get_config(self, key: int, key_length: int, out: int, out_length: int) -> int:
        name = self._instance.memory.read(key, key_length, MAX_KEY + 1)
        return self._give(self._setting(name), out, out_length)

    def _setting(self, name: bytes) -> bytes | None:
        try:
            key = name.decode()
        except UnicodeDecodeError:
            return None
        if not key or len(name) > MAX_KEY:
            return None
        value = self._declared.config.get(key)
        if value is None:
            has = self._declared.environment
            value = next((has[each] for each in variables(self._plugin, key) if has.get(each)), None)
        if value is None:
            return None
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return text.encode(errors="replace") or None

    def set_state(self, key: int, key_length: int, value: int, value_length: int) -> None:
        memory = self._instance.memory
        self._state.set(memory.read(key, key_length), memory.read(value, value_length))

    def get_state(self, key: int, key_length: int, out: int, out_length: int) -> int:
        name = self._instance.memory.read(key, key_length, MAX_KEY + 1)
        return self._give(self._state.get(name), out, out_length)

    def _give(self, data: bytes | None, out: int, out_length: int) -> int:
        """Returns 0; or -1, with length 0, if there is nothing."""
        memory = self._instance.memory
        room = memory.word(out_length) or ROOM
        memory.write(out, part := _cut(data or b"", room))
        memory.set_word(out_length, len(part))
        return -1 if data is None else 0

    # -- the network

    def http_request(
        self,
        method: int, method_length: int,
        url: int, url_length: int,
        body: int, body_length: int,
        headers: int, headers_length: int,
        out_status: int, out: int, out_length: int,
    ) -> int:  # fmt: skip
        memory = self._instance.memory
        room = min(memory.word(out_length) or ROOM, fetch.MAX_BODY)
        memory.check(out, room)
        memory.check(out_status, 4)  # before anything is sent
        texts = ((method, method_length), (url, url_length), (body, body_length), (headers, headers_length))
        fields = [memory.read(*each, most=fetch.MAX_REQUEST + 1) for each in texts]
        answer = self._fetch(*fields)
        memory.set_word(out_status, answer.status)
        memory.write(out, part := answer.body[:room])
        memory.set_word(out_length, len(part))
        return 0 if answer.reached else -1

    def _fetch(self, method: bytes, url: bytes, body: bytes, headers: bytes) -> fetch.HttpAnswer:
        if not any(each in self._declared.capabilities for each in NETWORK):
            return fetch.HttpAnswer(403, b"host: network:fetch permission denied", False)
        if not url:
            return fetch.HttpAnswer(400, b"host: empty URL", False)
        if max(len(url), len(body), len(headers)) > fetch.MAX_REQUEST:
            return fetch.HttpAnswer(400, b"host: the request has over 1 MiB", False)
        try:
            fields = fetch.headers_of(msgspec.json.decode(headers or b"{}"))
            request = web.WebRequest(method.decode() or "GET", url.decode(), fields or {}, body)
        except (ValueError, RecursionError):  # also for text that is not UTF-8
            fields = None
        if fields is None:
            return fetch.HttpAnswer(400, b"host: the headers are no JSON object of strings", False)
        self.turn.wake = queue.SimpleQueue()
        self.admit()  # after that: the end of the turn wakes the request, or is seen here
        if (answer := fetch.fetch(request, self._declared.private, self.turn.wake)) is None:
            raise CallAbandoned
        return answer


def _cut(data: bytes, room: int) -> bytes:
    """Returns no more than there is room for, and no half of a character."""
    if len(data) <= room:
        return data
    while room and data[room] & 0xC0 == 0x80:
        room -= 1
    return data[:room]


_TABLE = "CREATE TABLE IF NOT EXISTS state (plugin TEXT, key BLOB, value BLOB, PRIMARY KEY (plugin, key))"


class WasmState:
    """The plugin's memory between its calls, and beyond its process if `path` is a file: texts by key.

    A call's changes are written when the call ends, in one transaction, even if the call has failed. A killed
    process loses its last call, never half of one. One thread at a time uses it.
    """

    def __init__(self, path: str, plugin: str) -> None:
        self._plugin = plugin
        self._database = database(path, _TABLE)
        self._set: dict[bytes, bytes] = {}
        self._room: tuple[int, int] | None = None

    def close(self) -> None:
        self._database.close()

    def get(self, key: bytes) -> bytes | None:
        if key in self._set:
            return self._set[key]
        query = "SELECT value FROM state WHERE plugin = ? AND key = ?"
        found = self._database.execute(query, (self._plugin, key)).fetchone()
        return bytes(found[0]) if found else None

    def set(self, key: bytes, value: bytes) -> None:
        if not 0 < len(key) <= MAX_KEY:
            raise ContractViolation(f"a key of its state has {len(key)} bytes; it may have 1 to {MAX_KEY}")
        if len(value) > MAX_VALUE:
            raise ContractViolation(
                f"a value of its state has {len(value)} bytes, over the limit of {MAX_VALUE}"
            )
        before = self.get(key)
        if self._room is None:
            size = "count(*), coalesce(sum(length(key) + length(value)), 0)"
            every = f"SELECT {size} FROM state WHERE plugin = ?"
            self._room = self._database.execute(every, (self._plugin,)).fetchone()
        keys, total = self._room
        keys += before is None
        total += len(value) - len(before) if before is not None else len(key) + len(value)
        if keys > MAX_KEYS or total > MAX_TOTAL:
            raise ContractViolation(f"its state is over {MAX_KEYS} keys or {MAX_TOTAL >> 20} MiB")
        self._room = keys, total
        self._set[key] = value

    def keep(self) -> None:
        """Write the changes of a call that is over."""
        self._room = None
        if self._set:
            rows = [(self._plugin, key, value) for key, value in self._set.items()]
            self._set = {}
            self._database.execute("BEGIN IMMEDIATE")
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", rows)
