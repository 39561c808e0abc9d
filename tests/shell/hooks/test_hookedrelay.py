"""A run about which plugins are asked, with a host and plugins that the test plays."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.hooks import middleware
from cortexfs.hooks.middleware import Middleware
from cortexfs.hooks.registry import Hooks, Site
from cortexfs.peers.streams import receive
from cortexfs.run.hooked_tool_run import HookedRelay
from tests.shell.calling import no_hosts
from tests.shell.run.test_relay import Stage, codes
from tests.waiting import PATIENCE, awaited

ME = hostcalls.Identity(0, 0, ())
GUARD = hostcalls.Plugin("guard", "1", "esm", "{}", hooks=("middleware:pre", "middleware:post"))
EAR = hostcalls.Plugin("ear", "1", "esm", "{}", hooks=("tool:pre-execute", "tool:post-execute"))

Answers = Callable[[str, dict[str, Any]], dict[str, Any]]


class Asked(Hooks):
    """Plugins that answer by `answers`. `heard` keeps all that they receive."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(no_hosts())
        self.apply([GUARD, EAR])
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.stuck = ""
        self._answers = answers

    async def call(self, plugin: hostcalls.Plugin, name: str, site: Site, data: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        about = msgspec.json.decode(data)
        self.heard.append((name, about))
        if name == self.stuck:
            await trio.sleep_forever()
        return msgspec.json.encode(self._answers(name, about))

    @property
    def events(self) -> list[str]:
        return [about["type"] for name, about in self.heard if name == ":event"]


class Hooked(Stage):
    def __init__(self, folder: Path, answers: Answers) -> None:
        super().__init__(folder)
        self.middleware = Middleware(no_hosts())
        self.hooks = Asked(answers)
        self.middleware.hooks = self.middleware.events._hooks = self.hooks
        hooked = self.middleware.of(Site(ME), "t")
        assert hooked is not None
        admit = self.admits
        self.relay = HookedRelay(self.stream, self.voice, self.run, 1 << 30, hooked, admit)

    def admits(self, changed: bytes) -> None:
        if b"forbidden" in changed:
            raise Fault("EACCES", "no")

    async def hears(self, host: Callable[[Any], Any]) -> tuple[list[Any], int | None]:
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                await nursery.start(self.middleware.events.run)
                await self.play(host)
                await awaited(lambda: not self.middleware.events._queues)
                nursery.cancel_scope.cancel()
        return await self.heard()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[[Answers], Hooked]]:
    made: list[Hooked] = []

    def make(answers: Answers = lambda name, about: {}) -> Hooked:
        made.append(Hooked(tmp_path, answers))
        return made[-1]

    yield make
    for one in made:
        one.close()


async def answer_of(stage: Stage) -> bytes:
    """Returns the answer that the host receives for the input that it has shown."""
    splitter = wire.Splitter(1 << 24)
    while True:
        with trio.fail_after(PATIENCE):
            await trio.lowlevel.wait_readable(stage.pool.theirs)
        for kind, payload in splitter.feed(stage.pool.theirs.recv(1 << 20)):
            if kind == wire.INPUT:
                return payload


async def show(stage: Stage, input_: bytes = b'{"a": 1}') -> bytes:
    await stage.say(wire.INPUT, input_)
    await stage.say(wire.INPUT)
    return await answer_of(stage)


async def test_the_order_of_a_call(stage: Any) -> None:
    # Of the originals: "pre hooks -> event tool:pre-execute -> execute -> post hooks -> event"
    made = stage()

    async def host(_: Stage) -> None:
        assert await show(made) == b""
        await made.say(wire.DELTA, b"out")
        await made.say(wire.DONE)

    said, status = await made.hears(host)
    assert status == 0
    assert [type(one).__name__ for one in said] == ["Start", "Delta", "Done"]
    assert made.hooks.events == ["tool:pre-execute", "tool:post-execute"]
    assert [name for name, _ in made.hooks.heard if name != ":event"] == [
        ":middleware-pre",
        ":middleware-post",
    ]


async def test_a_host_that_keeps_its_input_to_itself(stage: Any) -> None:
    # no output passes before a plugin is asked about the input
    made = stage()

    async def host(_: Stage) -> None:
        await made.say(wire.DELTA, b"out")
        await made.say(wire.DONE)

    said, status = await made.hears(host)
    assert (codes(said)[-2:], status) == ([("Error", "EPROTO"), ("Done", "EPROTO")], 70)
    assert not any(isinstance(one, frames.Delta) for one in said)
    assert made.hooks.heard == []


async def shown_twice(made: Hooked) -> None:
    await show(made)
    await made.say(wire.INPUT)


