"""Many clients of a `.sock` in one process, cheap enough that a measurement is of the daemon.

    crowd = Crowd(Client(path) for _ in range(1000))
    crowd.clients[0].ask({"op": "send", "input": "hello"})
    crowd.listen(lambda: not crowd.unfinished)

Deltas are counted and not parsed. Run as a program, its clients stream until they are killed.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.waiting import PATIENCE

PIECE = 1 << 18
DONE = b'{"type":"done"'
DELTA = b'{"type":"delta"'


class Client:
    """One connection, the number of deltas that it received, and all other lines."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.deltas = self.bytes = 0
        self.told: list[bytes] = []
        self._rest = b""
        self.asked = self.ended = 0.0

    def ask(self, request: dict[str, object]) -> None:
        self.asked = time.monotonic()
        self.socket.sendall(json.dumps(request).encode() + b"\n")

    def read(self) -> bool:
        """Read the data that is there. Returns True if more may come."""
        try:
            data = self.socket.recv(PIECE)
        except BlockingIOError:
            return True
        self.bytes += len(data)
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        whole += newline
        count = whole.count(DELTA)
        self.deltas += count
        if count != whole.count(b"\n"):
            self.told += [line for line in whole.splitlines() if not line.startswith(DELTA)]
            self.ended = time.monotonic()
        return bool(data)

    @property
    def is_done(self) -> bool:
        return bool(self.told) and self.told[-1].startswith(DONE)

    @property
    def rate(self) -> float:
        """Deltas per second, from the question to the end of the answer."""
        return self.deltas / (self.ended - self.asked)

    @property
    def statuses(self) -> list[str]:
        """The statuses of the runs that have ended so far."""
        return [json.loads(line)["status"] for line in self.told if line.startswith(DONE)]


class Crowd:
    def __init__(self, clients: Iterable[Client]) -> None:
        self.clients = list(clients)
        self.began = time.monotonic()
        self._ready = selectors.DefaultSelector()
        for client in self.clients:
            client.socket.setblocking(False)
            self._ready.register(client.socket, selectors.EVENT_READ, client)

    def step(self) -> None:
        """Read the data that is there, or wait a moment for data."""
        for key, _ in self._ready.select(0.1):
            if not key.data.read():
                self._ready.unregister(key.fileobj)

    def listen(self, until: Callable[[], bool]) -> None:
        """Read from all clients until `until()` is true."""
        end = time.monotonic() + PATIENCE
        while not until():
            self.step()
            assert time.monotonic() < end, f"{len(self.unfinished)} of {len(self.clients)} clients wait"

    @property
    def finished(self) -> list[Client]:
        return [client for client in self.clients if client.is_done]

    @property
    def unfinished(self) -> list[Client]:
        return [client for client in self.clients if not client.is_done]

    def close(self) -> None:
        self._ready.close()
        for client in self.clients:
            client.socket.close()


def main(path: str, count: str, scope: str, steps: str) -> None:
    """Stream until this process is killed, or until all answers are done."""
    crowd = Crowd(Client(Path(path)) for _ in range(int(count)))
    script = json.dumps([{"burst": 20}, {"sleep": 0.05}] * int(steps))
    for number, client in enumerate(crowd.clients):
        client.ask({"op": "send", "session": f"killed-{number}", "scope": scope, "input": script})
    crowd.listen(lambda: all(client.deltas for client in crowd.clients))
    print("all are answered", flush=True)
    crowd.listen(lambda: not crowd.unfinished)


if __name__ == "__main__":
    main(*sys.argv[1:])
