"""One MCP server of the mount for one client: the client's requests, and the server's questions to it.

Main path: `call` runs a tool's object and `ask` the server's own object, both in the session of this relay
(core/mcp_session.py), so the server's answers pass unchanged. A question of the server arrives as a note of
the run and goes to the client; the client's answer is a run too. `listen` passes on messages between runs.

Rules: a client gets only questions that it declared. A run that fails is reported with its own failure.
This file must never know transports, or the tools.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import msgspec
from mcp import MCPError
from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.shared.message import ServerMessageMetadata
from mcp_types import INTERNAL_ERROR, RequestId, Result, methods
from pydantic import ConfigDict, ValidationError

from cortexfs.client.results import Failed, failure
from cortexfs.core import frames
from cortexfs.core.frames import AnyFrame
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.mcp_session import (
    ANSWER,
    LISTEN,
    SOURCE,
    VARIABLE,
    McpSession,
    ServerAnswer,
    ServerError,
    ServerMessage,
)
from cortexfs.core.safe_text import misfits
from cortexfs.mcp.running import run

PROGRESS = "notifications/progress"
MAX_ANSWER = 48 << 20  # characters; a host takes answers of 32 MiB

_answers = msgspec.json.Decoder(ServerAnswer)
_messages = msgspec.json.Decoder(ServerMessage)


def connection(context: ServerRequestContext[Any, Any]) -> Connection:
    """Returns the place for things that belong to a client and end with it. The SDK keeps it private."""
    return context.session._connection


class _AnyResult(Result):
    model_config = ConfigDict(extra="allow")


class Way(Protocol):
    """The way to a client."""

    async def tell(self, message: ServerMessage) -> None: ...
    async def question(self, message: ServerMessage) -> ServerAnswer: ...


class Channel(NamedTuple):
    """The way to a client, beside the request that waits, or outside of requests."""

    session: ServerSession
    request: RequestId | None

    async def tell(self, message: ServerMessage) -> None:
        if message.method == PROGRESS:
            params = message.params
            await self.session.report_progress(params["progress"], params.get("total"), params.get("message"))
            return
        version = self.session.protocol_version
        try:
            notification = methods.parse_server_notification(message.method, version, message.params)
        except (KeyError, ValidationError):  # this client's version of the protocol lacks it
            return
        await self.session.send_notification(notification, self.request)  # type: ignore[arg-type]

    async def question(self, message: ServerMessage) -> ServerAnswer:
        try:
            request = methods.parse_server_request(
                message.method, self.session.protocol_version, message.params
            )
            about = ServerMessageMetadata(related_request_id=self.request)
            answer = await self.session.send_request(request, _AnyResult, metadata=about)  # type: ignore[arg-type]
        except MCPError as error:
            return ServerAnswer(error=ServerError(error.error.code, error.error.message, error.error.data))
        except (KeyError, ValidationError) as error:
            why = misfits(error.errors()) if isinstance(error, ValidationError) else message.method
            return ServerAnswer(error=ServerError(INTERNAL_ERROR, f"no valid request to the client: {why}"))
        return ServerAnswer(answer.model_dump(by_alias=True, mode="json", exclude_unset=True))


class McpRelay:
    def __init__(self, object: str, can: Iterable[str] = ()) -> None:
        """`object` is the path of SERVER.mcp, `can` the client's abilities (core/mcp_session.py)."""
        self._object = object
        self._variables = {VARIABLE: str(McpSession(secrets.token_hex(16), frozenset(can)))}

    async def ask(self, channel: Way, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Returns the server's answer. Raises MCPError for its error, and Failed if there is no answer."""
        return await self.call(channel, self._object, {"method": method, "params": params})

    async def listen(self, channel: Way) -> None:
        """Pass on messages until the caller cancels, or the server has gone."""
        await self.call(channel, self._object, {"method": LISTEN})

    async def call(self, channel: Way, path: str, input: dict[str, Any]) -> dict[str, Any]:
        heard = _Heard()

        async def hear(frame: AnyFrame) -> None:
            if (message := heard.add(frame)) is None:
                return
            if message.id:
                answer = await channel.question(message)
                params = {"id": message.id} | msgspec.to_builtins(answer)
                await run(
                    self._object,
                    msgspec.json.encode({"method": ANSWER, "params": params}),
                    _nothing,
                    self._variables,
                )
            else:
                await channel.tell(message)

        await run(path, msgspec.json.encode(input), hear, self._variables)
        return heard.whole()


async def _nothing(_: AnyFrame) -> None:
    """Drop the frames of a run that delivers an answer."""


class _Heard:
    """The frames of a run so far."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._note = ""
        self._failed: Failed | None = None

    def add(self, frame: AnyFrame) -> ServerMessage | None:
        """Take a frame. Returns a message of the server's once it is complete."""
        if isinstance(frame, frames.Delta):
            self._size += len(frame.text)
            if self._size <= MAX_ANSWER:
                self._pieces.append(frame.text)
        elif isinstance(frame, frames.Observer) and frame.source == SOURCE:
            self._note += frame.content
            try:
                message = _messages.decode(self._note)
            except UNREADABLE:  # a long message comes in pieces
                return None
            self._note = ""
            return message
        else:
            self._failed = self._failed or failure(frame)
        return None

    def whole(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        if text:
            answer = _answers.decode(text)
            if answer.result is not None:
                return answer.result
            if answer.error is not None:
                raise MCPError(answer.error.code, answer.error.message, answer.error.data)
        raise self._failed or Failed("EPROTO", "the run ended without an answer", None)
