"""A server for tests of the client: the sans-IO server on a real Unix socket, in a thread, without a daemon.

`World` behind it decides the answers. A test holds `lock` while it makes things happen in the world.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.core import frames
from tests.core.conversation_pair import Connection, World
from tests.waiting import PATIENCE


class Served:
    """One world, and the sockets of the clients that are connected to it."""

    def __init__(self, path: Path, world: World) -> None:
        self.path = path
        self.world = world
        self.lock = threading.RLock()
        self.accepted = 0
        self._changed = threading.Condition(self.lock)
        self._peers: dict[socket.socket, Connection] = {}
        self._sent: dict[socket.socket, int] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with self.lock:
                self.accepted += 1
                self._peers[peer] = self.world.connect()
                self._sent[peer] = 0
                thread = threading.Thread(target=self._serve, args=[peer])
                self._threads.append(thread)
                thread.start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := peer.recv(1 << 16):
                with self._changed:
                    self._peers[peer].raw(data)
                    self.flush()
                    self._changed.notify_all()
        self._drop(peer)

    def flush(self) -> None:
        """Send what the world has sent since the last flush."""
        with self.lock:
            for peer, connection in list(self._peers.items()):
                new = connection.sent[self._sent[peer] :]
                self._sent[peer] = len(connection.sent)
                with contextlib.suppress(OSError):
                    peer.sendall(new)

    def say(self, run: str, *said: frames.Frame) -> None:
        with self.lock:
            self.world.emit(run, *said)
            self.flush()

    def finish(self, run: str) -> None:
        with self.lock:
            self.world.finish(run)
            self.flush()

    def until_active(self) -> str:
        """Wait until a run is active, and return its id."""
        with self._changed:
            while not (found := [s.active for s in self.world.sessions.values() if s.active]):
                assert self._changed.wait(PATIENCE)
            return found[0].run

    def _drop(self, peer: socket.socket) -> None:
        with self.lock:
            if self._peers.pop(peer, None) is not None:
                peer.close()

    def hang_up(self, last: bytes = b"") -> None:
        """End every connection; `last` is sent before the end of each."""
        with self.lock:
            self.flush()
            for peer in list(self._peers):
                with contextlib.suppress(OSError):
                    peer.sendall(last)
                    peer.shutdown(socket.SHUT_RDWR)

    def restart(self) -> None:
        """Act as after kill -9 and a new start: only the log is left."""
        with self.lock:
            self.hang_up()
            self.world.restart()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE)
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def served(path: Path, echo: bool = True) -> Iterator[Served]:
    server = Served(path, World(echo))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "echo.sock") as server:
        yield server


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Served]:
    """Yields a server whose runs send only what the test makes them send."""
    with served(tmp_path / "slow.sock", echo=False) as server:
        yield server
