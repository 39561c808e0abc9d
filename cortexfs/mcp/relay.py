"""One MCP server of the mount for one client: what the client asks, and what the server asks back.

Main path: `call` runs a tool's object and `ask` the server's own, both in the session of this relay
(core/mcp_session.py), so each answer is the server's, as it is. A question of the server's comes as a note of
the run, goes to the client, and its answer is a run, too. `listen` has what is said between runs.

Rules: what a client cannot be asked is never asked. A run that fails by itself is the failure that it tells.
This file must never know transports, nor which tools there are.
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
MAX_ANSWER = 48 << 20  # characters: a host takes answers of 32 MiB

_answers = msgspec.json.Decoder(ServerAnswer)
_messages = msgspec.json.Decoder(ServerMessage)


def connection(context: ServerRequestContext[Any, Any]) -> Connection:
    """Whatever belongs to a client and ends with it is kept there; the context has no public way to it."""
    return context.session._connection


class _AnyResult(Result):
    model_config = ConfigDict(extra="allow")


class Way(Protocol):
    """The way to a client."""

    async def tell(self, message: ServerMessage) -> None: ...
    async def question(self, message: ServerMessage) -> ServerAnswer: ...


class Channel(NamedTuple):
    """The way to a client: beside the request that it waits for, or on its own."""

    session: ServerSession
    request: RequestId | None

    async def tell(self, message: ServerMessage) -> None:
        if message.method == PROGRESS:
            said = message.params
            await self.session.report_progress(said["progress"], said.get("total"), said.get("message"))
            return
        version = self.session.protocol_version
        try:
            told = methods.parse_server_notification(message.method, version, message.params)
        except (KeyError, ValidationError):  # this client's version has no such thing
            return
        await self.session.send_notification(told, self.request)  # type: ignore[arg-type]

    async def question(self, message: ServerMessage) -> ServerAnswer:
        try:
            asked = methods.parse_server_request(
                message.method, self.session.protocol_version, message.params
            )
            about = ServerMessageMetadata(related_request_id=self.request)
            said = await self.session.send_request(asked, _AnyResult, metadata=about)  # type: ignore[arg-type]
        except MCPError as error:
            return ServerAnswer(error=ServerError(error.error.code, error.error.message, error.error.data))
        except (KeyError, ValidationError) as error:
            why = misfits(error.errors()) if isinstance(error, ValidationError) else message.method
            return ServerAnswer(error=ServerError(INTERNAL_ERROR, f"the client cannot be asked that: {why}"))
        return ServerAnswer(said.model_dump(by_alias=True, mode="json", exclude_unset=True))


class McpRelay:
    def __init__(self, object: str, can: Iterable[str] = ()) -> None:
        """`object` is the path of SERVER.mcp, `can` what its client can do (core/mcp_session.py)."""
        self._object = object
        self._variables = {VARIABLE: str(McpSession(secrets.token_hex(16), frozenset(can)))}

    async def ask(self, channel: Way, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The server's answer; MCPError where it is an error, Failed where there is none."""
        return await self._run(channel, self._object, {"method": method, "params": params})

    async def call(self, channel: Way, path: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return await self._run(channel, path, arguments)

    async def listen(self, channel: Way) -> None:
        """Until it is cancelled, or the server has gone."""
        await self._run(channel, self._object, {"method": LISTEN})

    async def _run(self, channel: Way, path: str, input: dict[str, Any]) -> dict[str, Any]:
        heard = _Heard()

        async def hear(frame: AnyFrame) -> None:
            if (message := heard.add(frame)) is None:
                return
            if message.id:
                answer = await channel.question(message)
                said = {"id": message.id} | msgspec.to_builtins(answer)
                await run(
                    self._object,
                    msgspec.json.encode({"method": ANSWER, "params": said}),
                    _nothing,
                    self._variables,
                )
            else:
                await channel.tell(message)

        await run(path, msgspec.json.encode(input), hear, self._variables)
        return heard.whole()


async def _nothing(_: AnyFrame) -> None:
    """Of an answer that is not taken any more nobody has to hear."""


class _Heard:
    """The words of a run so far."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._note = ""
        self._failed: Failed | None = None

    def add(self, frame: AnyFrame) -> ServerMessage | None:
        """A message of the server's, when it is whole."""
        if isinstance(frame, frames.Delta):
            self._size += len(frame.text)
            if self._size <= MAX_ANSWER:
                self._pieces.append(frame.text)
        elif isinstance(frame, frames.Observer) and frame.source == SOURCE:
            self._note += frame.content
            try:
                message = _messages.decode(self._note)
            except UNREADABLE:  # a long one comes in pieces
                return None
            self._note = ""
            return message
        else:
            self._failed = self._failed or failure(frame)
        return None

    def whole(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        if text:
            said = _answers.decode(text)
            if said.result is not None:
                return said.result
            if said.error is not None:
                raise MCPError(said.error.code, said.error.message, said.error.data)
        raise self._failed or Failed("EPROTO", "the run ended without an answer", None)
