"""One run between a runner and a host; the test plays both over real socket pairs."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.peers.caller import Caller
from cortexfs.peers.streams import receive, send
from cortexfs.pool.host import Host
from cortexfs.pool.pool import Pool
from cortexfs.pool.run_table import ObjectRun, Runs
from cortexfs.run.output import JsonlVoice
from cortexfs.run.tool_run import Relay
from cortexfs.state.run_logs import Logs
from tests.waiting import PATIENCE, awaited

PLUGIN = hostcalls.Plugin("p", "1", "python", "m:a")
SOMEONE = Caller(0, hostcalls.Identity(0, 0, ()), None)
CALL = hostcalls.CallRequest("r1", hostcalls.Invocation("t"), [b"x"], None, 0o22, {})


class OneHost:
    """A pool with one host. The test holds the host's end of each call."""

    is_enclosed = is_stopped = was_stopped = has_served = False
    aside = None

    def __init__(self) -> None:
        self.exited = trio.Event()
        self.released: list[bool] = []
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.setblocking(False)

    def is_warm(self, *_: object) -> bool:
        return True

    async def acquire(self, *_: object) -> OneHost:
        return self

    @property
    def is_alive(self) -> bool:
        return self.theirs.fileno() >= 0

    def open(self, cwd: int | None, request: bytes) -> tuple[socket.socket, socket.socket, memoryview]:
        theirs = self.theirs.dup()
        return self.ours, theirs, memoryview(request)[self.ours.send(request) :]

    def release(self, host: Host, stuck: bool, worn: bool) -> None:
        self.released.append(stuck)

    def note_end(self) -> None:
        pass

    def end_of_call(self) -> Fault:
        return Fault("EPROTO", "the tool's process was killed by SIGKILL")


class Stage:
    """A relay at work, with the runner's end and the host's end."""

    def __init__(self, folder: Path) -> None:
        self.pool = OneHost()
        self.stream, self.runner = socket.socketpair()
        for end in (self.stream, self.runner):
            end.setblocking(False)
        self.run: ObjectRun = Runs(Logs(folder, 1000), 9).open("tool", "t", 0, "exec")
        self.voice = JsonlVoice("t")
        self.voice.run = self.run.id
        self.relay = Relay(self.stream, self.voice, self.run, 1000)

    async def play(
        self, host: Callable[[Stage], Any], seconds: float = PATIENCE, asked: hostcalls.CallRequest = CALL
    ) -> None:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(host, self)
                pool = cast(Pool, self.pool)
                await self.relay.until_the_end(self.relay.work(pool, PLUGIN, asked, SOMEONE, seconds))
                self.relay.close()
                self.stream.close()
                self.pool.ours.close()

    def close(self) -> None:
        for end in (self.stream, self.runner, self.pool.ours, self.pool.theirs):
            end.close()

    async def say(self, kind: int, payload: bytes = b"") -> None:
        await send(self.pool.theirs, wire.message(kind, payload))

    async def heard(self) -> tuple[list[Any], int | None]:
        """Returns all that the runner received: frames, and the exit status."""
        splitter, out, status = wire.Splitter(), b"", None
        while data := await receive(self.runner):
            for kind, payload in splitter.feed(data):
                if kind == wire.STDOUT:
                    out += payload
                elif kind == wire.EXIT:
                    status = payload[0]
        return [frames.decode(line) for line in out.splitlines()], status


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def codes(said: list[Any]) -> list[tuple[str, str | None]]:
    return [(type(frame).__name__, getattr(frame, "code", None)) for frame in said]


def code_of(stage: Stage) -> str | None:
    return stage.relay.fault.code if stage.relay.fault else None


async def test_deltas_and_done(stage: Stage) -> None:
    async def host(stage: Stage) -> None:
        request = await receive(stage.pool.theirs)
        assert request[0] == wire.REQUEST
        await stage.say(wire.DELTA, "hä".encode())
        await stage.say(wire.DELTA, b"llo")
        await stage.say(wire.DONE)

    await stage.play(host)
    said, status = await stage.heard()
    assert [type(frame).__name__ for frame in said] == ["Start", "Delta", "Delta", "Done"]
    assert (status, stage.relay.fault, stage.pool.released) == (0, None, [False])
    assert stage.run.bytes_out == 6


async def test_a_fault_of_the_tool(stage: Stage) -> None:
    async def host(stage: Stage) -> None:
        await stage.say(wire.FAULT, msgspec.msgpack.encode(("EHOSTDOWN", "the printer is off")))
        await stage.say(wire.DONE)

    await stage.play(host)
    said, status = await stage.heard()
    assert codes(said)[1:] == [("Error", "EHOSTDOWN"), ("Done", "EHOSTDOWN")]
    assert said[1].message == "the printer is off"
    assert status == 69


