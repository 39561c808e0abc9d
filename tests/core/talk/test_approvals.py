"""The record of a decision, and how it is read again."""

from __future__ import annotations

import json
from typing import Any

from cortexfs.core.frames import Approval, Observer, Question
from cortexfs.core.talk.approvals import (
    AnswerRecord,
    ApprovalRecord,
    answer_by,
    answer_told,
    by,
    decided,
    read,
    read_answer,
)
from cortexfs.core.talk.requests import Decision, Verdict
from tests.tables import each_of

ASKED = Approval(call="c", name="fs.write", input={"path": "x"}, effects=[], reason="it writes")


@each_of(
    ("decision", "reason"),
    [
        ("allow_once", "uid 7 allowed it once"),
        ("allow_session", "uid 7 allowed it for this session"),
        ("deny", "uid 7 denied it"),
    ],
)
def test_a_decision_has_its_reason(decision: Decision, reason: str) -> None:
    # issue: "Every decision with its reason in events.jsonl"
    said = decided(ASKED, by(7, decision, None))
    assert said.source == "approval"
    assert json.loads(said.content) == {
        "call": "c",
        "name": "fs.write",
        "decision": decision,
        "reason": reason,
    }
    assert read(said) == ApprovalRecord("c", "fs.write", decision, reason)


def test_an_edited_input_is_part_of_the_decision() -> None:
    # issue: "[e]dit"
    verdict = by(7, "allow_once", {"path": "y"})
    assert verdict == Verdict("allow_once", {"path": "y"}, "uid 7 allowed it once, with another input")
    said = read(decided(ASKED, verdict))
    assert said
    assert said.input == {"path": "y"}


@each_of("content", ["", "plain words", "[]", '{"call":"c"}', '{"call":1}', "[" * 5000, "\x1b"])
def test_other_notes_are_no_decisions(content: str) -> None:
    # the module: "an observer of these sources with any other content is no record, and is ignored"
    assert read(Observer(source="approval", content=content)) is None
    assert read(Observer(source="tool", content=decided(ASKED, by(7, "deny", None)).content)) is None


@each_of(
    ("content", "said"),
    [
        ({"name": "x"}, AnswerRecord("q", "ask", True, "uid 7 answered")),
        ({}, AnswerRecord("q", "ask", True, "uid 7 answered")),
        (None, AnswerRecord("q", "ask", False, "uid 7 declined")),
    ],
)
def test_of_an_answer_is_told_whether_there_is_one_and_not_what_it_is(
    content: dict[str, Any] | None, said: AnswerRecord
) -> None:
    # the module: "but without its content"
    verdict = answer_by(7, content)
    assert verdict.input == content
    told = answer_told(Question(call="c", question="q", name="ask", message="x", schema={}), verdict)
    assert read_answer(told) == said
    assert json.loads(told.content).keys() == {"question", "name", "answered", "reason"}
