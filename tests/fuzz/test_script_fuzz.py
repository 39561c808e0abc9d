"""Untrusted scripts: debug/script plays any prompt, or reports the fault in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core.errors import Fault
from cortexfs.models.debug import STEPS, parse, text_of
from tests.core.models.test_models_script import WHOLE

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*STEPS, "size"]), inner),
    max_leaves=8,
)
whole = st.sampled_from(list(WHOLE.values()))
mutated = st.builds(
    lambda step, key, value: {**step, key: value}, whole, st.sampled_from([*STEPS, "size"]), values
)


def outcome(read: Callable[[], Any]) -> tuple[Any, Fault | None]:
    try:
        return read(), None
    except Fault as fault:
        return None, fault


@given(st.lists(whole | mutated | values, max_size=4))
def test_steps_are_played_or_refused(steps: list[Any]) -> None:
    found, fault = outcome(lambda: parse(json.dumps(steps)))
    assert len(found) == len(steps) if fault is None else fault.code == "EINVAL"
    assert fault is None or (len(fault.message) < 1000 and any(step not in WHOLE.values() for step in steps))


@given(st.text() | st.builds(lambda text: f"[{text}]", st.text(alphabet='{}[]":,0123eE.delta ')))
def test_text_is_a_script_or_refused(text: str) -> None:
    found, fault = outcome(lambda: parse(text))
    assert isinstance(found, list) if fault is None else fault.code == "EINVAL"


@given(st.dictionaries(st.sampled_from(["messages", "content", "input", "task", "role"]), values))
def test_any_object_has_a_text_or_a_fault(value: dict[str, Any]) -> None:
    found, fault = outcome(lambda: text_of(value))
    assert isinstance(found, str) if fault is None else fault.code == "EINVAL"
