"""Questions to clients as of 2026-07-28, when a server asks in the answer to a request and not by a request.

Main path: `Rounds.said` runs a client's request in a task. A question of the server meanwhile becomes the
answer to that request (`input_required`). The client's next request brings its reply together with the state
from that answer, and the run, which has waited, goes on.

Rules: a state is a secret of its client, and good for one request of the same kind, for a time. While a
client's run goes on, no other client uses that session with the server, so no client is asked another one's
question.
This file must never know what is run, or how.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.abc import TaskGroup
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from cortexfs.client.results import Failed
from cortexfs.core.mcp_session import HANDSHAKE, QUESTIONS, ServerAnswer, ServerError, ServerMessage
from cortexfs.mcp.relay import Channel, McpRelay, Way

ROUND_SECONDS = 600.0  # for a person to answer
MAX_OPEN = 24  # runs that wait for a reply, each in a session; a host has 32 sessions
STATE, RESPONSES, KEY = "requestState", "inputResponses", "question"

Context = ServerRequestContext[Any, Any]
Work = Callable[[McpRelay, Way], Awaitable[dict[str, Any]]]


def able(context: Context) -> frozenset[str]:
    """Returns the questions that a client declares in its request; none for a client with a handshake."""
    capabilities = context.session.client_capabilities if context.protocol_version >= "2026" else None
    return frozenset(each for each in QUESTIONS if getattr(capabilities, each, None) is not None)


class Round:
    """A request of a client to a server, with its questions one after the other."""

    def __init__(self, about: tuple[object, ...]) -> None:
        self.about = about
        self.channel: Channel | None = None  # of the request that waits now
        self.scope = anyio.CancelScope()
        self.pending: ServerMessage | None = None
        self.outcome: dict[str, Any] | Exception | None = None
        self._turn = self._answered = anyio.Event()
        self._answer = ServerAnswer()

    async def tell(self, message: ServerMessage) -> None:
        if self.channel is not None:
            await self.channel.tell(message)

    async def question(self, message: ServerMessage) -> ServerAnswer:
        self.pending, self._answered = message, anyio.Event()
        self._turn.set()
        await self._answered.wait()
        return self._answer

    def take(self, answer: ServerAnswer) -> None:
        self.pending, self._answer, self._turn = None, answer, anyio.Event()
        self._answered.set()

    async def run(self, work: Work, relay: McpRelay) -> None:
        with self.scope:
            try:
                self.outcome = await work(relay, self)
            except (Failed, MCPError) as error:  # `Rounds.said` raises it
                self.outcome = error
        self._turn.set()

    async def next(self, channel: Channel) -> None:
        """Wait for a question or the outcome."""
        self.channel, self.scope.deadline = channel, math.inf
        try:
            await self._turn.wait()
        except BaseException:  # the client has left
            self.scope.cancel()
            raise
        finally:
            self.channel = None


class Rounds:
    def __init__(self, object: str, seconds: float = ROUND_SECONDS) -> None:
        self._object = object
        self._seconds = seconds
        self._open: dict[str, Round] = {}
        self._idle: dict[frozenset[str], list[tuple[McpRelay, anyio.CancelScope]]] = {}

    async def result(
        self, tasks: TaskGroup, context: Context, channel: Channel, work: Work
    ) -> dict[str, Any]:
        params = context.params or {}
        about = (context.method, params.get("name"), params.get("uri"))
        if (state := params.get(STATE)) is None:
            round_ = Round(about)
            tasks.start_soon(self._run, round_, tasks, able(context), work)
        else:
            round_ = self._resumed(str(state), about, params.get(RESPONSES))
        await round_.next(channel)
        if isinstance(round_.outcome, Exception):
            raise round_.outcome
        return round_.outcome if round_.outcome is not None else self._asks(round_)

    async def _run(self, round_: Round, tasks: TaskGroup, can: frozenset[str], work: Work) -> None:
        """Run in a session that no other client uses meanwhile. The next client may use it after that."""
        idle = self._idle.setdefault(can, [])
        if not idle:
            relay, held = McpRelay(self._object, [HANDSHAKE, *can]), anyio.CancelScope()
            tasks.start_soon(_hold, relay, held)
            idle.append((relay, held))
        relay, held = idle.pop()
        await round_.run(work, relay)
        if round_.scope.cancel_called or isinstance(round_.outcome, Failed):
            held.cancel()  # the server may still work on it, and would ask the next client
        elif not held.cancel_called:
            idle.append((relay, held))

    def _resumed(self, state: str, about: tuple[object, ...], responses: object) -> Round:
        round_ = self._open.get(state)
        if round_ is None or round_.about != about or round_.scope.cancel_called:
            why = "no request with this state waits (any more); make the request anew"
            raise MCPError(INVALID_PARAMS, why)
        del self._open[state]
        answer = responses.get(KEY) if isinstance(responses, dict) else None
        if isinstance(answer, dict):
            round_.take(ServerAnswer(answer))
        return round_

    def _asks(self, round_: Round) -> dict[str, Any]:
        if round_.pending is None:
            raise MCPError(INTERNAL_ERROR, "the request was given up")
        self._open = {state: each for state, each in self._open.items() if not each.scope.cancel_called}
        if len(self._open) >= MAX_OPEN:
            round_.scope.cancel()
            raise MCPError(INTERNAL_ERROR, f"{MAX_OPEN} requests wait for clients already; try again later")
        state = secrets.token_urlsafe(32)
        self._open[state] = round_
        round_.scope.deadline = anyio.current_time() + self._seconds
        request = {"method": round_.pending.method, "params": round_.pending.params}
        return {"resultType": "input_required", "inputRequests": {KEY: request}, STATE: state}


class _Nobody:
    """The way to such a client outside of calls: it can be neither told nor asked anything."""

    async def tell(self, message: ServerMessage) -> None:
        """Drop the message, as there is no way to the client."""

    async def question(self, message: ServerMessage) -> ServerAnswer:
        return ServerAnswer(error=ServerError(INTERNAL_ERROR, "this client is asked only during its calls"))


async def _hold(relay: McpRelay, held: anyio.CancelScope) -> None:
    """Keep a session open until the server ends, or `held` is cancelled."""
    with held, contextlib.suppress(Failed, MCPError):  # the next request reports it
        await relay.listen(_Nobody())
    held.cancel()  # `_run` must not use the session again
