"""The words about a decision on a call, and how they are read again.

An `observer` frame from the source "approval" carries it, as JSON in its content: `call`, `name`, `decision`,
`reason`, and `input` where a person changed it. So the log has every decision beside its question, and who
shows the question elsewhere learns that it is answered.

Rules: an observer of that source which holds something else is no decision, and is passed over.
This file must never know who asks, or how.
"""

from __future__ import annotations

from typing import Any

import msgspec

from cortexfs.core.frames import Approval, Observer
from cortexfs.core.talk.requests import Decision, Verdict

SOURCE = "approval"
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


_decoder = msgspec.json.Decoder(ApprovalRecord)


def decided(approval: Approval, verdict: Verdict) -> Observer:
    """The frame that says what was decided about the call."""
    said = ApprovalRecord(approval.call, approval.name, verdict.decision, verdict.reason, verdict.input)
    return Observer(source=SOURCE, content=msgspec.json.encode(said).decode())


def by(uid: int, decision: Decision, input: dict[str, Any] | None) -> Verdict:
    """Returns the words for this user's decision."""
    changed = ", with another input" if input is not None else ""
    return Verdict(decision, input, REASONS[decision].format(uid=uid) + changed)


def read(frame: Observer) -> ApprovalRecord | None:
    """The decision that this frame says, if it says one."""
    if frame.source != SOURCE:
        return None
    try:
        return _decoder.decode(frame.content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
