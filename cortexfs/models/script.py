"""The scripts of debug/script: a list of steps, one JSON object each, checked before the first is played.

Rules: the keys of STEPS are the steps, and docs/ctx.md has the same table. What is wrong is said with
the number of its step, from 1 on. A script is small, and says how much it will make of that: bursts are
bounded over the whole script.
This file must never know who plays a script.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault, is_code

MAX_SCRIPT = 1 << 20  # characters: as much as a line of a socket can hold
MAX_STEPS = 10_000
MAX_SLEEP = 3600.0  # seconds of one step; for ever is a step of its own
MAX_BURST = 1_000_000  # deltas of all bursts of a script: a session keeps what it is told
MAX_BURST_BYTES = 256 << 20
EXAMPLE = '[{"delta":"Hello"},{"sleep":0.5},{"delta":" again"}]'

Size = Annotated[int, msgspec.Meta(ge=1, le=64 << 10)]


class ScriptStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step; its first field is the key that names it."""


class DeltaStep(ScriptStep, frozen=True):
    delta: str


class Sleep(ScriptStep, frozen=True):
    sleep: Annotated[float, msgspec.Meta(ge=0, le=MAX_SLEEP)]


class ScriptCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    input: Any = {}
    call: str | None = None


class CallStep(ScriptStep, frozen=True):
    tool_call: ScriptCall


class ScriptResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    call: str
    output: str = ""
    is_error: bool = False


class ResultStep(ScriptStep, frozen=True):
    tool_result: ScriptResult


class ScriptFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    code: str
    message: str


class Fail(ScriptStep, frozen=True):
    error: ScriptFailure


class Hang(ScriptStep, frozen=True):
    hang: bool


class Burst(ScriptStep, frozen=True):
    burst: Annotated[int, msgspec.Meta(ge=1, le=MAX_BURST)]
    size: Size = 32


class Conclude(ScriptStep, frozen=True):
    message: str


class ScriptApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    input: Any = {}
    effects: list[str] = []
    reason: str = ""
    call: str | None = None


class Ask(ScriptStep, frozen=True):
    approval: ScriptApproval


class ScriptUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input_tokens: Annotated[int, msgspec.Meta(ge=0)]
    output_tokens: Annotated[int, msgspec.Meta(ge=0)]


class Count(ScriptStep, frozen=True):
    usage: ScriptUsage


class Tell(ScriptStep, frozen=True):
    progress: str


class Rest(ScriptStep, frozen=True):
    turn: bool


AnyStep: TypeAlias = (
    DeltaStep | Sleep | CallStep | ResultStep | Fail | Hang | Burst | Conclude | Ask | Count | Tell | Rest
)

STEPS: dict[str, type[AnyStep]] = {
    each.__struct_fields__[0]: each
    for each in (DeltaStep, Sleep, CallStep, ResultStep, Fail, Hang, Burst, Conclude, Ask, Count, Tell, Rest)
}


def parse(text: str) -> list[AnyStep]:
    """The steps of a script, or a Fault that says which step is wrong and why."""
    if len(text) > MAX_SCRIPT:
        raise Fault(
            "EMSGSIZE", f"the script is over {MAX_SCRIPT >> 20} MiB; a burst is a long answer in short"
        )
    value = _list(text)
    if len(value) > MAX_STEPS:
        raise Fault("EINVAL", f"the script has {len(value)} steps, over the limit of {MAX_STEPS}")
    steps = [_step(given, f"step {number}") for number, given in enumerate(value, 1)]
    bursts = [step for step in steps if isinstance(step, Burst)]
    if sum(step.burst for step in bursts) > MAX_BURST:
        raise Fault("EINVAL", f"the bursts are over {MAX_BURST} deltas together")
    if sum(step.burst * step.size for step in bursts) > MAX_BURST_BYTES:
        raise Fault("EINVAL", f"the bursts are over {MAX_BURST_BYTES >> 20} MiB together")
    return steps


def part(steps: list[AnyStep], number: int) -> list[tuple[int, AnyStep]]:
    """The steps, with their numbers, of one part of a script: parts end with a turn."""
    ends = [at for at, step in enumerate(steps) if isinstance(step, Rest)] + [len(steps)]
    if number >= len(ends):
        return []
    first = ends[number - 1] + 1 if number else 0
    return [(at + 1, steps[at]) for at in range(first, ends[number])]


def _list(text: str) -> list[Any]:
    try:
        value = jsontext.decode(text, "the script")
    except Fault as fault:
        raise Fault(fault.code, f"{fault.message}; a script is a list of steps such as {EXAMPLE}") from None
    if not isinstance(value, list):
        found = jsontext.type_name(value)
        raise Fault("EINVAL", f"the script: expected a list of steps such as {EXAMPLE}, got {found}")
    return value


def _step(given: Any, where: str) -> AnyStep:
    if not isinstance(given, dict):
        raise Fault("EINVAL", f"{where}: expected an object, got {jsontext.type_name(given)}")
    kinds = [key for key in given if key in STEPS]
    if len(kinds) != 1:
        raise Fault(
            "EINVAL", f"{where}: expected one of {', '.join(STEPS)}; got {jsontext.shown(list(given))}"
        )
    try:
        step: AnyStep = jsontext.converted(given, STEPS[kinds[0]])
    except Fault as fault:
        raise Fault("EINVAL", jsontext.clipped(f"{where}: {fault.message}")) from None
    _check(step, where)
    return step


def _check(step: AnyStep, where: str) -> None:
    """Raises the fault that no type can tell."""
    if isinstance(step, Rest) and not step.turn:
        raise Fault("EINVAL", f"{where}: turn: expected true")
    if isinstance(step, Hang) and not step.hang:
        raise Fault("EINVAL", f"{where}: hang: expected true")
    if isinstance(step, Fail) and (not is_code(step.error.code) or step.error.code == "ECANCELED"):
        code = jsontext.shown(step.error.code)
        raise Fault("EINVAL", f"{where}: error.code: expected an errno name such as EIO, got {code}")