async def test_a_host_that_dies_is_named(stage: Stage) -> None:
    async def host(stage: Stage) -> None:
        await stage.say(wire.DELTA, b"half")
        stage.pool.theirs.close()
        stage.pool.exited.set()

    await stage.play(host)
    said, status = await stage.heard()
    assert codes(said)[2:] == [("Error", "EPROTO"), ("Done", "EPROTO")]
    assert "SIGKILL" in said[2].message
    assert status == 70


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (wire.DELTA, b"\xff"),
        (wire.OBSERVER, b"\xc1"),
        (wire.MEDIA, b"{"),
        (wire.MEDIA, b"[" * 100_000),
        (wire.MEDIA, b"[" * 500 + b"]" * 500),  # readable here, and not by each client
        (wire.FAULT, b""),
        (wire.WANT, b"\0"),
    ],
)
async def test_garbage_of_a_host_is_eproto(kind: int, payload: bytes, stage: Stage) -> None:
    # abi.md 4.30
    async def host(stage: Stage) -> None:
        await stage.say(kind, payload)
        while await receive(stage.pool.theirs):
            pass
        stage.pool.theirs.close()

    await stage.play(host)
    said, status = await stage.heard()
    assert codes(said)[1:] == [("Error", "EPROTO"), ("Done", "EPROTO")]
    assert status == 70


async def test_a_message_over_the_limit_is_eproto(stage: Stage) -> None:
    async def host(stage: Stage) -> None:
        await send(stage.pool.theirs, wire.HEADER.pack(wire.DELTA, 1 << 30))
        stage.pool.theirs.close()

    await stage.play(host)
    assert (await stage.heard())[1] == 70


async def test_output_over_its_limit(stage: Stage) -> None:
    async def host(stage: Stage) -> None:
        for _ in range(3):
            await stage.say(wire.DELTA, b"x" * 400)
        stage.pool.theirs.close()

    await stage.play(host)
    said, status = await stage.heard()
    # abi.md 4.23: 2 is for bad input, which EMSGSIZE says; here the run itself failed
    assert codes(said)[-2:] == [("Error", "EFBIG"), ("Done", "EFBIG")]
    assert status == 1


async def test_input_is_passed_on_as_wanted(stage: Stage) -> None:
    async def host(stage: Stage) -> None:
        splitter = wire.Splitter()
        splitter.feed(await receive(stage.pool.theirs))  # the request
        await stage.say(wire.WANT, wire.U32.pack(5))
        await send(stage.runner, wire.message(wire.STDIN, b"text") + wire.message(wire.STDIN))
        heard: list[tuple[int, bytes]] = []
        while len(heard) < 2:
            heard += splitter.feed(await receive(stage.pool.theirs))
        assert heard == [(wire.STDIN, b"text"), (wire.STDIN, b"")]
        await stage.say(wire.DONE)

    await stage.play(host)
    assert (await stage.heard())[1] == 0
    assert stage.run.bytes_in == 4


async def test_a_caller_who_half_closes_is_cancelled_and_told(stage: Stage) -> None:
    # abi.md 4.31
    async def host(stage: Stage) -> None:
        await receive(stage.pool.theirs)
        stage.runner.shutdown(socket.SHUT_WR)
        assert await receive(stage.pool.theirs) == b""  # our half-close cancels the call in the host
        stage.pool.theirs.close()

    await stage.play(host)
    said, status = await stage.heard()
    assert (type(said[-1]), said[-1].status, said[-1].code) == (frames.Done, "cancelled", "ECANCELED")
    assert (status, stage.pool.released) == (130, [False])