async def shown_garbage(made: Hooked) -> None:
    await made.say(wire.INPUT, b"[1")
    await made.say(wire.INPUT)


@pytest.mark.parametrize("host", [shown_twice, shown_garbage])
async def test_a_host_that_does_not_keep_to_the_protocol(stage: Any, host: Any) -> None:
    made = stage()
    said, status = await made.hears(lambda _: host(made))
    assert (codes(said)[-1], status) == (("Done", "EPROTO"), 70)


async def test_a_host_that_dies_after_it_was_asked_about(stage: Any) -> None:
    # a call that has begun has an event at its end, too
    made = stage()

    async def host(_: Stage) -> None:
        await show(made)
        made.pool.exited.set()
        made.pool.theirs.close()

    said, status = await made.hears(host)
    assert (codes(said)[-1], status) == (("Done", "EPROTO"), 70)
    assert made.hooks.events == ["tool:pre-execute", "tool:post-execute"]
    assert made.hooks.heard[-1][1]["result"]["success"] is False


async def test_who_may_not_run_it_with_the_changed_input(stage: Any) -> None:
    # the tool does not run, so no event says that it does
    made = stage(lambda name, about: {"modifyInput": {"a": "forbidden"}} if name == ":middleware-pre" else {})

    async def host(_: Stage) -> None:
        await made.say(wire.INPUT, b"{}")
        await made.say(wire.INPUT)

    said, status = await made.hears(host)
    assert (codes(said)[-1], status) == (("Done", "EACCES"), 13)
    assert made.hooks.events == []


async def test_what_is_refused_is_cut_off_at_once(stage: Any) -> None:
    # docs/plugins.md: outputs of "at most 768 KiB; larger ones do not pass"
    made = stage()

    async def host(_: Stage) -> None:
        await show(made)
        for _piece in range(8):
            await made.say(wire.DELTA, b"x" * wire.MAX_TEXT)

    said, status = await made.hears(host)
    assert (codes(said)[-1], status) == (("Done", "EFBIG"), 1)
    assert not any(isinstance(one, frames.Delta) for one in said)


async def test_a_caller_who_leaves_while_middleware_is_asked(stage: Any) -> None:
    # abi.md 5.26: a cancel ends a run. Held output is dropped, and listeners receive the status of the end.
    made = stage()

    async def host(_: Stage) -> None:
        await show(made)
        made.hooks.stuck = ":middleware-post"
        await made.say(wire.DELTA, b"out")
        await made.say(wire.DONE)
        await awaited(lambda: ":middleware-post" in dict(made.hooks.heard))
        made.runner.shutdown(socket.SHUT_WR)

    said, status = await made.hears(host)
    assert (codes(said)[-1], status) == (("Done", "ECANCELED"), 130)
    assert not any(isinstance(one, frames.Delta) for one in said)
    assert made.hooks.heard[-1][1]["result"] | {"durationMs": 0} == {
        "toolName": "t",
        "success": False,
        "output": "",
        "durationMs": 0,
        "error": "cancelled",
    }


async def test_what_is_held_for_a_user_is_bounded(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "MAX_HELD", 10)
    made = stage()

    async def host(_: Stage) -> None:
        await show(made)
        await made.say(wire.DELTA, b"more than that")
        await made.say(wire.DONE)

    said, status = await made.hears(host)
    assert (codes(said)[-1], status) == (("Done", "EAGAIN"), 1)
    assert not any(isinstance(one, frames.Delta) for one in said)
    assert not made.middleware.held


async def test_without_middleware_for_it_an_output_streams(stage: Any) -> None:
    # events wait for nothing, and no output waits for them
    made = stage()
    made.hooks.apply([EAR])
    made.relay._passes = True

    async def host(_: Stage) -> None:
        await show(made)
        await made.say(wire.DELTA, b"first")
        out = b""
        while b"first" not in out:
            out += await receive(made.runner)
        await made.say(wire.DONE)

    _, status = await made.hears(host)
    assert status == 0
    assert made.hooks.heard[-1][1]["result"]["output"] == "first"


def test_where_nobody_hooks_in_nothing_is_made() -> None:
    # the price of a call without such plugins is a look at one attribute
    nobody = Middleware(no_hosts())
    assert not nobody.hooks.of_tools
    nobody.hooks.apply([hostcalls.Plugin("p", "1", "esm", "{}", hooks=("session:start",))])
    assert not nobody.hooks.of_tools
    assert nobody.of(Site(ME), "t") is None
    nobody.hooks.apply([EAR])
    assert nobody.of(Site(ME), "t") is not None
    assert nobody.of(Site(hostcalls.Identity(0, 0, (), unheard=True)), "t") is None
