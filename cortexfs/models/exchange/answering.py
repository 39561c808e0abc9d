"""Requests a provider's answer: sends the request, passes the answer on, and decides after a failure.

Main path: `Attempts.answer` builds the request and sends it; `_once` is one connection. A failure there is an
ProviderFailure, and `_next` decides to try again after a while, with less history, or not at all.

Rules: no request is sent again after a part of its answer was passed on. The server's own delay counts, up to
`RetryTerms.patience`. There are deadlines to connect, until the answer begins, and between two pieces of it;
the time of a slow client does not count. A stream that breaks off is a fault, never an end. `answer` raises a
Fault, or a NoAnswer if another model may succeed.
This file must never know sockets, sessions, runners or keys.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple

import trio

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Frame, Message, Progress, Usage
from cortexfs.core.models import sse
from cortexfs.models.ask.driver import Turn
from cortexfs.models.ask.model import ModelEntry, NoAnswer
from cortexfs.models.ask.question import ModelInput, model_input
from cortexfs.models.ask.structured import Schema
from cortexfs.models.ask.window import PromptWindow
from cortexfs.models.exchange import failures
from cortexfs.models.exchange.clients import Clients
from cortexfs.models.exchange.endpoint import Endpoint, Lost
from cortexfs.models.exchange.failures import ProviderFailure
from cortexfs.models.exchange.sources import ModelSource
from cortexfs.models.exchange.wake_pace import PACE
from cortexfs.models.formats.format import BrokenStream, Format, FormatReader, ProviderRefusal

LARGE = 256 << 10  # bytes of an input from which on a thread makes the request


class RetryTerms(NamedTuple):
    """The number of tries, and the waits between them."""

    tries: int = 3
    backoff: float = 0.5  # most seconds before the second try; doubled for each further try
    patience: float = 60.0  # seconds; no further try if the server asks for a longer wait
    shrinks: int = 4  # times that a history is halved


class Attempts:
    """The attempts to get one answer from one model."""

    def __init__(
        self,
        model: ModelEntry,
        format_: Format,
        source: ModelSource,
        clients: Clients,
        turn: Turn,
        terms: RetryTerms,
    ) -> None:
        self._model = model
        self._format = format_
        self._source = source
        self._clients = clients
        self._turn = turn
        self._terms = terms
        self._window = PromptWindow(model.limit, _output(model))
        self._is_begun = False  # a part of the answer was passed on
        self._tried = 0

    async def answer(self) -> None:
        while True:
            before = await self._history()
            question, schema = await self._question(before)
            try:
                await self._once(question, schema)
                return
            except ProviderFailure as failed:
                await self._next(failed, bool(before) and not question.is_complete)

    async def _history(self) -> list[Message]:
        room = self._window.room(_size(self._turn.input))
        return self._window.stable(await self._turn.history(room)) if room else []

    async def _question(self, before: Sequence[Message]) -> tuple[ModelInput, Schema | None]:
        large = _size(self._turn.input) > LARGE or len(before) > 1000
        prepare = self._prepare
        return await trio.to_thread.run_sync(prepare, before) if large else prepare(before)

    def _prepare(self, before: Sequence[Message]) -> tuple[ModelInput, Schema | None]:
        question = model_input(self._turn.input, before, self._model.system)
        return question, None if question.schema is None else Schema(question.schema)

    async def _next(self, failure: ProviderFailure, shrinkable: bool) -> None:
        """Wait and return for another try, or raise the failure."""
        if self._is_begun:
            raise Fault(failure.code, failure.message)
        if failure.code == "EMSGSIZE" and shrinkable and self._window.shrunk < self._terms.shrinks:
            self._window.shrink(failure.most)
            return
        self._tried += 1
        wait = failure.delay
        if wait is None:
            wait = random.uniform(0.5, 1) * self._terms.backoff * 2 ** (self._tried - 1)
        if not failure.again or self._tried >= self._terms.tries or wait > self._terms.patience:
            raise (NoAnswer if failure.hop else Fault)(failure.code, failure.message)
        await self._turn.say(Progress(message=f"{failure.message}; trying again in {wait:.1f} s"))
        await trio.sleep(wait)

    async def _once(self, question: ModelInput, schema: Schema | None) -> None:
        body = self._format.request(self._model, question)
        reader = self._format.reader(question)
        try:
            async with self._source.serving() as endpoint:
                await self._exchange(endpoint, body, reader)
        except ProviderFailure:
            raise
        except Fault as fault:
            if fault.code == "EHOSTDOWN" and not self._is_begun:
                raise NoAnswer(fault.code, fault.message) from None
            raise
        await self._finish(reader, schema)

    async def _exchange(self, endpoint: Endpoint, body: dict[str, object], reader: FormatReader) -> None:
        """Send one request and read its stream. Raises ProviderFailure for each fault of the provider."""
        parser = sse.EventParser()
        with trio.CancelScope() as patience:
            patience.deadline = trio.current_time() + self._source.first
            try:
                async with AsyncExitStack() as stack:
                    response = await stack.enter_async_context(
                        self._clients.stream(endpoint, self._source, body)
                    )
                    stack.enter_context(PACE.stream())
                    response.before_wait = partial(self._allow, patience)
                    while data := await response.receive():
                        await self._pass_on(parser.feed(data), reader, patience)
                        if reader.enough:
                            break
                        if not reader.ended:
                            await PACE.rest(self._source.rest)
            except Lost as lost:
                if not reader.ended:
                    raise self._loss(lost) from None
            except ProviderRefusal as refused:
                raise failures.in_stream(self._source.name, refused.body, endpoint.key) from None
            except Fault as fault:
                raise self._mapped(fault) from None
        if patience.cancelled_caught and not reader.ended:
            seconds = self._source.silence if self._is_begun else self._source.first
            raise failures.slow(self._source.name, seconds, self._is_begun)

    async def _pass_on(
        self, events: Sequence[sse.ServerEvent], reader: FormatReader, patience: trio.CancelScope
    ) -> None:
        frames: list[Frame] = []
        try:
            for event in events:
                frames += reader.read(event)
                if reader.enough:
                    break
        finally:  # frames before a wrong event are passed on
            self._is_begun = self._is_begun or bool(frames)
            if self._is_begun and patience.deadline != math.inf:  # `_allow` starts it at the next wait
                patience.deadline = math.inf
            if frames:
                await self._turn.say(*frames)

    def _allow(self, patience: trio.CancelScope) -> None:
        """Start the deadline of silence: from now on the provider is late, as all that it sent is read."""
        if self._is_begun:
            patience.deadline = trio.current_time() + self._source.silence

    async def _finish(self, reader: FormatReader, schema: Schema | None) -> None:
        try:
            frames = reader.end()
        except Fault as fault:
            raise self._mapped(fault) from None
        if schema is not None:
            await self._check(schema, reader.text, frames)
        await self._turn.say(*frames)

    async def _check(self, schema: Schema, text: str, frames: Sequence[Frame]) -> None:
        try:
            await trio.to_thread.run_sync(schema.check, text, abandon_on_cancel=True)
        except Fault:
            await self._turn.say(*(frame for frame in frames if isinstance(frame, Usage)))
            raise

    def _mapped(self, fault: Fault) -> Fault:
        """Returns a format's fault about a stream as a fault of its provider."""
        if fault.code != "EREMOTEIO" or isinstance(fault, ProviderFailure):
            return fault
        again = isinstance(fault, BrokenStream)  # any other fault would come again
        return failures.broken(self._source.name, fault.message, again)

    def _loss(self, lost: Lost) -> ProviderFailure:
        name, again = self._source.name, not lost.lasting
        if lost.connected:
            return failures.broken(name, f"{lost.why} in the middle of the answer", again)
        return failures.unreachable(name, lost.why, again)


def _output(model: ModelEntry) -> int | None:
    """Returns the most tokens of an answer, if a control has them."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(value := model.default.get(name), int):
            return value
    return None


def _size(value: object) -> int:
    """Returns about how many bytes an input has, without encoding it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 8
