"""The steps that an agent's run keeps: as many as its window has room for, and the last step whole."""

from __future__ import annotations

from collections.abc import Sequence

from cortexfs.agents.window import wording
from cortexfs.agents.window.context import SHORT, WindowParts, plan
from cortexfs.models.ask.question import PastCall, PromptMessage, PromptText

NOW = PromptMessage("user", (PromptText("go on"),))
LIMIT, RESERVE = 32_768, 4096  # tokens of three bytes each
LARGE = 128 << 10


def step(number: int, size: int) -> list[PromptMessage]:
    """A huge answer of the model with a call, and its huge result."""
    output = wording.result("fs.read", f"c{number}", "o" * size)
    call = PastCall(f"c{number}", "fs.write", {"path": "f", "content": "i" * size})
    return [
        PromptMessage("assistant", (PromptText("a" * size),), (call,)),
        PromptMessage("tool", (PromptText(output),), (), f"c{number}"),
    ]


def taken(steps: Sequence[PromptMessage]) -> int:
    calls = sum(len(str(call.input)) for said in steps for call in said.calls)
    return calls + sum(len(said.text) for said in steps)


def test_fifty_huge_steps_are_held_as_far_as_the_window_goes() -> None:
    # issue 4: "50 steps"; docs/agents.md: "of a run's older steps the daemon itself keeps no more"
    parts = WindowParts("S", [NOW])
    most = 0
    for number in range(50):
        parts = parts._replace(steps=(*parts.steps, *step(number, LARGE)))
        parts = parts._replace(steps=plan(parts, LIMIT, RESERVE).steps)
        most = max(most, taken(parts.steps))
    assert len(parts.steps) == 100
    assert most <= 50 * 4 * SHORT + taken(tuple(step(0, LARGE)))  # of 12 MiB


def test_what_is_held_is_all_that_the_next_question_needs() -> None:
    # context.py: "a question begins like the one before it": what was cut stays as it was cut
    steps: tuple[PromptMessage, ...] = ()
    before: tuple[PromptMessage, ...] = ()
    for number in range(30):
        steps = (*steps, *step(number, 6000))
        pack = plan(WindowParts("S", [NOW], steps), LIMIT, RESERVE)
        assert plan(WindowParts("S", [NOW], pack.steps), LIMIT, RESERVE).messages == pack.messages
        cut = [said for said, now in zip(before, pack.steps, strict=False) if said != now]
        assert all(taken((said,)) > 4000 for said in cut)
        before = steps = pack.steps


def test_steps_that_fit_are_kept_as_they_are() -> None:
    steps = tuple(said for number in range(3) for said in step(number, 500))
    assert plan(WindowParts("S", [NOW], steps), LIMIT, RESERVE).steps == steps
