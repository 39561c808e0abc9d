"""The result of a run, for callers that want nothing else: a text, or the reason why there is none.

This file must never know where frames come from.
"""

from __future__ import annotations

from collections.abc import Iterable

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame


class Failed(Fault):
    """A run that failed, a request that was refused, or a connection that is lost: `code` is a stable
    errno name, `message` a sentence for people, `run` the run's id where there is one."""

    def __init__(self, code: str, message: str, run: str | None = None) -> None:
        super().__init__(code, message)
        self.run = run


def text(run: Iterable[AnyFrame]) -> str:
    """Read a run to its end. Returns its answer: its deltas, or its messages where it sent no deltas. Raises
    Failed when the run fails, is cancelled or is refused."""
    deltas: list[str] = []
    messages: list[str] = []
    failed: Failed | None = None
    for frame in run:
        if isinstance(frame, frames.Delta):
            deltas.append(frame.text)
        elif isinstance(frame, frames.Message) and frame.role != "user":
            messages += [part.text for part in frame.content]
        else:
            failed = failed or failure(frame)
    if failed is not None:
        raise failed
    return "".join(deltas or messages)


def check(frame: AnyFrame) -> None:
    """Raises Failed if this frame reports that its run failed."""
    if failed := failure(frame):
        raise failed


def failure(frame: AnyFrame) -> Failed | None:
    """Returns the failure that this frame reports, or None."""
    if isinstance(frame, frames.Error):
        return Failed(frame.code, frame.message, frame.run)
    if isinstance(frame, frames.Done) and frame.status != "ok":
        cancelled = frame.status == "cancelled"
        code = frame.code or ("ECANCELED" if cancelled else "EIO")
        return Failed(code, "the run was cancelled" if cancelled else "the run failed", frame.run)
    return None
