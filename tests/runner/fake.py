"""A daemon that sends the messages that a test wants, and the runner in front of it.

Job: one directory with an object and its socket, one call at a time, with a time limit for each wait.
Rules: single-threaded; a test plays the daemon's part step by step, so no result depends on timing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cortexfs.core import wire
from tests.waiting import PATIENCE


@dataclass(frozen=True)
class Ended:
    status: int
    out: bytes
    err: bytes


@dataclass
class Call:
    """One run of the runner; `accept` takes its connection."""

    process: subprocess.Popen[bytes]
    stack: contextlib.ExitStack
    peer: socket.socket = field(init=False)
    greeting: wire.Hello = field(init=False)
    arguments: list[bytes] = field(init=False)
    environment: list[bytes] = field(init=False)
    messages: list[tuple[int, bytes]] = field(default_factory=list)
    splitter: wire.Splitter = field(default_factory=wire.Splitter)

    def accept(self, listener: socket.socket) -> None:
        self.peer = self.stack.enter_context(listener.accept()[0])
        self.peer.settimeout(PATIENCE)

    def greet(self) -> None:
        """Read the HELLO."""
        self.greeting = wire.hello(self._exactly(wire.HELLO.size))
        texts = self._exactly(self.greeting.size)
        self.arguments, self.environment = wire.strings(self.greeting, texts)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.peer.recv(size - len(data))
            assert part, "the runner hung up inside its greeting"
            data += part
        return bytes(data)

    def say(self, kind: int, payload: bytes = b"") -> None:
        self.peer.sendall(wire.message(kind, payload))

    def want(self, size: int) -> None:
        self.say(wire.WANT, wire.U32.pack(size))

    def hear(self) -> tuple[int, bytes] | None:
        """Returns the next message of the runner, or None when it has closed the connection."""
        while not self.messages:
            data = self.peer.recv(1 << 16)
            if not data:
                return None
            self.messages += self.splitter.feed(data)
        return self.messages.pop(0)

    def seen(self, text: bytes) -> None:
        """Send `text` for stdout and read it there, which shows that the runner is past its greeting."""
        assert self.process.stdout is not None
        self.say(wire.STDOUT, text)
        assert os.read(self.process.stdout.fileno(), len(text)) == text

    def exit(self, status: int = 0) -> Ended:
        self.say(wire.EXIT, bytes([status]))
        return self.ended()

    def vanish(self) -> Ended:
        """End the connection as a killed daemon does."""
        self.peer.close()
        return self.ended()

    def ended(self) -> Ended:
        out, err = self.process.communicate(timeout=PATIENCE)
        return Ended(self.process.returncode, out or b"", err or b"")


@dataclass
class Place:
    """A directory that looks like a folder of the mount: an object and the socket."""

    path: Path
    runner: Path
    listener: socket.socket
    stack: contextlib.ExitStack

    @property
    def object(self) -> Path:
        return self.path / "object"

    def start(
        self,
        *arguments: str | bytes,
        name: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str | Path] = (),
        **options: Any,
    ) -> Call:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [*prefix, self.runner, name or self.object, *arguments]
        process = subprocess.Popen(command, env=env or {}, **{**pipes, **options})
        self.stack.callback(_finish, process)
        return Call(process, self.stack)

    def call(self, *arguments: str | bytes, **options: Any) -> Call:
        """Start the runner and read its greeting."""
        call = self.start(*arguments, **options)
        call.accept(self.listener)
        call.greet()
        return call


def _finish(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process:
        pass


def listen(directory: Path) -> socket.socket:
    """Returns a listening socket there, bound by a short path, since sun_path holds 107 bytes."""
    listener = socket.socket(socket.AF_UNIX)
    parent = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{parent}/{wire.SOCKET_NAME}")
    finally:
        os.close(parent)
    listener.settimeout(PATIENCE)
    listener.listen(8)
    return listener


@contextlib.contextmanager
def place(directory: Path, runner: Path) -> Iterator[Place]:
    (directory / "object").write_bytes(b"")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(directory))
        yield Place(directory, runner, listener, stack)
