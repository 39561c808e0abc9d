"""Engines as the daemon sees them, with a child that has the faults of real engines: models/local/engine.py,
local.py."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, Delta, Frame, Message, Question
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Object
from cortexfs.core.starts import ENGINE
from cortexfs.core.talk.requests import Input, Verdict
from cortexfs.core.tree import controls
from cortexfs.models.ask.driver import Who
from cortexfs.models.exchange.clients import get
from cortexfs.models.exchange.endpoint import Endpoint, Lost
from cortexfs.models.local.driver import Locals
from cortexfs.models.local.engine import Engines, EngineTerms
from cortexfs.models.local.weights import Local, Weights
from cortexfs.pool.starter import Starter
from tests.places import PROJECT
from tests.shell.starters import starting
from tests.waiting import PATIENCE, awaited

FAKE = (sys.executable, str(PROJECT / "tests/shell/fake_engine.py"))
NAME = "test/model"


class Turn:
    """The turn that a driver gets, and all that the driver sent."""

    def __init__(self, given: Input = "hello", heard: Callable[[], None] | None = None) -> None:
        self.input = given
        self.uid = 0
        self.who = Who(Identity(0, 0, ()))
        self.said: list[Frame] = []
        self.session_memory: dict[str, object] = {}
        self._heard = heard

    async def history(self, room: int) -> list[Message]:
        return []

    async def say(self, *said: Frame) -> None:
        self.said += said
        if self._heard:
            self._heard()

    async def settled(self) -> None: ...

    async def ask(self, approval: Approval) -> Verdict:
        raise AssertionError

    async def question(self, asked: Question) -> Verdict:
        raise AssertionError

    @property
    def text(self) -> str:
        return "".join(frame.text for frame in self.said if isinstance(frame, Delta))


class World:
    """Engines of the fake kind, and the driver of an engine that behaves as `kind` says."""

    def __init__(self, terms: EngineTerms, nursery: trio.Nursery, starter: Starter) -> None:
        self.nursery = nursery
        self.engines = Engines(terms, partial(starter.start, ENGINE))

    def weights(self, kind: str) -> Weights:
        return Weights(NAME, Path(f"/nowhere/{kind}.gguf"), 512)

    def serving(self, kind: str) -> AbstractAsyncContextManager[Endpoint]:
        return self.engines.serving(self.weights(kind))

    def pid(self, kind: str) -> int | None:
        process = self.engines._by_file.get(self.weights(kind).path)
        return process.pid if process else None

    async def ask(self, kind: str, turn: Turn | None = None) -> Turn:
        object_ = Object(class_="model", name=NAME, description="", origin="provider:local")
        locals_ = Locals(self.engines, control)
        locals_.apply([Local(object_, self.weights(kind))])
        driver = locals_.driver(object_)
        assert driver is not None
        turn = turn or Turn()
        await driver(turn)
        return turn

    async def fails(self, kind: str, turn: Turn | None = None) -> Fault:
        with pytest.raises(Fault) as caught:
            await self.ask(kind, turn)
        return caught.value


def control(object_: Object, name: str) -> str:
    row = controls.find("model", name)
    assert row is not None
    return row.render(object_)


@asynccontextmanager
async def world(*words: str, **terms: float) -> AsyncIterator[World]:
    """`words` are further arguments of the fake engine's command line."""
    async with starting(engine=(*FAKE, *words)) as starter, trio.open_nursery() as nursery:
        made = World(EngineTerms(**terms), nursery, starter)  # type: ignore[arg-type]
        await nursery.start(made.engines.run)
        with trio.fail_after(PATIENCE):
            yield made
        nursery.cancel_scope.cancel()


