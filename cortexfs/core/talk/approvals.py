"""The records of a decision about a call, or of an answer to a tool: writing and reading.

An `observer` frame from the source "approval" carries a decision, as JSON in its content: `call`, `name`,
`decision`, `reason`, and `input` if a person changed it. So the log has every decision beside its question,
and other clients that show the question learn that it is answered.

A frame from the source "question" likewise reports an answer to a tool's question, but without its content.
That is between the person and the tool's server.

Rules: an observer of these sources with any other content is no record, and is ignored.
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
    answered: bool  # False: declined
    reason: str


_decoder = msgspec.json.Decoder(ApprovalRecord)
_answers = msgspec.json.Decoder(AnswerRecord)


def decided(approval: Approval, verdict: Verdict) -> Observer:
    """Returns the frame that records the decision about the call."""
    record = ApprovalRecord(approval.call, approval.name, verdict.decision, verdict.reason, verdict.input)
    return Observer(source=SOURCE, content=msgspec.json.encode(record).decode())


def answer_told(question: Question, verdict: Verdict) -> Observer:
    record = AnswerRecord(question.question, question.name, verdict.input is not None, verdict.reason)
    return Observer(source=ANSWERED, content=msgspec.json.encode(record).decode())


def answer_by(uid: int, content: dict[str, Any] | None) -> Verdict:
    if content is None:
        return Verdict("deny", None, f"uid {uid} declined")
    return Verdict("allow_once", content, f"uid {uid} answered")


def by(uid: int, decision: Decision, input: dict[str, Any] | None) -> Verdict:
    """Returns this user's decision, with its reason."""
    addition = ", with another input" if input is not None else ""
    return Verdict(decision, input, REASONS[decision].format(uid=uid) + addition)


def read(frame: Observer) -> ApprovalRecord | None:
    """Returns the decision in this frame, or None."""
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
