"""Runs and sessions that outlast their connection: connect again, and go on after what was read.

Rules: a message is said under one id however often it is sent, so its run is the same one and is shown
again from its start; what was read of it is left out. Only a connection that once stood is made again: who
calls somebody who is not there learns it at once. A `temp` session ends with its connection, for good.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from cortexfs.client.blocking import Conversation, Stream
from cortexfs.client.results import Failed
from cortexfs.client.sorting import new_id
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk.requests import Input, Scope

# Seconds before each attempt to connect again, all of them anew after each frame: half a minute in all,
# several times what a daemon needs to stop and start.
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * 30)

# What may be mended by waiting; while the daemon is away, its mount may be away too.
LOST = frozenset({"EHOSTDOWN"})
AWAY = frozenset({"EHOSTDOWN", "ENOENT", "EACCES", "EAGAIN"})


class Patience:
    """The frames that were read, and how long to wait for more."""

    def __init__(self, pauses: Sequence[float], after: str | None = None) -> None:
        self.after = after
        self._pauses = pauses
        self._left: Iterator[float] | None = None
        self._is_connected = False

    def connected(self) -> None:
        self._is_connected = True
        self._left = self._left or iter(self._pauses)

    def is_new(self, frame: AnyFrame) -> bool:
        """Returns True if this frame was not read before; it counts as read now."""
        if frame.id is None or self.after is None or int(frame.id) > int(self.after):
            self.after = frame.id or self.after
            self._left = iter(self._pauses)
            return True
        return False

    def pause(self, failed: Failed) -> float:
        """How long to wait before connecting again; raises what has failed where that is of no use."""
        mendable = LOST if self._is_connected else AWAY
        self._is_connected = False
        pause = next(self._left, None) if self._left and failed.code in mendable else None
        if pause is None:
            raise failed
        return pause


def send(
    path: str | os.PathLike[str],
    input: Input,
    *,
    session: str = "default",
    scope: Scope = "private",
    cwd: str | None = None,
    id: str | None = None,
    pauses: Sequence[float] = PAUSES,
) -> Iterator[AnyFrame]:
    """Say something on a connection of its own; the frames of its run, up to done, each once, also when the
    daemon is started again meanwhile."""
    id = id or new_id()

    def ask(conversation: Conversation, after: str | None) -> Stream:
        return conversation.send(input, session=session, scope=scope, cwd=cwd, id=id)

    return _lasting(path, ask, Patience(() if scope == "temp" else pauses))


def resume(
    path: str | os.PathLike[str],
    *,
    session: str = "default",
    scope: Scope = "private",
    after: str | None = None,
    pauses: Sequence[float] = PAUSES,
) -> Iterator[AnyFrame]:
    """Every event of a session after the event `after`, then what happens, each once, until you stop."""

    def ask(conversation: Conversation, after: str | None) -> Stream:
        return conversation.resume(session=session, scope=scope, after=after)

    return _lasting(path, ask, Patience(() if scope == "temp" else pauses, after))


def _lasting(
    path: str | os.PathLike[str], ask: Callable[[Conversation, str | None], Stream], patience: Patience
) -> Iterator[AnyFrame]:
    while True:
        try:
            with Conversation(path) as conversation:
                patience.connected()
                for frame in ask(conversation, patience.after):
                    if patience.is_new(frame):
                        yield frame
                return
        except Failed as failed:
            pause = patience.pause(failed)
        time.sleep(pause)
