"""A call of a tool for an agent: the part of its output that is kept. The host sends what the test wants."""

from __future__ import annotations

import socket
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.registry import Object
from cortexfs.pool import call, tool_call
from cortexfs.pool.pool import Pool

TOOL = Object(class_="tool", name="x", description="", plugin=hostcalls.Plugin("p", "1", "python", "m:a"))


class Host:
    """Sends these pieces at once, and the end of the call when `end` is called."""

    def __init__(self, pieces: list[bytes], kind: int = wire.DELTA) -> None:
        self._pieces = pieces
        self._kind = kind
        self.socket: socket.socket | None = None

    def open(self, _cwd: int | None, request: bytes) -> tuple[socket.socket, socket.socket, memoryview]:
        ours, self.socket = socket.socketpair()
        ours.setblocking(False)
        self.socket.sendall(b"".join(wire.message(self._kind, piece) for piece in self._pieces))
        return ours, self.socket.dup(), memoryview(request)[ours.send(request) :]

    def end(self) -> None:
        assert self.socket
        self.socket.sendall(wire.message(wire.DONE, b""))


class Hosts:
    """A pool that hands out these hosts in turn."""

    def __init__(self, *hosts: Host) -> None:
        self._hosts = list(hosts)

    async def acquire_in_turn(self, _plugin: Any, _identity: Any) -> Host:
        return self._hosts.pop(0)

    def release(self, host: Host, stuck: bool, worn: bool) -> None:
        assert host.socket
        assert not stuck
        host.socket.close()


async def said(_frame: frames.Frame) -> None:
    raise AssertionError("deltas are collected")


async def outcomes(uids: list[int], pieces: list[bytes]) -> list[CallOutcome]:
    """Returns the outcomes of calls that all run until each host has sent all its pieces."""
    hosts = [Host(pieces) for _ in uids]
    tools = tool_call.ToolCalls(cast(Pool, Hosts(*hosts)), 5.0)
    asked = hostcalls.CallRequest("r", hostcalls.Invocation("x"), None, b"{}", 0o22, {})
    found: dict[int, CallOutcome] = {}

    async def one(number: int) -> None:
        identity = hostcalls.Identity(uids[number], 0, ())
        found[number] = await tools.call(TOOL, identity, asked, said)

    async with trio.open_nursery() as nursery:
        for number in range(len(uids)):
            nursery.start_soon(one, number)
            await trio.testing.wait_all_tasks_blocked()
        for host in hosts:
            host.end()
    return [found[number] for number in range(len(uids))]


def test_an_output_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/agents.md: "2 MiB of an output are kept"; the rest is counted
    monkeypatch.setattr(tool_call, "MAX_KEPT", 5)
    (one,) = trio.run(outcomes, [1], [b"a", b"b", b"cdef", b"g"])
    assert (one.output, one.missing, one.fault) == ("abcde", 2, None)


def test_what_is_kept_for_a_user_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/agents.md: "64 MiB for one user at a time"; endless calls of one user take nothing from others
    monkeypatch.setattr(tool_call, "MAX_HELD", 7)
    first, second, other, third = trio.run(outcomes, [1, 1, 2, 1], [b"abc", b"de"])
    assert [one.output for one in (first, second, other, third)] == ["abcde", "ab", "abcde", ""]
    assert [one.missing for one in (first, second, other, third)] == [0, 3, 0, 5]


@pytest.mark.parametrize(("name", "source"), [("policy", None), ("approval", ""), ("x", "policy")])
def test_no_note_of_a_tool_is_taken_for_a_decision(name: str, source: str | None) -> None:
    # issue 4: "Every decision with its reason in events.jsonl"; whatever a tool is called, and says, is none
    async def sources() -> list[str | None]:
        host = Host([msgspec.msgpack.encode((source, "allow"))], wire.OBSERVER)
        asked = hostcalls.CallRequest("r", hostcalls.Invocation(name), None, b"{}", 0o22, {})
        heard: list[str | None] = []

        async def hear(frame: frames.Frame) -> None:
            assert isinstance(frame, frames.Observer)
            heard.append(frame.source)
            host.end()

        tools = tool_call.ToolCalls(cast(Pool, Hosts(host)), 5.0)
        await tools.call(msgspec.structs.replace(TOOL, name=name), hostcalls.Identity(1, 0, ()), asked, hear)
        return heard

    assert trio.run(sources) == [f"tool/{name}: {source}" if source else f"tool/{name}"]


@pytest.mark.parametrize("kind", [wire.MEDIA, wire.QUESTION])
def test_no_message_of_a_host_is_nested_too_deeply(kind: int) -> None:
    # abi.md 4.30; JSON of 900 levels was read, and then could not be written to the session of an agent's run
    deep = b"[" * 500 + b"]" * 500
    if kind == wire.QUESTION:
        deep = b'{"message":"a","schema":{"a":%s}}' % deep

    async def ask(_: hostcalls.ToolQuestion) -> hostcalls.ToolAnswer:
        raise AssertionError("it is not passed on")

    async def fault() -> Fault | None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            theirs.sendall(wire.message(kind, deep))
            one = call.HostCall(lambda *said: tool_call._frame("tool/x", *said), said, ask=ask)
            await one._listen(ours)
            return one.fault

    broken = trio.run(fault)
    assert broken is not None
    assert (broken.code, "nested" in broken.message) == ("EPROTO", True)
