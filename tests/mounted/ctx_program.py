"""The program `ctx` of an interpreter. Tests run it by forks of ctx_server.py."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.waiting import PATIENCE

SERVER = Path(__file__).with_name("ctx_server.py")


class Program:
    """The server of `ctx` commands. It is started once, and again if it has ended."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._begin()

    def _begin(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [self._python, "-I", SERVER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # signals that a test sends to its group must not reach the server
            )

    def end(self) -> None:
        self._channel.close()
        self._server.terminate()
        self._server.wait(PATIENCE)

    def run(
        self, words: Sequence[str], environ: Mapping[str, str], cwd: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as subprocess.run does."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            null = os.open(os.devnull, os.O_RDONLY)
            theirs.callback(os.close, null)
            said: dict[int, list[bytes]] = {}
            given = [null]
            for _ in ("output", "errors", "status"):
                end, other = os.pipe()
                ours.callback(os.close, end)
                theirs.callback(os.close, other)
                said[end] = []
                given.append(other)
            request = json.dumps([list(words), dict(environ), str(cwd)]).encode()
            try:
                socket.send_fds(self._channel, [request], given)
            except BrokenPipeError:
                self.end()
                print(f"the server of commands has ended: {self._server.returncode}", file=sys.stderr)
                self._begin()
                socket.send_fds(self._channel, [request], given)
            theirs.close()
            _read(said, words)
        output, errors, status = (b"".join(parts).decode() for parts in said.values())
        return subprocess.CompletedProcess(["ctx", *words], int(status), output, errors)


def _read(said: Mapping[int, list[bytes]], words: Sequence[str]) -> None:
    """Read each descriptor to its end."""
    poll = select.poll()
    for end in said:
        poll.register(end, select.POLLIN)
    left = len(said)
    while left:
        ready = poll.poll(PATIENCE * 1000)
        if not ready:
            raise subprocess.TimeoutExpired(["ctx", *words], PATIENCE)
        for end, _ in ready:
            if data := os.read(end, 1 << 16):
                said[end].append(data)
            else:
                poll.unregister(end)
                left -= 1


@contextlib.contextmanager
def program(python: Path) -> Iterator[Program]:
    """Yield `ctx` of this interpreter, and end its server afterwards."""
    made = Program(python)
    try:
        yield made
    finally:
        made.end()
