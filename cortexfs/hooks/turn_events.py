"""The events of models, agents and sessions, which surround a driver's answer.

    driver = turns.model(object_, driver)       llm:pre-call and llm:post-call
    driver = turns.agent(driver)                agent:turn-start and agent:turn-end
    turns.talked(address, who, is_new)          session:start
    turns.over(address)                         session:end

Rules: without a plugin for these events, a driver is returned unchanged. Else its turn is wrapped, and frames
are read on their way to the turn.
This file must never know what a driver does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

from cortexfs.core.frames import Frame, Message, Usage
from cortexfs.core.hooks import MAX_HEARD
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Object
from cortexfs.hooks.events import HookEvents
from cortexfs.hooks.registry import Hooks, Site
from cortexfs.models.ask.driver import Driver, Turn, Who
from cortexfs.sessions.layout import Address

MAX_SESSIONS = 10_000  # whose first person is remembered for session:end
MODELS = ("llm:pre-call", "llm:post-call")
AGENTS = ("agent:turn-start", "agent:turn-end")
SESSIONS = ("session:start", "session:end")


class _Known(NamedTuple):
    """The first person who talked in a session."""

    session: str
    identity: Identity
    let_go: Callable[[], None]


class Turns:
    def __init__(self, hooks: Hooks, events: HookEvents) -> None:
        self._hooks = hooks
        self._events = events
        self._sessions: OrderedDict[Address, _Known] = OrderedDict()

    def model(self, object_: Object, driver: Driver) -> Driver:
        provider, _, model = object_.name.partition("/")

        async def answer(turn: Turn) -> None:
            heard, about = _Overheard(turn), {"provider": provider, "model": model}
            async with self._told(MODELS, turn.who, about, heard.tokens):
                await driver(cast(Turn, heard))

        return driver if self._hooks.words.isdisjoint(MODELS) else answer

    def agent(self, driver: Driver) -> Driver:
        async def answer(turn: Turn) -> None:
            heard, about = _Overheard(turn), {"sessionId": turn.who.session, "turnId": turn.who.run}
            async with self._told(AGENTS, turn.who, about, heard.response):
                await driver(cast(Turn, heard))

        return driver if self._hooks.words.isdisjoint(AGENTS) else answer

    @asynccontextmanager
    async def _told(
        self, types: tuple[str, str], caller: Who, about: dict[str, str], more: Callable[[], dict[str, Any]]
    ) -> AsyncIterator[None]:
        """Send the first event before the body of the context, and the second after it, with `more` then."""
        site = Site(caller.identity, caller.session, caller.run)
        await self._hooks.people.met(caller.identity)
        self._events.tell(types[0], site, **about)
        try:
            yield
        finally:
            self._events.tell(types[1], site, **about, **more())

    def talked(self, address: Address, identity: Identity, is_new: bool) -> None:
        """Remember the person of a session's message. `is_new` is True for the first message of all."""
        if self._hooks.words.isdisjoint(SESSIONS) or identity.unheard or address in self._sessions:
            return
        self._sessions[address] = _Known(address.session, identity, self._hooks.people.outlast(identity))
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)[1].let_go()
        if is_new:
            self._events.tell("session:start", Site(identity), sessionId=address.session)

    def over(self, address: Address) -> None:
        """Report the end of a session to the plugins of its first person."""
        if known := self._sessions.pop(address, None):
            self._events.tell("session:end", Site(known.identity, known.session), sessionId=known.session)
            known.let_go()


class _Overheard:
    """A turn that keeps what the events are to tell of its frames."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._tokens = [0, 0]
        self._response = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    async def say(self, *frames: Frame) -> None:
        for frame in frames:
            if isinstance(frame, Usage):
                self._tokens[0] += frame.input_tokens
                self._tokens[1] += frame.output_tokens
            elif isinstance(frame, Message):
                self._response = "".join(part.text for part in frame.content)[:MAX_HEARD]
        await self._turn.say(*frames)

    def tokens(self) -> dict[str, Any]:
        return {"tokensIn": self._tokens[0], "tokensOut": self._tokens[1]}

    def response(self) -> dict[str, Any]:
        return {"response": self._response}
