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

# What may be mended by waiting, of a connection and of the attempt to make one: while the daemon is away, its
# mount may be away too.
LOST = frozenset({"EHOSTDOWN"})
AWAY = frozenset({"EHOSTDOWN", "ENOENT", "EACCES", "EAGAIN"})


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

    return _lasting(path, ask, () if scope == "temp" else pauses)


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

    return _lasting(path, ask, () if scope == "temp" else pauses, after)


def _lasting(
    path: str | os.PathLike[str],
    ask: Callable[[Conversation, str | None], Stream],
    pauses: Sequence[float],
    after: str | None = None,
) -> Iterator[AnyFrame]:
    left: Iterator[float] | None = None  # the pauses before we give up; None until a connection stood
    while True:
        mendable = AWAY
        try:
            with Conversation(path) as conversation:
                mendable, left = LOST, left or iter(pauses)
                for frame in ask(conversation, after):
                    if frame.id is None or after is None or int(frame.id) > int(after):
                        after, left = frame.id or after, iter(pauses)
                        yield frame
                return
        except Failed as failed:
            pause = next(left, None) if left and failed.code in mendable else None
            if pause is None:
                raise
        time.sleep(pause)
