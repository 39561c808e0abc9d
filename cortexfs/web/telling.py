"""Frames for the page: as they are, with additions that a page could not make by itself.

    event(frame, more)                 a server-sent event, whose id is the frame's
    await Telling(place, address).more(frame)    the nodes of a message, the diff of a change

Rules: a diff compares the file as the user sees it, and is made when the call is sent to the page, not later.
Slow work is done in a thread.
This file must never know which tab reads.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import msgspec
import trio

from cortexfs.chat import diffs, sessions
from cortexfs.chat.said import MESSAGES, window
from cortexfs.client import media
from cortexfs.core import forms, frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk import refusals
from cortexfs.core.talk.requests import Scope
from cortexfs.web import markdown
from cortexfs.web.children import WebPlace
from cortexfs.web.http import PageRequest

SLOW = 8 << 10  # characters; a longer message is parsed in a thread
DIFF_SECONDS = 5.0
MOUNT_SECONDS = 10.0
MOST_SESSIONS = 500  # the newest, in a list; lists.js has the same number
CHANGES = ("fs.write", "fs.replace")
SCOPES: dict[str, Scope] = {"private": "private", "shared": "shared"}
# Not shown of a run that is over: its messages hold the same text.
_PIECES = frames.Delta | frames.ReasoningDelta | frames.Progress


T = TypeVar("T")


class SessionAddress(NamedTuple):
    """The session of an object, from the fields of a request."""

    object: str
    scope: Scope
    session: str

    @classmethod
    def of(cls, request: PageRequest) -> SessionAddress:
        object_ = object_named(request)
        if (scope := SCOPES.get(request.text("scope", "private"))) is None:
            raise Fault("EINVAL", f"scope: expected {' or '.join(SCOPES)}")
        return cls(object_, scope, request.text("session", "default"))


def object_named(request: PageRequest) -> str:
    """Returns the path of an object below the root. Raises EINVAL if it could lead elsewhere."""
    found = request.text("object")
    if any(part in ("", ".", "..") for part in found.split("/")):
        raise Fault("EINVAL", "object: expected a path below the mount, such as agent/coder")
    return found


def event(frame: AnyFrame, more: dict[str, Any] | None = None) -> bytes:
    """Returns the event that a page reads. The fields of `more` are added to those of the frame."""
    data = msgspec.json.encode(msgspec.to_builtins(frame) | more if more else frame)
    return b"id: %s\ndata: %s\n\n" % ((frame.id or "").encode(), data)


async def nodes(text: str) -> list[markdown.Node]:
    if len(text) > SLOW:
        return await trio.to_thread.run_sync(markdown.tree, text)
    return markdown.tree(text)


class Telling:
    """The additions to the frames of one session."""

    def __init__(self, place: WebPlace, address: SessionAddress) -> None:
        self.folder = sessions.place(place.root, address.object, address.scope, address.session)
        self._cwd: str | None = None

    async def events(self, found: list[AnyFrame]) -> bytes:
        return b"".join([event(frame, await self.more(frame)) for frame in found])

    async def more(self, frame: AnyFrame, is_past: bool = False) -> dict[str, Any] | None:
        if isinstance(frame, frames.Message) and frame.role != "user":
            return {"nodes": await nodes("".join(part.text for part in frame.content))}
        if isinstance(frame, frames.Question):
            return None if is_past else _form(frame)
        if isinstance(frame, frames.ToolResult) and frame.is_error:
            return {"output": refusals.sentence(frame)}
        if isinstance(frame, frames.Progress):
            return {"early": True} if frame.message in refusals.EARLY else None
        if is_past or not isinstance(frame, frames.ToolCall | frames.Approval):
            return None
        is_change = frame.name in CHANGES and isinstance(frame.input, dict)
        return {"diff": await self._diff(frame.name, frame.input)} if is_change else None

    def works_in(self) -> str | None:
        """Returns the session's working directory, or None if it is unknown."""
        found = sessions.meta(self.folder).get("cwd")
        return found if isinstance(found, str) else None

    async def _diff(self, name: str, input_: dict[str, Any]) -> list[diffs.DiffLine] | None:
        with trio.move_on_after(DIFF_SECONDS):
            return await trio.to_thread.run_sync(self._compared, name, input_, abandon_on_cancel=True)
        return None

    def _compared(self, name: str, input_: dict[str, Any]) -> list[diffs.DiffLine] | None:
        self._cwd = self._cwd or self.works_in() or "/"
        return diffs.of(name, input_, self._read)

    def _read(self, path: str) -> bytes:
        """Returns the compared part of a file in the session's directory. Does not wait for a pipe."""
        return media.content(os.path.join(self._cwd or "/", path), diffs.MAX_FILE + 1)


