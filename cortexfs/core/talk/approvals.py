"""The words about a decision on a call, or about an answer to a tool, and how they are read again.

An `observer` frame from the source "approval" carries it, as JSON in its content: `call`, `name`, `decision`,
`reason`, and `input` where a person changed it. So the log has every decision beside its question, and who
shows the question elsewhere learns that it is answered.

An answer to a tool's question is told likewise, from the source "question", without what was answered: that
is between the person and the tool's server.

Rules: an observer of that source which holds something else is no decision, and is passed over.
This file must never know who asks, or how.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from cortexfs.core.frames import Approval, Observer, Question
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.talk.requests import Decision, Verdict

SOURCE, ANSWERED = "approval", "question"
T = TypeVar("T")
REASONS: dict[Decision, str] = {
    "allow_once": "uid {uid} allowed it once",
    "allow_session": "uid {uid} allowed it for this session",
    "deny": "uid {uid} denied it",
}


class ApprovalRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    call: str
    name: str
    decision: Decision
    reason: str
    input: dict[str, Any] | None = None


class AnswerRecord(msgspec.Struct, frozen=True):
    question: str
    name: str
    answered: bool  # or declined
    reason: str


_decoder = msgspec.json.Decoder(ApprovalRecord)
_answers = msgspec.json.Decoder(AnswerRecord)


def decided(approval: Approval, verdict: Verdict) -> Observer:
    """The frame that says what was decided about the call."""
    said = ApprovalRecord(approval.call, approval.name, verdict.decision, verdict.reason, verdict.input)
    return Observer(source=SOURCE, content=msgspec.json.encode(said).decode())


def answer_told(question: Question, verdict: Verdict) -> Observer:
    said = AnswerRecord(question.question, question.name, verdict.input is not None, verdict.reason)
    return Observer(source=ANSWERED, content=msgspec.json.encode(said).decode())


def answer_by(uid: int, content: dict[str, Any] | None) -> Verdict:
    if content is None:
        return Verdict("deny", None, f"uid {uid} declined")
    return Verdict("allow_once", content, f"uid {uid} answered")


def by(uid: int, decision: Decision, input: dict[str, Any] | None) -> Verdict:
    """Returns the words for this user's decision."""
    changed = ", with another input" if input is not None else ""
    return Verdict(decision, input, REASONS[decision].format(uid=uid) + changed)


def read(frame: Observer) -> ApprovalRecord | None:
    """The decision that this frame says, if it says one."""
    return _read(frame, SOURCE, _decoder)


def read_answer(frame: Observer) -> AnswerRecord | None:
    return _read(frame, ANSWERED, _answers)


def _read(frame: Observer, source: str, decoder: msgspec.json.Decoder[T]) -> T | None:
    if frame.source != source:
        return None
    try:
        return decoder.decode(frame.content)
    except UNREADABLE:
        return None
