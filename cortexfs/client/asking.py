"""The common part of conversations and their streams, in both halves of the client.

This file must never know sockets, threads, Trio or time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from cortexfs.client.sorting import Inbox, new_id
from cortexfs.core.talk.requests import AnyRequest, Input, Resume, Scope, Send

S = TypeVar("S")


class Heard:
    """The facts that a stream of either half tells of itself."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    @property
    def id(self) -> str | None:
        return self._inbox.id

    @property
    def run(self) -> str | None:
        return self._inbox.run

    @property
    def last(self) -> str | None:
        return self._inbox.last

    def close(self) -> None:
        """Forget what comes: the run itself goes on."""
        self._inbox.stop()


class Asking(ABC, Generic[S]):
    """The requests that are answered by a stream."""

    def send(
        self,
        input: Input,
        *,
        session: str = "default",
        scope: Scope = "private",
        cwd: str | None = None,
        id: str | None = None,
    ) -> S:
        """Say something; the frames of its run, up to done. Without an `id` it gets one of its own, so
        that saying it again after an accident (with `id=stream.id`) does not say it twice."""
        return self._ask(Send(input=input, session=session, scope=scope, cwd=cwd, id=id or new_id()))

    def resume(self, *, session: str = "default", scope: Scope = "private", after: str | None = None) -> S:
        """Every event of the session after the event `after`, then what happens, until you leave. What
        this connection was given already is not given again."""
        return self._ask(Resume(session=session, scope=scope, after=after, id=new_id()))

    @abstractmethod
    def _ask(self, request: AnyRequest) -> S:
        """Begin it; the frames that answer it."""