async def gone(pid: int) -> None:
    """Wait for a process to end."""
    pidfd = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def proc(pid: int | None, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_an_answer_in_circles_is_ended_at_the_engine_too(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    async with world(str(mark)) as w:
        turn = await w.ask("circles")
        assert len(turn.text) < 1000
        await awaited(lambda: mark.exists() and mark.read_text())


async def test_it_starts_on_first_use_and_is_shared() -> None:
    # issue: "loaded on first use"; one engine per file
    async with world() as w:
        assert w.pid("good") is None
        first = await w.ask("good")
        assert (first.text, w.pid("good") is None) == ("begun", False)
        pid = w.pid("good")
        async with trio.open_nursery() as both:
            both.start_soon(w.ask, "good")
            both.start_soon(w.ask, "good")
        assert w.pid("good") == pid
        assert len(w.engines) == 1


async def test_many_first_uses_start_one() -> None:
    async with world() as w:
        pids = set()

        async def use() -> None:
            async with w.serving("good") as served:
                pids.add((w.pid("good"), served.base_url))

        async with trio.open_nursery() as many:
            for _ in range(10):
                many.start_soon(use)
        assert len(pids) == 1


async def test_one_that_leaves_while_it_loads_ends_it_for_nobody() -> None:
    async with world() as w, trio.open_nursery() as nursery:
        leaving = trio.CancelScope()

        async def leave() -> None:
            with leaving:
                await w.ask("good")

        nursery.start_soon(leave)
        await trio.testing.wait_all_tasks_blocked()
        leaving.cancel()
        assert (await w.ask("good")).text == "begun"


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("crash", "EHOSTDOWN", "was killed by SIGSEGV; its last words: llama: out of memory"),
        ("exit", "EHOSTDOWN", "exited with status 3; its last words: llama: loading"),
        ("garbage", "EPROTO", "sent an answer that is not of the engine's protocol"),
        ("flood", "EPROTO", "sent an answer that is not of the engine's protocol"),
        ("refuses", "EHOSTDOWN", "cannot load: llama.cpp does not load it"),
    ],
)
async def test_one_that_does_not_load(kind: str, code: str, said: str) -> None:
    # abi.md 4.24
    async with world() as w:
        fault = await w.fails(kind)
        assert (fault.code, f"the engine of {NAME} {said}" in fault.message) == (code, True), fault
        assert w.pid(kind) is None
        again = await w.fails(kind)  # nothing of the failure is kept
        assert again.message == fault.message


async def test_one_that_loads_for_ever_is_ended() -> None:
    async with world(load=0.3) as w:
        fault = await w.fails("slow")
        assert fault.code == "EHOSTDOWN"
        assert "did not load within 0.3 s" in fault.message


async def test_one_that_cannot_be_started() -> None:
    async with starting(engine=["/nowhere/python"]) as starter, trio.open_nursery() as nursery:
        engines = Engines(EngineTerms(), partial(starter.start, ENGINE))
        await nursery.start(engines.run)
        with pytest.raises(Fault) as caught:
            async with engines.serving(Weights(NAME, Path("/x"), 512)):
                pass
        assert caught.value.code == "EHOSTDOWN"
        nursery.cancel_scope.cancel()


async def test_one_that_dies_in_an_answer() -> None:
    # abi.md 4.25
    async with world() as w:
        turn = Turn()
        fault = await w.fails("dies", turn)
        assert (fault.code, turn.text) == ("EPROTO", "begun")
        assert "was killed by SIGKILL" in fault.message
        assert w.pid("dies") is None
        assert (await w.fails("dies")).code == "EPROTO"  # a new engine, which died too


async def test_its_death_ends_every_answer() -> None:
    async with world() as w:
        faults: list[Fault] = []

        async def ask(begun: trio.Event) -> None:
            faults.append(await w.fails("endless", Turn(heard=begun.set)))

        async with trio.open_nursery() as both:
            for begun in (trio.Event(), trio.Event()):
                both.start_soon(ask, begun)
                await begun.wait()
            os.kill(w.pid("endless") or 0, 9)
        assert [fault.code for fault in faults] == ["EPROTO", "EPROTO"]


