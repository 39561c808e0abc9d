"""The limits of one run of an agent: each ends the run with an error of its own."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.agents.budget import BudgetLimits, RunBudget
from cortexfs.core.errors import Fault, is_code
from cortexfs.core.frames import Usage
from tests.tables import each_of

# Issue 4: "limits on steps, tokens, time and repeated identical calls, each with its own clear end".

READ = ("fs.read", {"path": "a", "limit": 3})


def ended(fault: Fault, code: str, *words: str) -> None:
    assert fault.code == code
    assert is_code(fault.code)
    for word in words:
        assert word in fault.message, fault.message


def test_so_many_steps_and_no_more() -> None:
    budget = RunBudget(BudgetLimits(steps=3))
    for _ in range(3):
        budget.step()
    with pytest.raises(Fault) as raised:
        budget.step()
    ended(raised.value, "E2BIG", "used 3 steps", "limit is 3", "[agent] steps", "CTX_AGENT_STEPS")


def test_the_default_is_the_one_of_the_original() -> None:
    assert BudgetLimits() == (64, 1_000_000, 3600.0, 3, 16)


def test_an_answer_that_goes_over_the_tokens_is_the_last() -> None:
    budget = RunBudget(BudgetLimits(tokens=1000))
    budget.step()
    budget.use(Usage(input_tokens=900, output_tokens=99))
    budget.step()
    budget.use(Usage(input_tokens=200, output_tokens=34))  # no error yet: the answer was made, and is kept
    with pytest.raises(Fault) as raised:
        budget.step()
    ended(raised.value, "EDQUOT", "used 1,233 tokens", "limit is 1,000", "[agent] tokens")


def test_what_was_used_is_the_sum_of_what_was_told() -> None:
    budget = RunBudget(BudgetLimits())
    assert budget.usage is None
    budget.use(Usage(input_tokens=1, output_tokens=2))
    budget.use(Usage(input_tokens=10, output_tokens=20))
    assert budget.usage == Usage(input_tokens=11, output_tokens=22)


def test_the_time_is_up() -> None:
    budget = RunBudget(BudgetLimits(secs=60))
    budget.step()
    ended(budget.late(), "ETIMEDOUT", "60 s and 1 steps", "[agent] secs")


def test_the_same_call_in_a_row_ends_the_run() -> None:
    budget = RunBudget(BudgetLimits(repeats=3))
    for _ in range(3):
        budget.calls([READ])
    with pytest.raises(Fault) as raised:
        budget.calls([("fs.read", {"limit": 3, "path": "a"})])  # the same JSON in another order
    ended(raised.value, "ELOOP", "fs.read 4 times in a row", "limit is 3", "[agent] repeats")


@each_of(
    "steps",
    [
        [[READ, READ, READ, READ]],
        [[READ, READ], [READ, READ]],
        [[READ, ("b", 1)]] * 4,  # the same two calls in each round
    ],
)
def test_calls_side_by_side_count_too(steps: list[list[tuple[str, Any]]]) -> None:
    budget = RunBudget(BudgetLimits())
    for calls in steps[:-1]:
        budget.calls(calls)
    with pytest.raises(Fault, match="ELOOP"):
        budget.calls(steps[-1])


@each_of("other", [("fs.read", {"path": "b"}), ("fs.stat", READ[1]), ("fs.read", "path=a")])
def test_another_call_in_between_begins_anew(other: tuple[str, Any]) -> None:
    budget = RunBudget(BudgetLimits())
    for _ in range(10):
        budget.calls([READ])
        budget.calls([READ])
        budget.calls([other])


def test_so_many_calls_at_once_and_no_more() -> None:
    budget = RunBudget(BudgetLimits())
    budget.calls([("t", number) for number in range(16)])
    with pytest.raises(Fault) as raised:
        budget.calls([("t", number) for number in range(17)])
    ended(raised.value, "EMFILE", "17 calls at once", "16")


def test_a_model_that_does_not_keep_to_the_form_comes_to_an_end() -> None:
    # issue 4: "a model that never stops"
    budget = RunBudget(BudgetLimits())
    for _ in range(3):
        budget.malformed()
    budget.calls([READ])  # an answer in the right form resets the count
    for _ in range(3):
        budget.malformed()
    with pytest.raises(Fault) as raised:
        budget.malformed()
    ended(raised.value, "EBADMSG", "4 answers", "limit is 3", "tools = true in its provider's file")


def test_an_input_that_no_tool_takes_is_counted_all_the_same() -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    budget = RunBudget(BudgetLimits())
    for _ in range(3):
        budget.calls([("t", deep)])
    with pytest.raises(Fault, match="ELOOP"):
        budget.calls([("t", deep)])
    while deep:  # removed level by level, as freeing it at once would recurse as deep
        deep = deep.pop()
