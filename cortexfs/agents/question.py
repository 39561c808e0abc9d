"""One question to an agent's model: the turn for the model's driver, and the model's answer.

Rules: the model's text for its user is passed on as it comes. Its calls, its usage and its whole text are
kept for the run to act on, and an endless text ends the run. A model never runs a tool and asks no user.
This file must never know what becomes of an answer.
"""

from __future__ import annotations

from io import StringIO
from typing import Any, NamedTuple

import trio

from cortexfs.agents.budget import RunBudget
from cortexfs.agents.window.text_protocol import Spoken
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.models.ask.driver import Turn

MAX_ANSWER = 1 << 20  # characters of one answer: several times as many as models write at once


class ModelQuestion:
    """The turn for the model's driver. A quiet question passes on only the text that `reader` returns. A
    process that the model needs acts as `identity`, as confined as the agent's tools."""

    def __init__(
        self,
        turn: Turn,
        identity: Identity,
        request: dict[str, Any],
        budget: RunBudget,
        *,
        quiet: bool,
        reader: Spoken | None = None,
    ) -> None:
        self.input = request
        self.uid = turn.uid
        self.who = turn.who._replace(identity=identity)
        self.session_memory: dict[str, object] = {}
        self.calls: list[frames.ToolCall] = []
        self._turn = turn
        self._budget = budget
        self._quiet = quiet
        self._reader = reader
        self.sent_text = ""  # text that a quiet question has passed on
        self._deltas = StringIO()
        self._messages = StringIO()

    @property
    def text(self) -> str:
        return self._messages.getvalue() or self._deltas.getvalue()

    async def history(self, room: int) -> list[frames.Message]:
        return []

    async def say(self, *batch: frames.Frame) -> None:
        outgoing: list[frames.Frame] = []
        for frame in batch:
            match frame:
                case frames.ToolCall():
                    self.calls.append(frame)
                case frames.Usage():
                    self._budget.use(frame)
                case frames.Message():
                    _keep(self._messages, "".join(part.text for part in frame.content))
                case frames.Delta():
                    _keep(self._deltas, frame.text)
                    if not self._quiet:
                        outgoing.append(frame)
                    elif self._reader and (text := self._reader.feed(frame.text)):
                        self.sent_text += text
                        outgoing.append(frames.Delta(text=text))
                case frames.ReasoningDelta() | frames.Progress() | frames.Media():
                    outgoing.append(frame)
                case _:  # frames that only the run itself sends
                    pass
        if outgoing:
            await self._turn.say(*outgoing)
        else:
            await trio.lowlevel.checkpoint()

    async def settled(self) -> None:
        await self._turn.settled()

    async def ask(self, approval: frames.Approval) -> Any:
        raise Fault("EPROTO", "the model's driver asked for an approval; only agents may do that")

    async def question(self, question: frames.Question) -> Any:
        raise Fault("EPROTO", "the model's driver asked its user a question; only tools may do that")


class ModelReply(NamedTuple):
    """One answer of the model, parsed for the run."""

    text: str
    calls: tuple[frames.ToolCall, ...]
    malformed: str = ""


def _keep(buffer: StringIO, text: str) -> None:
    if buffer.tell() + len(text) > MAX_ANSWER:
        why = f"an answer of the agent's model has over {MAX_ANSWER >> 20} Mi characters"
        raise Fault("EFBIG", f"{why}, which is the limit; give it a smaller task, or another model")
    buffer.write(text)


def message(text: str) -> frames.Message:
    return frames.Message(role="assistant", content=[frames.Text(text)])