def _form(question: frames.Question) -> dict[str, Any]:
    """Returns the fields of the answer to a question, or why it cannot be answered."""
    if question.url is not None:
        is_address = question.url.startswith(("https://", "http://"))
        return {} if is_address else {"fault": "it asks to open an address that is not http or https"}
    try:
        schema = question.schema if isinstance(question.schema, dict) else {}
        return {"fields": [field._asdict() for field in forms.fields(schema)]}
    except Fault as fault:
        return {"fault": fault.message}


async def past(telling: Telling, before: int | None) -> dict[str, Any]:
    """Returns the newest events of a session before a byte of its log, and the last one's id. `before` is the
    byte before which there are more, or None."""
    look = partial(window, telling.folder, before)
    found = await trio.to_thread.run_sync(look, abandon_on_cancel=True)
    first = _first([frame for _, frame in found])
    page = [frame for _, frame in found[first:]]
    over = {frame.run for frame in page if isinstance(frame, frames.Done)}
    rows = [frame for frame in page if frame.run not in over or not isinstance(frame, _PIECES)]
    events = [msgspec.to_builtins(frame) | (await telling.more(frame, True) or {}) for frame in rows]
    begins = found[first][0] if found else 0
    last = page[-1].id if page else None
    cwd = await trio.to_thread.run_sync(telling.works_in, abandon_on_cancel=True)
    return {"events": events, "last": last, "before": begins or None, "cwd": cwd}


def _first(found: list[AnyFrame]) -> int:
    """Returns the index of the first shown event: the start of a run, if that was found."""
    numbers = [number for number, frame in enumerate(found) if isinstance(frame, frames.Message)]
    if len(numbers) <= MESSAGES:
        starts = (number for number, frame in enumerate(found) if isinstance(frame, frames.Start))
        return next(starts, 0) if found and found[0].id != "1" else 0
    last = numbers[-MESSAGES]
    return next((n for n in range(last, 0, -1) if isinstance(found[n], frames.Start)), 0)


def stored(root: str) -> list[dict[str, Any]]:
    """Returns the newest sessions of all objects, private and shared."""
    if not os.path.exists(f"{root}/status"):
        raise Fault("EHOSTDOWN", f"no mount is at {root}; see: ctx status")
    every = [
        session
        for space in SCOPES
        for object_ in sessions.objects(root, space)
        for session in islice(sessions.each(root, object_, space), MOST_SESSIONS)
    ]
    newest = heapq.nlargest(MOST_SESSIONS, every, key=lambda session: session.updated)
    return [
        session._asdict() | {"path": str(session.path), "updated": session.updated * 1000}
        for session in newest
    ]


async def waited(
    look: Callable[[], T],
    late: str = "the mount does not answer; see: ctx status",
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """Returns the result of `look`, which reads the mount. Raises ETIMEDOUT after MOUNT_SECONDS. Looks that
    may never end have a limiter of their own, so that they take no threads of others."""
    with trio.move_on_after(MOUNT_SECONDS):
        return await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=limiter)
    raise Fault("ETIMEDOUT", late)
