"""The limits of one run of an agent, and the Fault that ends a run which goes over one of them.

    budget = RunBudget(limits)
    budget.step()               before each question to the model; raises the Fault that ends the run
    budget.use(usage)           the tokens of an answer
    budget.calls(calls)         the calls of a step, before any of them runs
    budget.malformed()          an answer that was neither a call nor an answer

Rules: every end has an error code of its own and a sentence with the limit, the use, and what to change. An
answer that goes over the limit of tokens still counts; the next question is not asked. If a step has too many
calls, none of them runs.
This file must never know a clock: its user asks for the end of a run that is late.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from cortexfs.agents.setup import Setup
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Usage

REPEATS = 3  # times of the same call in a run, whatever came between
LARGER = "; or use a larger model"
# The usual reason: the model is asked for calls in a text form that it does not know.
IN_TEXT = (
    "; its model was asked for calls in text, as the model's .d/cap lacks tool_call_syntax: if it can "
    "call tools, set tools = true in its provider's file, else use a larger model"
)
STEPS_VARIABLE = "CTX_AGENT_STEPS"  # a line of an agent's .d/env, which counts more than the configuration


class BudgetLimits(NamedTuple):
    """The limits of [agent] in the configuration, with the agent's own number of steps."""

    steps: int = 64
    tokens: int = 1_000_000  # in and out, together
    secs: float = 3600.0
    repeats: int = 3  # times that the same call, step or mistake may come in a row
    at_once: int = 16  # calls of one step, each of which may be a process


def limited(limits: BudgetLimits, setup: Setup) -> BudgetLimits:
    """Returns the limits with the agent's own number of steps, which a user's own agent may only lower."""
    word = setup.env.get(STEPS_VARIABLE, "")
    own = int(word) if word.isdecimal() and len(word) < 10 and int(word) else limits.steps
    steps = own if setup.home is None else min(own, limits.steps)
    return limits._replace(steps=steps)


class RunBudget:
    """The use of one run, and the checks against its limits."""

    def __init__(self, limits: BudgetLimits) -> None:
        self._limits = limits
        self._steps = 0
        self.usage: Usage | None = None  # tokens of its answers; None while no provider has reported any
        self._calls = _Row()
        self._rounds = _Row()
        self._malformed = 0
        self._times: Counter[int] = Counter()  # by the hash of a call, as an input may be large
        self._again = 0

    @property
    def _tokens(self) -> int:
        return self.usage.input_tokens + self.usage.output_tokens if self.usage else 0

    def step(self) -> None:
        """Count a question to the model. Raises the Fault that ends the run if a limit is reached."""
        limits = self._limits
        if self._steps >= limits.steps:
            alternative = f", or {STEPS_VARIABLE} in its .d/env"
            raise _over("E2BIG", f"{self._steps} steps", f"{limits.steps}", "steps", alternative)
        if self._tokens >= limits.tokens:
            raise _over("EDQUOT", f"{self._tokens:,} tokens", f"{limits.tokens:,}", "tokens")
        self._steps += 1

    def late(self) -> Fault:
        """Returns the Fault that ends a run which takes too long."""
        secs = f"{self._limits.secs:g}"
        return _over("ETIMEDOUT", f"{secs} s and {self._steps} steps", f"{secs} s", "secs")

    def use(self, usage: Usage) -> None:
        before = self.usage or Usage(input_tokens=0, output_tokens=0)
        self.usage = Usage(
            input_tokens=before.input_tokens + usage.input_tokens,
            output_tokens=before.output_tokens + usage.output_tokens,
            model=usage.model or before.model,
        )

    def calls(self, calls: Sequence[tuple[str, Any]]) -> None:
        """Count the calls of a step, names and inputs in their order. Raises EMFILE or ELOOP over a limit."""
        if len(calls) > self._limits.at_once:
            most = self._limits.at_once
            raise Fault("EMFILE", f"the agent's model made {len(calls)} calls at once; the limit is {most}")
        self._malformed = 0
        keys = [_key(call) for call in calls]
        row = max((self._calls.count(key) for key in keys), default=0)
        self._times.update(map(hash, keys))
        self._again = max((self._times[hash(key)] for key in keys), default=0)
        row = max(row, self._rounds.count("\n".join(keys)))
        if row > self._limits.repeats:
            names = ", ".join(dict.fromkeys(name for name, _ in calls))
            why = f"it made the same call of {names} {row} times in a row"
            raise _over("ELOOP", "", f"{self._limits.repeats}", "repeats", LARGER, why)

    @property
    def repeated(self) -> bool:
        """Returns True if the last step repeats the step before, or a call of it came REPEATS times."""
        return self._rounds.row > 1 or self._again >= REPEATS

    def malformed(self) -> None:
        """Count an answer that was neither a call nor an answer. Raises EBADMSG after too many in a row."""
        self._malformed += 1
        if self._malformed > self._limits.repeats:
            why = f"{self._malformed} answers of its model in a row were neither a call nor an answer"
            raise _over("EBADMSG", "", f"{self._limits.repeats}", "repeats", IN_TEXT, why)


def _key(call: tuple[str, Any]) -> str:
    try:
        return json.dumps(call, sort_keys=True)
    except RecursionError:  # an input so deep that no tool takes it
        return call[0]


class _Row:
    """The number of times that the last key came in a row."""

    def __init__(self) -> None:
        self._last: str | None = None
        self.row = 0

    def count(self, key: str) -> int:
        self.row = self.row + 1 if key == self._last else 1
        self._last = key
        return self.row


def _over(code: str, amount: str, limit: str, key: str, alternative: str = "", why: str = "") -> Fault:
    cause = why or f"it used {amount}"
    mend = f"to allow more, raise [agent] {key} in config.toml{alternative}"
    return Fault(code, f"the agent's run was ended: {cause}, and the limit is {limit}; {mend}")