async def test_a_host_that_does_not_let_go_is_stuck(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cortexfs.pool.call.LET_GO_SECONDS", 0.01)

    async def host(stage: Stage) -> None:
        await receive(stage.pool.theirs)

    await stage.play(host, seconds=0.02)
    said, status = await stage.heard()
    assert codes(said)[1:] == [("Error", "ETIMEDOUT"), ("Done", "ETIMEDOUT")]
    assert (status, stage.pool.released) == (1, [True])
    stage.pool.theirs.close()


async def test_a_runner_that_does_not_read_holds_its_host_back(stage: Stage) -> None:
    stage.relay = Relay(stage.stream, stage.voice, stage.run, 1 << 40)
    piece, taken = wire.message(wire.DELTA, b"x" * 60_000), 0

    async def host(stage: Stage) -> None:
        nonlocal taken
        with trio.move_on_after(0.5):
            while True:
                await send(stage.pool.theirs, piece)
                taken += len(piece)
        stage.runner.close()
        while await receive(stage.pool.theirs):
            pass
        stage.pool.theirs.close()

    await stage.play(host)
    assert taken < 4 << 20  # only the kernel's buffers, and no queue of ours
    assert code_of(stage) == "ECANCELED"


async def test_a_host_that_floods_while_it_is_let_go_of(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 5.26
    monkeypatch.setattr("cortexfs.pool.call.LET_GO_SECONDS", 0.1)
    stage.relay = Relay(stage.stream, stage.voice, stage.run, 1 << 40)
    stage.pool.theirs.setblocking(True)
    piece = wire.message(wire.DELTA, b"x" * 60_000)

    def flood() -> None:
        with contextlib.suppress(OSError):
            while True:
                stage.pool.theirs.sendall(piece)

    async def host(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, flood)
            stage.runner.shutdown(socket.SHUT_WR)
            while await receive(stage.runner):
                pass

    await stage.play(host)
    assert code_of(stage) == "ECANCELED"
    assert stage.pool.released == [True]


async def test_a_caller_who_leaves_while_the_host_does_not_take_his_input(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortexfs.pool.call.LET_GO_SECONDS", 0.01)

    async def host(stage: Stage) -> None:
        await receive(stage.pool.theirs)
        await stage.say(wire.WANT, wire.U32.pack(1 << 24))
        with trio.move_on_after(0.5):  # until all buffers between us and the host are full
            for _ in range(100):
                await send(stage.runner, wire.message(wire.STDIN, b"x" * 60_000))
        stage.runner.close()

    await stage.play(host)
    assert (code_of(stage), stage.pool.released) == ("ECANCELED", [True])
    stage.pool.theirs.close()


async def test_a_request_larger_than_the_socket_holds(stage: Stage) -> None:
    large = msgspec.structs.replace(CALL, args=[b"x" * (4 << 20)])

    async def host(stage: Stage) -> None:
        splitter = wire.Splitter(8 << 20)
        heard: list[tuple[int, bytes]] = []
        while not heard:
            heard = splitter.feed(await receive(stage.pool.theirs))
        assert msgspec.msgpack.decode(heard[0][1], type=hostcalls.Request) == large
        await stage.say(wire.DONE)

    await stage.play(host, asked=large)
    assert (await stage.heard())[1] == 0


async def test_a_caller_who_leaves_before_the_host_has_the_request(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortexfs.pool.call.LET_GO_SECONDS", 0.01)

    async def host(stage: Stage) -> None:
        stage.runner.shutdown(socket.SHUT_WR)

    await stage.play(host, asked=msgspec.structs.replace(CALL, args=[b"x" * (4 << 20)]))
    assert (await stage.heard())[1] == 130
    stage.pool.theirs.close()


async def test_nothing_counts_after_done(stage: Stage) -> None:
    # wire.py: a run ends with DONE; a thread left behind by a tool may go on sending
    async def host(stage: Stage) -> None:
        fault = wire.message(wire.FAULT, msgspec.msgpack.encode(("EIO", "late")))
        late = wire.message(wire.DELTA, b"late") + fault + wire.message(99)
        await send(stage.pool.theirs, wire.message(wire.DELTA, b"x") + wire.message(wire.DONE) + late)

    await stage.play(host)
    said, status = await stage.heard()
    assert [type(frame).__name__ for frame in said] == ["Start", "Delta", "Done"]
    assert (status, stage.relay.fault) == (0, None)


async def test_a_host_that_broke_the_protocol_gets_no_more_calls(stage: Stage) -> None:
    async def host(stage: Stage) -> None:
        await receive(stage.pool.theirs)
        stage.pool.theirs.close()  # the host is alive, but sends no DONE
        stage.pool.exited.set()

    await stage.play(host)
    assert stage.pool.released == [True]


async def test_a_frame_is_never_cut_by_what_ends_a_run(stage: Stage) -> None:
    # runner.py: "Bytes that a cancellation holds back are sent first the next time"
    heard: list[Any] = []

    async def flood() -> None:
        while True:
            await stage.say(wire.DELTA, b"x" * 50_000)

    async def host(stage: Stage) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            await awaited(lambda: stage.relay.fault is not None)  # the time ran out in the middle of a frame
            nursery.cancel_scope.cancel()
        stage.pool.theirs.close()
        heard.extend(await stage.heard())

    stage.relay = Relay(stage.stream, stage.voice, stage.run, 1 << 40)
    await stage.play(host, seconds=0.2)
    said, status = heard
    assert codes(said)[-2:] == [("Error", "ETIMEDOUT"), ("Done", "ETIMEDOUT")]
    assert {len(frame.text) for frame in said if isinstance(frame, frames.Delta)} == {50_000}
    assert status == 1