@pytest.mark.parametrize("kind", ["cut", "noise"])
async def test_an_answer_that_breaks_off_is_a_fault(kind: str) -> None:
    # issue: "a stream cut in the middle is an error frame, never a silent done"
    async with world() as w:
        fault = await w.fails(kind)
        assert (fault.code, "in the middle of the answer" in fault.message) == ("EREMOTEIO", True)
        assert w.pid(kind) is not None  # the engine lives: only its answer was bad


async def test_one_that_hangs_is_ended() -> None:
    # issue: "killed when it hangs"
    async with world(watch=0.05, silence=2) as w:
        turn = Turn()
        fault = await w.fails("hangs", turn)
        assert (fault.code, turn.text) == ("EPROTO", "begun")
        assert "did not answer for 2 s and was ended" in fault.message


async def test_it_ends_when_nobody_needs_it_and_comes_back() -> None:
    # issue: "freed when idle"
    async with world(idle=0.2) as w:
        async with w.serving("good"):
            pid = w.pid("good")
            assert pid is not None
            async with w.serving("other"):
                other = w.pid("other")
                assert other is not None
            await gone(other)
            assert w.pid("good") == pid  # as old as the other, but in use
        await gone(pid)
        assert w.pid("good") is None
        assert (await w.ask("good")).text == "begun"
        assert w.pid("good") != pid


async def test_leaving_closes_the_connection(tmp_path: Path) -> None:
    # issue: "cancel closes the request"
    told = tmp_path / "gone"
    os.mkfifo(told)
    async with world(str(told)) as w:
        with trio.CancelScope() as scope:
            await w.ask("endless", Turn(heard=scope.cancel))
        assert await trio.to_thread.run_sync(told.read_bytes) == b"gone"
        assert w.pid("endless") is not None


async def test_no_engine_outlives_its_daemon() -> None:
    async with world() as w:
        await w.ask("good")
        pid = w.pid("good")
    assert pid is not None
    assert not exists(pid)


async def test_the_daemon_waits_for_the_end_of_its_engines(caplog: pytest.LogCaptureFixture) -> None:
    # while the starter still reports ends: else the daemon would wait for a killed engine in vain
    async with world() as w:
        await w.ask("good")
        pid = w.pid("good")
        assert pid is not None
        with caplog.at_level("WARNING", "cortexfs"):
            await w.engines.end()
        assert (exists(pid), caplog.text) == (False, "")


async def test_nobody_is_shown_the_key(caplog: pytest.LogCaptureFixture) -> None:
    # abi.md 8.2
    async with world() as w, w.serving("good") as served:
        pid = w.pid("good")
        assert not [name for name in ("cmdline", "environ") if served.key.encode() in proc(pid, name)]
        assert served.key not in repr(served)
    assert served.key not in caplog.text


async def test_a_stranger_at_its_port_hears_nothing() -> None:
    async with world() as w, w.serving("good") as served:
        pass
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener[0]:
        port = listener[0].socket.getsockname()[1]
        with pytest.raises(Lost):
            await get(Endpoint(f"http://127.0.0.1:{port}/v1", served.key, served.is_there), "/slots")
        async with await listener[0].accept() as stranger:
            assert await stranger.receive_some() == b""


@pytest.mark.parametrize(
    "given",
    [
        {"input": "x", "tools": [{"name": "fs.read"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "url": "https://example.org/a.png"}]}]},
    ],
)
async def test_what_it_cannot_do_is_refused_at_once(given: Input) -> None:
    async with world() as w:
        fault = await w.fails("good", Turn(given))
        assert (fault.code, "its cap lists" in fault.message) == ("EINVAL", True)
        assert w.pid("good") is None


async def test_a_broken_model_says_why() -> None:
    async with world() as w:
        object_ = Object(class_="model", name=NAME, description="", status="broken: no such file")
        locals_ = Locals(w.engines, control)
        locals_.apply([Local(object_, w.weights("good"))])
        driver = locals_.driver(object_)
        assert driver is not None
        with pytest.raises(Fault, match="no such file"):
            await driver(Turn())
        other = Object(class_="model", name="other/model", description="")
        assert locals_.driver(other) is None
