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
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

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

_Hear: TypeAlias = Callable[[Frame], None]


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
        if self._hooks.words.isdisjoint(MODELS):
            return driver
        provider, _, model = object_.name.partition("/")

        async def answer(turn: Turn) -> None:
            site, tokens = _site(turn.who), [0, 0]
            await self._hooks.people.met(site.identity)
            self._events.tell("llm:pre-call", site, provider=provider, model=model)

            def hear(frame: Frame) -> None:
                if isinstance(frame, Usage):
                    tokens[0] += frame.input_tokens
                    tokens[1] += frame.output_tokens

            try:
                await driver(cast(Turn, _Overheard(turn, hear)))
            finally:
                usage = {"tokensIn": tokens[0], "tokensOut": tokens[1]}
                self._events.tell("llm:post-call", site, provider=provider, model=model, **usage)

        return answer

    def agent(self, driver: Driver) -> Driver:
        if self._hooks.words.isdisjoint(AGENTS):
            return driver

        async def answer(turn: Turn) -> None:
            caller, response = turn.who, [""]
            about = {"sessionId": caller.session, "turnId": caller.run}
            await self._hooks.people.met(caller.identity)
            self._events.tell("agent:turn-start", _site(caller), **about)

            def hear(frame: Frame) -> None:
                if isinstance(frame, Message):
                    response[0] = "".join(part.text for part in frame.content)[:MAX_HEARD]

            try:
                await driver(cast(Turn, _Overheard(turn, hear)))
            finally:
                self._events.tell("agent:turn-end", _site(caller), **about, response=response[0])

        return answer

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


def _site(caller: Who) -> Site:
    return Site(caller.identity, caller.session, caller.run)


class _Overheard:
    """A turn whose frames `hear` gets too."""

    def __init__(self, turn: Turn, hear: _Hear) -> None:
        self._turn = turn
        self._hear = hear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    async def say(self, *frames: Frame) -> None:
        for frame in frames:
            self._hear(frame)
        await self._turn.say(*frames)
