"""A model whose provider is played by the test, and a turn that records the frames of the driver."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import trio

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, Delta, Frame, Message, Progress, Question
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Object
from cortexfs.core.talk.requests import Input, Verdict
from cortexfs.core.tree import controls
from cortexfs.models.ask.driver import Who
from cortexfs.models.drivers import Drivers, answered
from cortexfs.models.exchange.answering import RetryTerms
from cortexfs.models.exchange.endpoint import Endpoint
from cortexfs.models.exchange.sources import ModelSource
from tests.shell.provider_server import KEY, Move, Provider, playing
from tests.waiting import PATIENCE

QUICK = RetryTerms(backoff=0.001)


class Turn:
    """The turn that a driver gets; `frames` holds the frames that the driver sent."""

    uid = 1000
    who = Who(Identity(1000, 1000, ()))

    def __init__(self, given: Input, history: Sequence[Message] = ()) -> None:
        self.input = given
        self.frames: list[Frame] = []
        self.session_memory: dict[str, object] = {}
        self.rooms: list[int] = []
        self.said = 0  # the number of calls of `say`
        self.spoken = trio.Event()
        self._history = list(history)

    async def history(self, room: int) -> list[Message]:
        self.rooms.append(room)
        kept: list[Message] = []
        for message in reversed(self._history):
            room -= len(msgspec.json.encode(message))
            if room < 0:
                break
            kept.insert(0, message)
        return kept

    async def say(self, *said: Frame) -> None:
        self.frames += said
        self.said += 1
        self.spoken.set()
        await trio.lowlevel.checkpoint()

    async def settled(self) -> None: ...

    async def ask(self, approval: Approval) -> Verdict:
        raise NotImplementedError

    async def question(self, asked: Question) -> Verdict:
        raise NotImplementedError

    @property
    def output(self) -> str:
        return "".join(frame.text for frame in self.frames if isinstance(frame, Delta))

    @property
    def progress(self) -> list[str]:
        return [frame.message for frame in self.frames if isinstance(frame, Progress)]

    @property
    def types(self) -> list[str]:
        return [str(frame.__struct_config__.tag) for frame in self.frames]


class Server:
    def __init__(self, base_url: str, key: str) -> None:
        self._fixed = Endpoint(base_url, key)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Endpoint]:
        yield self._fixed


def model(name: str = "p/m", format_: str = "openai.chat", **extra: str) -> Object:
    given = {"id": "native/m", "driver": format_, "session": "socket", "format": format_} | extra
    origin = f"provider:{name.partition('/')[0]}"
    return Object(class_="model", name=name, description="", origin=origin, extra=given)


def control(object_: Object, name: str) -> str:
    found = controls.find("model", name)
    assert found
    return found.render(object_)


class World:
    """Some models, and the providers that serve them."""

    def __init__(self, terms: RetryTerms = QUICK) -> None:
        self.objects: dict[str, Object] = {}
        self.sources: dict[str, ModelSource] = {}
        self.drivers = Drivers(lambda key: self.objects.get(key[1]), control, terms=terms)

    async def add(self, object_: Object, base_url: str, key: str = KEY, **source: Any) -> None:
        self.objects[object_.name] = object_
        name = object_.origin.partition(":")[2]
        form = object_.extra["format"]
        self.sources[name] = ModelSource(name, Server(base_url, key).serving, form, **source)
        await self.drivers.apply(self.sources)

    async def ask(
        self, given: Input, name: str = "p/m", history: Sequence[Message] = ()
    ) -> tuple[Turn, Fault | None]:
        turn = Turn(given, history)
        with trio.fail_after(PATIENCE):
            fault = await answered(self.drivers.chosen(self.objects[name], "exec"), turn)
        return turn, fault


@contextlib.asynccontextmanager
async def world(*answers: Sequence[Move], **extra: Any) -> AsyncIterator[tuple[World, Provider]]:
    """Yields a world of one model, p/m, whose provider sends these answers."""
    source = {
        key: extra.pop(key) for key in ("first", "silence", "connect", "key", "headers") if key in extra
    }
    async with playing(*answers) as provider:
        made = World(extra.pop("terms", QUICK))
        await made.add(model(**extra), provider.base_url, **source)
        try:
            yield made, provider
        finally:
            await made.drivers.apply({})


def message(role: str, text: str, id_: int = 1) -> Message:
    return Message(id=str(id_), role=role, content=[frames.Text(text)])
