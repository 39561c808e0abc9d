"""Malformed input at the exec socket: issue, "the exec socket itself fuzzed ... with no crash, hang or leak".

`make test` runs it for a few seconds, CTX_SOAK=SECONDS for that long.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time

import pytest

from cortexfs.core import wire
from tests.mounted.ctx_mount import Ctx
from tests.waiting import PATIENCE, SOAK, until

SECONDS = SOAK or 3


def connect(ctx: Ctx) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.connect(str(ctx.root / "tool" / wire.SOCKET_NAME))  # connect waits, as the runner's does
    stream.settimeout(PATIENCE)
    return stream


def greeting(inode: int, arguments: list[bytes], environment: list[bytes]) -> bytes:
    words = b"".join(word + b"\0" for word in arguments + environment)
    fixed = wire.HELLO.pack(
        wire.MAGIC, wire.PROTOCOL, inode, 0, 0o22, len(arguments), len(environment), len(words)
    )
    return fixed + words


def answer(stream: socket.socket) -> tuple[bytes, int | None]:
    """Returns standard output and exit status, as a runner gets them. The status is None after a cut-off."""
    splitter, out = wire.Splitter(), b""
    while True:
        try:
            data = stream.recv(65536)
        except ConnectionResetError:
            return out, None
        if not data:
            return out, None
        for kind, payload in splitter.feed(data):
            if kind == wire.STDOUT:
                out += payload
            elif kind == wire.EXIT:
                return out, payload[0]


def mutated(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        where = dice.randrange(len(changed) + 1)
        match dice.randint(0, 3):
            case 0:
                changed[where:where] = dice.randbytes(dice.randint(1, 40))
            case 1:
                del changed[where : where + dice.randint(1, 20)]
            case 2 if where < len(changed):
                changed[where] = dice.randint(0, 255)
            case _:
                changed[where : where + 4] = dice.choice([b"\xff" * 4, b"\0" * 4, b"\x01\0\0\0"])
    return bytes(changed)


def test_a_greeting_byte_by_byte(ctx: Ctx) -> None:
    inode = os.stat(ctx.tool("text.word_count")).st_ino
    with connect(ctx) as stream:
        for byte in greeting(inode, [b"one two"], [b"LANG=C", b"SECRET=x"]):
            stream.sendall(bytes([byte]))
        out, status = answer(stream)
    assert status == 0
    assert b'"2 words"' in out


@pytest.mark.parametrize("inode", [0, 1, 2, 1 << 40, (1 << 64) - 1])
def test_an_inode_of_no_object(ctx: Ctx, inode: int) -> None:
    with connect(ctx) as stream:
        stream.sendall(greeting(inode, [b"x"], []))
        out, status = answer(stream)
    assert status == 1
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["error", "done"]
    assert json.loads(out.splitlines()[0])["code"] == "ENOENT"


def test_who_says_nothing_is_sent_away(ctx: Ctx) -> None:
    with connect(ctx) as stream:
        assert answer(stream) == (b"", None)


def test_input_that_nobody_wanted_ends_the_connection(ctx: Ctx) -> None:
    inode = os.stat(ctx.tool("bad.sleep")).st_ino
    with connect(ctx) as stream:
        stream.sendall(greeting(inode, [], []) + wire.message(wire.STDIN, b"unasked"))
        out, status = answer(stream)
    assert status in (2, 130), out


def test_rubbish_ends_its_own_connection_and_nothing_else(ctx: Ctx) -> None:
    dice = random.Random(20261121)
    tools = [os.stat(ctx.tool(name)).st_ino for name in ("text.word_count", "fs.read", "show.types")]
    for name in ("text.word_count", "show.types"):  # starts their hosts
        assert ctx.call(name, "x").status == 0
    files = len(os.listdir(f"/proc/{ctx.pid}/fd"))
    end, count = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        good = greeting(dice.choice(tools), [b"a b"] * dice.randint(0, 3), [b"LC_ALL=C"])
        talk = good + wire.message(wire.STDIN, b'{"text":"a"}') + wire.message(wire.STDIN)
        rubbish = dice.choice(
            [mutated(dice, talk), mutated(dice, good), dice.randbytes(dice.randint(0, 300))]
        )
        with connect(ctx) as stream:
            try:
                stream.sendall(rubbish)
                stream.shutdown(socket.SHUT_WR)
                answer(stream)
            except (BrokenPipeError, ConnectionResetError):
                pass
        count += 1
    assert count > 20
    assert ctx.call("text.word_count", "a b").output == "2 words"
    assert ctx.status["bugs met"] == "0"
    until(lambda: os.listdir(f"/proc/{ctx.pid}/fd"), lambda left: len(left) <= files)


def test_hundreds_of_silent_connections_hold_nobody_up(ctx: Ctx) -> None:
    streams = [connect(ctx) for _ in range(300)]
    try:
        assert ctx.call("text.word_count", "a b c").output == "3 words"
        half = greeting(1, [b"x" * 1000], [])[:-500]
        for stream in streams:
            stream.sendall(half)
        assert ctx.call("text.word_count", "a b").output == "2 words"
    finally:
        for stream in streams:
            stream.close()


def test_arguments_of_random_bytes(ctx: Ctx) -> None:
    # issue: "argv and stdin of random bytes, NUL, invalid UTF-8"
    dice = random.Random(4)
    for _ in range(40):
        words = [bytes(dice.choices(range(1, 256), k=dice.randint(0, 30))) for _ in range(dice.randint(1, 4))]
        got = ctx.call("show.types", *words)
        assert got.status in (0, 2), (words, got)
        got = ctx.call("show.types", input=dice.randbytes(dice.randint(1, 200)))
        assert (got.status, got.code) == (2, "EINVAL")
