"""A hostile local user against a daemon of root's: what must not work, and whom it must not touch.

docs/security.md names these tests as the evidence for its claims.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an attacker of another uid needs a root daemon")

MALLORY = 1234

# What every attacker's script begins with; it sees no package of ours.
PRELUDE = """
import array, json, os, socket, struct, sys, time
ROOT = sys.argv[1]
INODE = os.stat(ROOT + "/tool/text.word_count").st_ino
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect(ROOT + "/.run.sock")
    return s
def hello(argc, envc, size, inode=INODE, protocol=2):
    return struct.pack("<4sIQIIIII", b"CTX1", protocol, inode, 0, 0o22, argc, envc, size)
def answer(s):
    got = b""
    try:
        while part := s.recv(65536):
            got += part
    except ConnectionResetError:
        pass
    return got.decode("latin-1")
def say(value):
    print(json.dumps(value), flush=True)
"""


def attack(ctx: Ctx, script: str, uid: int = MALLORY) -> Any:
    """What a script of the attacker's says, as JSON."""
    done = ctx.run([str(ctx.python), "-I", "-c", PRELUDE + script, str(ctx.root)], uid=uid)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Attacker:
    """A script that attacks until told to end; others are served meanwhile."""

    def __init__(self, ctx: Ctx, script: str, uid: int = MALLORY) -> None:
        words = [
            str(ctx.python),
            "-I",
            "-c",
            PRELUDE + script + "\nsys.stdin.read()\nos._exit(0)",
            str(ctx.root),
        ]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
        )

    def __enter__(self) -> Any:
        """What it said once it was at it."""
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def small(python: Path) -> Iterator[Ctx]:
    """A mount with few connections to share."""
    with mounted(python, [], "[limits]\nconnections = 16\n") as mount:
        yield mount


def words_of(ctx: Ctx, uid: int = NOBODY) -> str:
    """Somebody else's call; it must work whatever goes on."""
    answer = ctx.call("text.word_count", "one two", uid=uid)
    assert answer.status == 0, answer
    return answer.output


# -- the way in


def test_a_greeting_with_millions_of_strings_is_refused(ctx: Ctx) -> None:
    # wire.py: "Each string costs us time, in which nobody else has any."
    n = 17 << 20
    said = attack(ctx, f"s = connect(); s.sendall(hello(0, {n}, {n})); say(answer(s))")
    assert "EMSGSIZE" in said
    said = attack(ctx, "s = connect(); s.sendall(hello(1, 0, 10) + b'\\0' * 10); say(answer(s))")
    assert "EINVAL" in said


def test_half_open_connections_lock_out_only_who_made_them(small: Ctx) -> None:
    # docs/config.md: limits.connections is "for all users"; guests.py: one has a share of it
    script = """
held = [connect() for _ in range(12)]
closed = 0
for s in held:
    s.setblocking(False)
for s in held[4:]:
    s.setblocking(True)
    closed += s.recv(1) == b""
say(closed)
"""
    with Attacker(small, script) as closed:
        assert closed == 8
        assert words_of(small) == "2 words"


def test_one_users_arguments_are_bounded(ctx: Ctx) -> None:
    # guests.py: "Arguments stay in memory for as long as their run"
    script = """
size = 17 << 20
held = [connect() for _ in range(4)]
for s in held[:3]:
    s.sendall(hello(1, 0, size) + b"x" * (size - 300000))
held[3].sendall(hello(1, 0, size))
say(answer(held[3]))
"""
    with Attacker(ctx, script) as said:
        assert "EAGAIN" in said
        assert words_of(ctx) == "2 words"
        assert ctx.call("text.word_count", "small", uid=MALLORY).output == "1 words"


LINGERING = """
def lingering():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    keep = server.accept()
    client.setblocking(False)
    try:
        while True:
            client.send(bytes(65536))
    except BlockingIOError:
        pass
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return client, keep
def send(s, data, fd):
    try:
        socket.send_fds(s, [data], [fd])
        return "sent"
    except OSError as error:
        return type(error).__name__
"""


@pytest.mark.parametrize("when", ["greeting", "later", "never read"])
def test_descriptors_that_linger_hold_nobody_up(ctx: Ctx, when: str) -> None:
    # wire.py: a peer that sends descriptors "is cut off"; closing this one takes an hour
    script = {
        "greeting": "said = send(s, hello(0, 0, 0), client.fileno())",
        "later": "s.sendall(hello(1, 0, 2)); said = send(s, b'x\\0', client.fileno())",
        "never read": "s.sendall(hello(0, 0, 0, protocol=9)); said = send(s, b'x', client.fileno())",
    }[when]
    script = f"""{LINGERING}
client, keep = lingering()
s = connect()
{script}
if said == "sent":
    client.close()
say(said)
"""
    with Attacker(ctx, script):
        assert words_of(ctx) == "2 words"
