"""Untrusted input at `.sock`: any bytes in any pieces get answers in whole frames, and each event comes once.
Every run ends once, a neighbour notices nothing, and nothing is kept (abi.md 5).

`CTX_SOAK=seconds` makes each test go on for that time; without it, a test makes some hundred tries.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import string
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE, Done, Start
from cortexfs.core.talk.protocol import ClientSide as Judge
from cortexfs.talk.conversations import IDLE
from tests.bench.measure import rss_mib
from tests.fuzz.test_exec_fuzz import SOAK, rounds
from tests.shell.calling import files_closed, open_files
from tests.shell.conversing import ECHO, SCRIPT, Client, World, conversing
from tests.waiting import PATIENCE

AT_ONCE = 12
CROWD = 200
STRANGER = 1000
SESSIONS = ("a", "b", "c")
HANG = '[{"delta":"x"},{"hang":true}]'
ASK = '[{"approval":{"name":"t","call":"c"}},{"delta":"y"}]'

Said = Callable[[random.Random], bytes]


def tries(count: int) -> Iterator[random.Random]:
    """Yields random generators: `count` of them, or in a soak as many as its time allows."""
    return rounds() if SOAK else islice(rounds(), count)


# Input of strangers.


def noise(chance: random.Random) -> bytes:
    data = chance.randbytes(chance.choice((0, 1, 10, 1000, 100_000)))
    return data.replace(b"\0", b"\n") if chance.random() < 0.5 else data


def value(chance: random.Random, depth: int = 0) -> Any:
    """Returns a random JSON value."""
    match chance.randrange(8 if depth < 4 else 6):
        case 0:
            return chance.choice((None, True, False))
        case 1:
            return chance.choice((0, -1, 1 << 63, 1 << 64, 1e308, 0.5))
        case 2 | 3 | 4 | 5:
            letters = chance.choice((string.printable, "\ud800é\u2028\0", "abc"))
            return "".join(chance.choices(letters, k=chance.randrange(20)))
        case 6:
            return [value(chance, depth + 1) for _ in range(chance.randrange(5))]
        case _:
            keys = ("op", "id", "input", "session", "scope", "cwd", "after", "run", "call", "x")
            return {chance.choice(keys): value(chance, depth + 1) for _ in range(chance.randrange(6))}


def jsons(chance: random.Random) -> bytes:
    return b"".join(json.dumps(value(chance)).encode() + b"\n" for _ in range(chance.randrange(30)))


def request(chance: random.Random) -> dict[str, Any]:
    """Returns a random request that may be valid."""
    id_ = str(chance.randrange(10))
    where = {"session": chance.choice(SESSIONS), "scope": chance.choice(("private", "shared", "temp"))}
    match chance.randrange(9):
        case 0 | 1 | 2 | 3:
            inputs = (
                "hello you",
                "[]",
                HANG,
                ASK,
                '[{"burst":300}]',
                '[{"error":{"code":"EIO","message":"x"}}]',
            )
            return {"op": "send", "id": id_, "input": chance.choice(inputs), **where}
        case 4:
            return {"op": "send", "input": {"content": "x " * chance.randrange(2000)}, "cwd": "/", **where}
        case 5:
            after = {"after": chance.choice(("1", "5", "x"))} if chance.random() < 0.5 else {}
            return {"op": "resume", **where, **after}
        case 6 | 7:
            return {"op": "cancel", "id": id_}
        case _:
            return {"op": "approve", "run": id_, "call": "c", "decision": "deny"}


def requests(chance: random.Random) -> bytes:
    return b"".join(json.dumps(request(chance)).encode() + b"\n" for _ in range(chance.randrange(40)))


def mutants(chance: random.Random) -> bytes:
    """Returns good requests in which some bytes were changed, doubled or left out."""
    data = bytearray(requests(chance))
    for _ in range(chance.randrange(20) if data else 0):
        place = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                data[place:place] = data[place : place + chance.randrange(200)]
            case 2:
                del data[place : place + chance.randrange(1, 3)]
            case _:
                data[place:place] = chance.choice((b"\n", b'"', b"{", b"\\u", b"\xff"))
        if not data:
            break
    return bytes(data)


def long_lines(chance: random.Random) -> bytes:
    said = []
    for _ in range(chance.randrange(1, 3)):
        head = b'{"op":"ping","pad":"'
        size = MAX_LINE + chance.choice((-1, 0, 1, 70_000))
        said.append(head + b"x" * (size - len(head) - 3) + b'"}\n')
    return b"".join([*said, b'{"op":"ping"}'])


def pieces(chance: random.Random, data: bytes) -> list[bytes]:
    """Returns the data, cut into several writes."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 1, 5, 30))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


