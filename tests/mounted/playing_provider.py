"""A user's own provider, played by tests: a listing and chat completions, on the loopback.

    with played() as provider:
        provider.url, provider.heard        each request, with the user of the process that sent it

This file must never know the mount.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from tests.waiting import LOOK

SIOCSIFADDR, SIOCSIFFLAGS = 0x8916, 0x8914  # netdevice(7)


class Heard(NamedTuple):
    uid: int  # the user that has connected
    path: str
    key: str
    body: dict[str, Any]


class Provider:
    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.models = ["m1", "vendor/m2"]
        self.words: list[str | dict[str, Any]] = ["hel", "lo ä"]  # the texts, or whole deltas, of an answer
        self.turns: list[list[str | dict[str, Any]]] = []  # the words of the next answers, if they differ
        self.status = 200
        self.holds = threading.Event()  # while not set, answers wait after their first word
        self.holds.set()
        self.left = threading.Event()  # a client has hung up in mid-answer
        self.url = ""

    def uids(self) -> set[int]:
        return {one.uid for one in self.heard}


def _uid_of(*ports: int) -> int:
    """Returns the owner of the other end of an open loopback connection, by its port and ours. An older
    connection to another server may have the same port. Once closed, it has no owner but uid 0."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = {tuple(int(each.partition(":")[2], 16) for each in row[1:3]): int(row[7]) for row in rows}
    return found.get(ports, -1)


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def log_message(self, *_: object) -> None:
        pass

    def _hear(self) -> Heard:
        data = self.rfile.read(int(self.headers.get("content-length", "0")))
        uid = _uid_of(self.client_address[1], self.connection.getsockname()[1])
        key = self.headers.get("authorization", "").removeprefix("Bearer ")
        heard = Heard(uid, self.path, key, json.loads(data) if data else {})
        self.provider.heard.append(heard)
        return heard

    def _say(self, data: bytes, kind: str) -> None:
        self.send_response(self.provider.status)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        self.close_connection = True

    def do_GET(self) -> None:
        self._hear()
        self._say(
            json.dumps({"data": [{"id": id_} for id_ in self.provider.models]}).encode(), "application/json"
        )

    def do_POST(self) -> None:
        self._hear()
        if self.provider.status != 200:
            self._say(b'{"error": {"message": "it is ill"}}', "application/json")
            return
        turns = self.provider.turns
        words = turns.pop(0) if turns else self.provider.words
        deltas = [word if isinstance(word, dict) else {"content": word} for word in words]
        first, *more = [_event({"delta": delta}) for delta in deltas]
        self._say(first, "text/event-stream")
        end = _event({"delta": {}, "finish_reason": "stop"}) + b"data: [DONE]\n\n"
        try:
            while not self.provider.holds.wait(LOOK):
                self.wfile.write(b": still\n\n")
            self.wfile.write(b"".join(more) + end)
        except OSError:
            self.provider.left.set()


def _event(choice: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


@contextlib.contextmanager
def played(address: str = "127.0.0.1") -> Iterator[Provider]:
    provider = Provider()
    handler = type("Handler", (_Handler,), {"provider": provider})
    server = ThreadingHTTPServer((address, 0), handler)
    server.daemon_threads = True
    provider.url = f"http://{address}:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.holds.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def of_the_link() -> Iterator[str]:
    """Give this machine a link-local address, such as the one at which clouds serve their keys."""
    address, alias = f"169.254.{os.getpid() % 200 + 1}.77", f"lo:{os.getpid() % 1000}".encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        packed = socket.inet_aton(address)
        fcntl.ioctl(asked, SIOCSIFADDR, struct.pack("16sHH4s8x", alias, socket.AF_INET, 0, packed))
        try:
            yield address
        finally:
            fcntl.ioctl(asked, SIOCSIFFLAGS, struct.pack("16sH14x", alias, 0))
