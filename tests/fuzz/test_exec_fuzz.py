"""Untrusted input at `.run.sock` and from hosts: for any bytes in any pieces, every run ends as abi.md 4
defines, the service goes on, and nothing is kept.

`CTX_SOAK=seconds` makes each test go on for that time; without it, a test makes some hundred tries.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from cortexfs.core import frames, wire
from cortexfs.core.errors import EXIT_STATUS
from cortexfs.models import debug
from cortexfs.peers.streams import receive, send
from cortexfs.run.tool_run import Relay
from tests.shell.calling import Answer, World, files_closed, hello, open_files, serving
from tests.shell.run.test_relay import Stage

SOAK = float(os.environ.get("CTX_SOAK", "0"))
AT_ONCE = 10
ROUNDS = 30
OBJECTS = (1, 2, 3)  # a tool, debug/echo and debug/script
SCRIPTS = ('[{"burst":999}]', '[{"message":"m"},{"hang":true}]', '{"input":[{"delta":"a"},{"hang":1}]}')

Pieces = Callable[[random.Random], list[bytes]]


def rounds() -> Iterator[random.Random]:
    """Yields a random generator for each of ROUNDS rounds, or for SOAK seconds; a failure shows its seed."""
    end = time.monotonic() + SOAK
    seed = 0
    while seed < ROUNDS or time.monotonic() < end:
        print(f"seed {seed}")
        yield random.Random(seed)
        seed += 1


async def _say(world: World, pieces: list[bytes], waits: bool) -> None:
    """Send the pieces one by one; then leave, or close the sending side and wait for the answer."""
    with world.connected() as runner, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        for piece in pieces:
            await send(runner.stream, piece)
            await trio.lowlevel.checkpoint()
        if waits:
            runner.stream.shutdown(socket.SHUT_WR)
            _sound(await runner.answer())


def _sound(answer: Answer) -> None:
    """abi.md 4.20, 4.23: an exit status of the table."""
    if not answer.frames:
        assert answer.status is None or answer.err
        return
    done = answer.frames[-1]
    assert isinstance(done, frames.Done)
    assert answer.status == (EXIT_STATUS.get(done.code, 1) if done.code else 0)
    assert sum(isinstance(frame, frames.Done) for frame in answer.frames) == 1
    assert done.status == "ok" or done.code
    if done.status == "error":
        assert isinstance(answer.frames[-2], frames.Error)
        assert answer.frames[-2].code == done.code


async def _attack(place: Path, pieces: Pieces) -> None:
    async with serving(place) as world:
        echo = world.inode("echo")
        world.objects |= dict(enumerate(debug.objects(0.0), 2))
        pid = await world.pid()
        await world.idle()
        files = open_files()
        for chance in rounds():
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE):
                    nursery.start_soon(_say, world, pieces(chance), chance.random() < 0.7)
            assert (await world.call(echo, "hello")).output == "hello"
            await world.idle()
            await files_closed(files)
        assert await world.pid() == pid


def noise(chance: random.Random) -> list[bytes]:
    sizes = (0, 1, wire.HELLO.size - 1, wire.HELLO.size, wire.HELLO.size + 1, 1000, 100_000)
    return [chance.randbytes(chance.choice(sizes)) for _ in range(chance.randrange(4))]


def lies(chance: random.Random) -> list[bytes]:
    """Returns a correct beginning whose numbers do not fit the bytes after it."""
    numbers = (0, 1, 2, 3, 100, 1 << 10, (1 << 10) + 1, 1 << 20, 17 << 20, (17 << 20) + 1, (1 << 32) - 1)
    inode, flags, umask = chance.choice((0, 1, 2, 1 << 63)), chance.choice(numbers), chance.choice(numbers)
    flags &= ~wire.TTY_STDOUT  # text output has no form that a test could check
    counts = [chance.choice(numbers) for _ in range(3)]
    fixed = wire.HELLO.pack(wire.MAGIC, wire.PROTOCOL, inode, flags, umask, *counts)
    return [fixed, b"text\0" * chance.choice((0, 1, 2, 1000)), chance.randbytes(chance.randrange(100))]


def messages(chance: random.Random) -> list[bytes]:
    """Returns a good greeting, and then messages that no runner sends."""
    kinds = (wire.STDIN, wire.EXIT, wire.DONE, 0, 255)
    said = [wire.message(chance.choice(kinds), chance.randbytes(chance.randrange(50))) for _ in range(5)]
    words = chance.choice(([], ["text=x"], ["{}"], ["-"], ['[{"hang":true}]']))
    return [hello(chance.choice(OBJECTS), *words), *said, chance.randbytes(chance.randrange(10))]


def words(chance: random.Random) -> list[bytes]:
    """Returns a greeting with random arguments and a random environment."""
    bits = [
        "{",
        "}",
        '"text":',
        "text",
        "=",
        "-",
        "--",
        "\udcff",
        "\x01",
        "ü",
        "[]",
        "null",
        "x" * 5000,
        *SCRIPTS,
    ]
    said = ["".join(chance.choices(bits, k=chance.randrange(5))) for _ in range(chance.randrange(5))]
    environ = ("CTX_OUTPUT=" + chance.choice(("jsonl", "x", "")), "LC_=\udcff", "=", "A")
    return [hello(chance.choice(OBJECTS), *said, flags=chance.choice((0, wire.TTY_STDERR)), environ=environ)]


@pytest.mark.parametrize("pieces", [noise, lies, messages, words], ids=lambda pieces: pieces.__name__)
async def test_whatever_a_stranger_says(pieces: Pieces, tmp_path: Path) -> None:
    await _attack(tmp_path, pieces)


async def test_a_greeting_in_any_two_pieces(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        greeting = hello(world.inode("echo"), "text=in two", environ=("LANG=C",))
        for cut in range(len(greeting) + 1):
            with world.connected() as runner:
                await send(runner.stream, greeting[:cut])
                await trio.testing.wait_all_tasks_blocked()
                await send(runner.stream, greeting[cut:])
                assert (await runner.answer()).output == "in two"


# -- hosts


def _spoken(chance: random.Random) -> bytes:
    """Returns a message of a host that may be wrong."""
    texts = (b"", b"text", "ü".encode(), b"\xff", b"\0" * wire.MAX_TEXT, chance.randbytes(20), b"[" * 5000)
    faults = [(code, "x") for code in ("EIO", "ECANCELED", "EHOSTDOWN", "Ebogus", "", "E" * 1000)]
    packed: tuple[object, ...] = (*faults, (None, "x"), ("s", "x"), ["x"], "x", 5, {}, b"x", None)
    payload = chance.choice(
        (
            chance.choice(texts),
            msgspec.msgpack.encode(chance.choice(packed)),
            msgspec.json.encode(chance.choice(({}, {"url": "x"}, [], "x", None))),
            wire.U32.pack(chance.choice((0, 1, 100, (1 << 32) - 1))),
        )
    )
    kinds = (wire.DELTA, wire.PROGRESS, wire.OBSERVER, wire.MEDIA, wire.WANT, wire.FAULT, wire.DESCRIPTORS, 7)
    return wire.message(chance.choice(kinds), payload)


def _speech(chance: random.Random) -> bytes:
    said = b"".join(_spoken(chance) for _ in range(chance.randrange(6)))
    ends = (wire.message(wire.DONE), b"", chance.randbytes(9), wire.message(wire.DONE) * 2)
    return said + chance.choice(ends)


async def test_whatever_a_host_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cortexfs.pool.call.EXIT_SECONDS", 0)
    for chance in rounds():
        for _ in range(AT_ONCE):
            await _hear(Stage(tmp_path), _speech(chance))


async def _hear(stage: Stage, speech: bytes) -> None:
    async def host(stage: Stage) -> None:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            await send(stage.pool.theirs, speech)
            stage.pool.theirs.shutdown(socket.SHUT_WR)
            while await receive(stage.pool.theirs):
                pass
        stage.pool.theirs.close()

    stage.relay = Relay(stage.stream, stage.voice, stage.run, 1 << 20)
    heard: list[Answer] = []

    async def both(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host, stage)
            said, status = await stage.heard()
            heard.append(Answer(said, status, b""))

    try:
        await stage.play(both)
        _sound(heard[0])
        # Only callers cancel, and this caller waits.
        assert getattr(stage.relay.fault, "code", "") != "ECANCELED"
    finally:
        stage.close()
