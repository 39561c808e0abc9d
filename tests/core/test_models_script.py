"""The scripts of debug/script: what is a step, and what is said of one that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.models import script
from cortexfs.models.script import EXAMPLE, STEPS, parse

WHOLE: dict[str, Any] = {
    "delta": {"delta": "a"},
    "sleep": {"sleep": 0.5},
    "tool_call": {"tool_call": {"name": "fs.read", "input": {"path": "a"}, "call": "c1"}},
    "error": {"error": {"code": "EIO", "message": "no"}},
    "hang": {"hang": True},
    "burst": {"burst": 3, "size": 8},
    "message": {"message": "m"},
    "approval": {"approval": {"name": "n", "input": 1, "effects": ["x"], "reason": "r", "call": "c"}},
    "usage": {"usage": {"input_tokens": 1, "output_tokens": 2}},
    "progress": {"progress": "half"},
}


def test_every_step_is_known() -> None:
    assert set(STEPS) == set(WHOLE)
    steps = parse(json.dumps(list(WHOLE.values())))
    assert [type(step) for step in steps] == [STEPS[name] for name in WHOLE]


def test_what_may_be_left_out() -> None:
    burst, call, asked = parse('[{"burst":1},{"tool_call":{"name":"t"}},{"approval":{"name":"t"}}]')
    assert isinstance(burst, script.Burst)
    assert burst.size == 32
    assert isinstance(call, script.Call)
    assert (call.tool_call.input, call.tool_call.call) == ({}, None)
    assert isinstance(asked, script.Ask)
    assert asked.approval.effects == []


def test_the_example_is_a_script() -> None:
    assert len(parse(EXAMPLE)) == 3
    assert parse("[]") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # what is no script says what one looks like
        ("hello", f"a script is a list of steps such as {EXAMPLE}"),
        ('{"delta":"a"}', f"the script: expected a list of steps such as {EXAMPLE}, got object"),
        # and a step that is wrong says which one it is
        ('[{"delta":"a"},5]', "step 2: expected an object, got number"),
        ("[{}]", "step 1: expected one of delta, sleep, "),
        ('[{"dleta":"a"}]', 'progress; got ["dleta"]'),
        ('[{"delta":"a","sleep":1}]', "step 1: expected one of"),
        ('[{"delta":5}]', "step 1: delta: expected string, got number"),
        ('[{"delta":"a","size":5}]', "step 1: "),
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
