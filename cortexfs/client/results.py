"""The answer of a run for somebody who wants nothing else: a text, or a reason why there is none.

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
    """Read a run to its end: its answer, or Failed when it fails, is cancelled or is refused. The answer is
    its deltas, or its messages where it sent none."""
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
    """Raise Failed if this frame says that its run failed."""
    if failed := failure(frame):
        raise failed


def failure(frame: AnyFrame) -> Failed | None:
    """Returns the failure that this frame tells, if it tells one."""
    if isinstance(frame, frames.Error):
        return Failed(frame.code, frame.message, frame.run)
    if isinstance(frame, frames.Done) and frame.status != "ok":
        cancelled = frame.status == "cancelled"
        code = frame.code or ("ECANCELED" if cancelled else "EIO")
        return Failed(code, "the run was cancelled" if cancelled else "the run failed", frame.run)
    return None