# Answers to strangers.


class Ears:
    """Checks all frames that one connection receives."""

    def __init__(self) -> None:
        self._judge = Judge()
        self._had: set[tuple[str, str]] = set()
        self._ends: set[tuple[str, type]] = set()

    def hear(self, data: bytes) -> None:
        for frame in self._judge.receive(data):  # raises a Fault on a breach of the protocol
            if frame.run is not None and frame.id is not None:
                assert (frame.run, frame.id) not in self._had, "an event is sent twice"
                self._had.add((frame.run, frame.id))
                if isinstance(frame, Start | Done):
                    assert (frame.run, type(frame)) not in self._ends, "a run begins or ends twice"
                    self._ends.add((frame.run, type(frame)))
            if isinstance(frame, Done):
                assert frame.status == "ok" or frame.code

    async def listen(self, client: Client) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := await client._received():
                self.hear(data)


async def _stranger(world: World, chance: random.Random, said: bytes) -> None:
    client = world.connect(chance.choice((ECHO, SCRIPT)), STRANGER)
    ears = Ears()
    try:
        async with trio.open_nursery() as nursery:
            if chance.random() < 0.8:  # others do not read
                nursery.start_soon(ears.listen, client)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError), trio.move_on_after(1):
                for piece in pieces(chance, said):
                    await client.raw(piece)
                    await trio.lowlevel.checkpoint()
            if chance.random() < 0.3:
                client.no_more()
                await _cancel_all(world)
            nursery.cancel_scope.cancel()
    finally:
        client.leave()


async def _cancel_all(world: World) -> None:
    """Cancel all runs that hang, as their user may on any connection."""
    for object in (ECHO, SCRIPT):
        with world.connected(object, STRANGER) as client:
            for run in [run.id for run in world.runs.active.values() if run.uid == STRANGER]:
                await client.ask("cancel", id=run)
            client.no_more()
            await client.rest()


async def _ended(world: World) -> None:
    """Wait until nothing runs; messages that wait behind a hanging run come next."""
    await world.deserted()
    with trio.fail_after(PATIENCE):
        while world.conversations._working:
            await _cancel_all(world)
            await trio.testing.wait_all_tasks_blocked(0.001)
    await world.idle()


async def _remove_all(world: World) -> None:
    """Remove all sessions, so that a long test does not fill the disk."""
    for live in list(world.conversations._live.values()):
        with contextlib.suppress(Fault):  # the session has no messages
            await world.sessions.remove(live.address)


async def _neighbour(world: World) -> None:
    with world.connected() as client:
        for number in range(3):
            await client.send(f"hello {number}", session="neighbour")
            frames = await client.until("done")
            assert "".join(each["text"] for each in frames if each["type"] == "delta") == f"hello {number}"
            assert [each["type"] for each in frames].count("done") == 1
            assert frames[-1]["status"] == "ok"


@pytest.mark.parametrize(
    "said", [noise, jsons, requests, mutants, long_lines], ids=lambda said: str(said.__name__)
)
async def test_whatever_a_stranger_says(said: Said, tmp_path: Path) -> None:
    async with conversing(tmp_path) as world:
        await _neighbour(world)
        await world.idle()
        files, memory = open_files(), 0.0
        for number, chance in enumerate(tries(6)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_neighbour, world)
                for _ in range(AT_ONCE):
                    nursery.start_soon(_stranger, world, random.Random(chance.random()), said(chance))
            await _ended(world)
            await _remove_all(world)
            await files_closed(files + IDLE)
            assert len(world.conversations) <= IDLE
            assert world.held(STRANGER) == world.held() == 0
            assert world.sessions._budget.used == 0
            if number == 20:
                memory = rss_mib(os.getpid())
            assert not memory or rss_mib(os.getpid()) < memory + 32


async def test_a_crowd_that_speaks_in_pieces(tmp_path: Path) -> None:
    # abi.md 5.15: lines of many, interleaved byte by byte
    async with conversing(tmp_path) as world:
        for chance in tries(3):
            clients = [world.connect(chance.choice((ECHO, SCRIPT)), STRANGER) for _ in range(CROWD)]
            left = {
                client: pieces(chance, b"".join(b'{"op":"ping","id":"%d"}\n' % each for each in range(20)))
                for client in clients
            }
            while left:
                client = chance.choice(list(left))
                await client.raw(left[client].pop(0))
                if not left[client]:
                    del left[client]
            for client in clients:
                assert [frame["request"] for frame in await client.all()] == [str(each) for each in range(20)]
                client.leave()
            await world.idle()
            assert world.held(STRANGER) == 0
