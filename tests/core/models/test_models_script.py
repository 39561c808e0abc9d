"""The scripts of debug/script: the valid steps, and the errors for wrong ones."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec import UNSET

from cortexfs.core.arguments.parse import MAX_VALUES
from cortexfs.core.errors import Fault
from cortexfs.core.tree.controls import CONTROLS
from cortexfs.models import debug
from cortexfs.models.debug import EXAMPLE, STEPS, parse
from tests.places import PROJECT
from tests.tables import each_of

WHOLE: dict[str, Any] = {
    "delta": {"delta": "a"},
    "sleep": {"sleep": 0.5},
    "tool_call": {"tool_call": {"name": "fs.read", "input": {"path": "a"}, "call": "c1"}},
    "tool_result": {"tool_result": {"name": "n", "call": "c", "output": "o", "is_error": True}},
    "error": {"error": {"code": "EIO", "message": "no"}},
    "hang": {"hang": True},
    "burst": {"burst": 3, "size": 8},
    "message": {"message": "m"},
    "approval": {"approval": {"name": "n", "input": 1, "effects": ["x"], "reason": "r", "call": "c"}},
    "usage": {"usage": {"input_tokens": 1, "output_tokens": 2}},
    "progress": {"progress": "half"},
    "turn": {"turn": True},
}


def test_every_step_is_known() -> None:
    assert set(STEPS) == set(WHOLE)
    steps = parse(json.dumps(list(WHOLE.values())))
    given = [[name for name in STEPS if getattr(step, name) is not UNSET] for step in steps]
    assert given == [[name] for name in WHOLE]


def test_what_may_be_left_out() -> None:
    burst, call, asked = parse('[{"burst":1},{"tool_call":{"name":"t"}},{"approval":{"name":"t"}}]')
    assert burst.size == 32
    assert call.tool_call == debug.ScriptCall("t", {}, None)
    assert asked.approval == debug.ScriptApproval("t", effects=[])


def test_the_example_is_a_script() -> None:
    assert len(parse(EXAMPLE)) == 3
    assert parse("[]") == []


@each_of(
    ("text", "said"),
    [
        # text that is no script is answered with an example of a script
        ("hello", f"a script is a list of steps such as {EXAMPLE}"),
        ('{"delta":"a"}', f"the script: expected a list of steps such as {EXAMPLE}, got object"),
        # the error for a wrong step has the number of the step
        ('[{"delta":"a"},5]', "step 2: expected an object, got number"),
        ("[{}]", "step 1: expected one of delta, sleep, "),
        ('[{"dleta":"a"}]', 'turn; got ["dleta"]'),
        ('[{"delta":"a","sleep":1}]', "step 1: expected one of"),
        ('[{"delta":5}]', "step 1: delta: expected string, got number"),
        ('[{"delta":"a","size":5}]', "step 1: size: only a burst has one"),
        ('[{"delta":null}]', "step 1: delta: expected string, got null"),
        ('[{"burst":5,"size":0}]', "step 1: size: expected number >= 1"),
        ('[{"burst":0}]', "step 1: burst: expected number >= 1"),
        ('[{"burst":1.5}]', "step 1: burst: expected number, got number"),
        ('[{"sleep":-1}]', "step 1: sleep: expected number >= 0"),
        ('[{"sleep":1e9}]', "step 1: sleep: expected number <= 3600"),
        ('[{"hang":false}]', "step 1: hang: expected true"),
        ('[{"hang":1}]', "step 1: hang: expected boolean, got number"),
        ('[{"error":{"code":"EWRONG","message":""}}]', "step 1: error.code: expected an errno name"),
        ('[{"error":{"code":"ECANCELED","message":""}}]', "step 1: error.code"),  # only callers cancel
        ('[{"error":{"code":"EIO"}}]', "step 1: error: object missing required field message"),
        ('[{"usage":{"input_tokens":-1,"output_tokens":0}}]', "step 1: usage.input_tokens: expected"),
        ('[{"tool_call":{"input":{}}}]', "step 1: tool_call: object missing required field name"),
        # limits
        ("[" + '{"hang":true},' * 10_000 + '{"hang":true}]', "10001 steps, over the limit of 10000"),
        ('[{"burst":1000000},{"burst":1}]', "over 1000000 deltas together"),
        ('[{"burst":5000,"size":65536}]', "over 256 MiB together"),
        ("[" * 101 + "]" * 101, "nested in more than 100 levels"),
    ],
)
def test_what_is_no_script(text: str, said: str) -> None:
    with pytest.raises(Fault) as caught:
        parse(text)
    assert caught.value.code == "EINVAL"
    assert said in caught.value.message


def test_a_script_is_small() -> None:
    with pytest.raises(Fault, match="EMSGSIZE: the script is over 1 MiB"):
        parse(f'[{{"delta":"{"a" * (1 << 20)}"}}]')


PAGE = (PROJECT / "docs" / "ctx.md").read_text()


def test_the_page_has_the_table_of_steps_and_their_limits() -> None:
    # debug.py: "the keys of STEPS are the steps, and docs/ctx.md has the same table"
    rows = re.findall(r'^\| `\{"(\w+)": ', PAGE, re.MULTILINE)
    assert rows == list(STEPS)
    assert f"at most 1 MiB and {debug.MAX_STEPS:,} steps" in PAGE
    assert f"at most {debug.MAX_BURST:,} deltas and {debug.MAX_BURST_BYTES >> 20} MiB together" in PAGE
    assert f"for up to {debug.MAX_SLEEP:.0f} s" in PAGE
    assert f"at most {debug.MAX_KEPT >> 10} KiB in deltas" in PAGE
    assert f"It may hold {MAX_VALUES:,} values" in PAGE


@each_of("given", re.findall(r"debug/script '(.*)'$", PAGE, re.MULTILINE))
def test_the_scripts_of_the_page_are_scripts(given: str) -> None:
    assert parse(given)


def test_the_page_has_every_control_of_a_model() -> None:
    section = PAGE.partition("### Control files of a model")[2].partition("###")[0]
    named = [
        name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`(\w+)`", row)
    ]
    assert sorted(named) == sorted(control.name for control in CONTROLS["model"])
    for control in CONTROLS["model"]:
        if control.check and control.name != "policy":
            assert f"| `{control.name}` | **writable**" in section
