"""What comes of a run for somebody who only wants its answer: a text, or a reason why there is none.

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


class Text:
    """The answer of a run, gathered frame by frame: its deltas, or its messages where it sent none."""

    def __init__(self) -> None:
        self._deltas: list[str] = []
        self._messages: list[str] = []

    def add(self, frame: AnyFrame) -> None:
        """Take a frame in; raises Failed when it says that the run failed or was cancelled."""
        check(frame)
        if isinstance(frame, frames.Delta):
            self._deltas.append(frame.text)
        elif isinstance(frame, frames.Message) and frame.role != "user":
            self._messages += [part.text for part in frame.content]

    def __str__(self) -> str:
        return "".join(self._deltas or self._messages)


def text(run: Iterable[AnyFrame]) -> str:
    """The whole answer of a run; raises Failed when the run fails, is cancelled or is refused."""
    answer = Text()
    for frame in run:
        answer.add(frame)
    return str(answer)


def check(frame: AnyFrame) -> None:
    """Raise Failed if this frame says that its run failed."""
    if isinstance(frame, frames.Error):
        raise Failed(frame.code, frame.message, frame.run)
    if isinstance(frame, frames.Done) and frame.status != "ok":
        cancelled = frame.status == "cancelled"
        code = frame.code or ("ECANCELED" if cancelled else "EIO")
        raise Failed(code, "the run was cancelled" if cancelled else "the run failed", frame.run)
