"""The questions and events that plugins with hooks receive, and their limits."""

from __future__ import annotations

from typing import Any

import msgspec

from cortexfs.core import hooks
from cortexfs.core.hooks import STAGES, Abort, HookedResult
from tests.tables import each_of

FIRST = next(iter(STAGES))


@each_of(
    ("capabilities", "expected"),
    [
        ([], ()),
        ([FIRST], (FIRST,)),
        (["events:listener"], ("turn:start",)),
        ([*STAGES, "events:listener", "tools"], (*STAGES, "turn:start")),
    ],
)
def test_hooks_are_those_that_a_plugin_may_have(capabilities: list[str], expected: tuple[str, ...]) -> None:
    assert hooks.hooks(capabilities, ["turn:start"]) == expected


def test_an_event_has_the_beginning_of_a_long_output() -> None:
    result = HookedResult("t", True, "x" * hooks.MAX_HEARD, 5)
    assert hooks.heard(result) is result
    cut = hooks.heard(HookedResult("t", True, "x" * (hooks.MAX_HEARD + 1), 5))
    assert (len(cut.output), cut.truncated, cut.output_length) == (hooks.MAX_HEARD, True, hooks.MAX_HEARD + 1)
    part = hooks.heard(result, hooks.MAX_HEARD + 7)
    assert (part.truncated, part.output_length) == (True, hooks.MAX_HEARD + 7)


def test_an_event_has_a_whole_input_or_none() -> None:
    room = hooks.MAX_ARGS - len(msgspec.json.encode({"a": ""}))
    whole: dict[str, Any] = {"a": "x" * room}
    assert hooks.heard_args(whole) == whole
    assert hooks.heard_args({"a": "x" * (room + 1)}) == {}


@each_of(
    ("abort", "why"),
    [
        (Abort(), "it gives no reason"),
        (Abort(reason="a rule"), "a rule"),
        (Abort(message="not today"), "not today"),
        (Abort("a rule", "not today"), "not today"),
    ],
)
def test_a_refusal_says_why(abort: Abort, why: str) -> None:
    assert hooks.refusal("guard", abort).message == f"the plugin guard does not allow it: {why}"


def test_a_note_has_what_was_changed_or_its_names() -> None:
    small = msgspec.json.decode(hooks.note("guard", "t", "", output="new").content)
    assert small == {"plugin": "guard", "tool": "t", "output": "new"}
    about = {"plugin": "guard", "tool": "t", "call": "c", "output": ""}
    room = hooks.MAX_NOTED - len(msgspec.json.encode(about))
    fits = hooks.note("guard", "t", "c", output="x" * room)
    assert len(fits.content) == hooks.MAX_NOTED
    large = msgspec.json.decode(hooks.note("guard", "t", "c", output="x" * (room + 1)).content)
    assert large == {"plugin": "guard", "tool": "t", "call": "c", "changed": ["output"]}
