"""Runs and sessions that outlast their connection, for programs that run Trio (the rules are those of the
blocking half's reconnecting.py)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

import trio

from cortexfs.client.reconnecting import PAUSES, Patience
from cortexfs.client.results import Failed
from cortexfs.client.sorting import new_id
from cortexfs.client.trio.conversation import Conversation, Stream
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk.requests import Input, Scope


class Lasting(AsyncIterator[AnyFrame]):
    """The frames of a `send` or `resume` that connects again; use `async with` to leave it early."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        ask: Callable[[Conversation, str | None], Stream],
        patience: Patience,
    ) -> None:
        self._path = path
        self._ask = ask
        self._patience = patience
        self._conversation: Conversation | None = None
        self._stream: Stream | None = None

    async def __anext__(self) -> AnyFrame:
        while True:
            try:
                frame = await (self._stream or await self._connected()).__anext__()
            except StopAsyncIteration:
                self.close()
                raise
            except Failed as failed:
                self.close()
                await trio.sleep(self._patience.pause(failed))
                continue
            if self._patience.is_new(frame):
                return frame

    async def _connected(self) -> Stream:
        self._conversation = await Conversation(self._path).__aenter__()
        self._patience.connected()
        self._stream = self._ask(self._conversation, self._patience.after)
        return self._stream

    def close(self) -> None:
        if self._conversation is not None:
            self._conversation.close()
        self._conversation = self._stream = None

    async def __aenter__(self) -> Lasting:
        return self

    async def __aexit__(
        self, type_: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def send(
    path: str | os.PathLike[str],
    input: Input,
    *,
    session: str = "default",
    scope: Scope = "private",
    cwd: str | None = None,
    id: str | None = None,
    pauses: Sequence[float] = PAUSES,
) -> Lasting:
    """Say something on a connection of its own; the frames of its run, up to done, each once, also when the
    daemon is started again meanwhile."""
    id = id or new_id()

    def ask(conversation: Conversation, after: str | None) -> Stream:
        return conversation.send(input, session=session, scope=scope, cwd=cwd, id=id)

    return Lasting(path, ask, Patience(() if scope == "temp" else pauses))


def resume(
    path: str | os.PathLike[str],
    *,
    session: str = "default",
    scope: Scope = "private",
    after: str | None = None,
    pauses: Sequence[float] = PAUSES,
) -> Lasting:
    """Every event of a session after the event `after`, then what happens, each once, until you stop."""

    def ask(conversation: Conversation, after: str | None) -> Stream:
        return conversation.resume(session=session, scope=scope, after=after)

    return Lasting(path, ask, Patience(() if scope == "temp" else pauses, after))
