"""The decision before a call: allow or refuse it, ask a person first, or require a dry run first.

Rules: a person confirms a tool by running it. A person is asked about an agent's call, unless the mode
approves its level. A blocked call of an agent is always refused, and so is a question that no person can
answer. Only tools that have opted in have dry runs. For a dry run of a trusted publisher's tool, effects that
dry runs show do not count, except blocked ones. All other dry runs are judged as the call itself. A required
dry run is required of every caller, as the tool's author knows why, and the caller does not. If a tool
requires a dry run and has none, a person is asked each time.
This file must never know how a person is asked, or which objects policy lines allow (policy/decision.py).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from cortexfs.core.arguments import dryrun
from cortexfs.core.hostcalls import Effect
from cortexfs.core.policy.risk import (
    BLOCK,
    CALM,
    DEFAULT,
    LEVELS,
    MODES,
    REQUIRE_CONFIRMATION,
    Circumstances,
    Level,
    RatedTool,
    RiskSettings,
    assess,
    causes,
    floor,
)

OFFERED, REQUIRED = "supported", "required_before_execute"

# The number of denials in a row that pauses the turn, and the number in a session that calls for a person.
PAUSE_AFTER = 3
ESCALATE_AFTER = 10
# A dry run counts for the one call that follows it with the same input.
DRY_RUN_SECONDS = 600.0
MAX_DRY_RUNS = 1000


class CallerKind(StrEnum):
    """The kind of caller: a person, at a terminal or by a program, or an agent, also through its tools."""

    PERSON = "person"
    AGENT = "agent"


class CallForm(NamedTuple):
    """The facts about how a call is made."""

    kind: CallerKind
    always_ask: bool = False  # the agent's `approval` is "ask"
    can_ask: bool = True  # a person who could answer is connected
    dry_run: bool = False  # the call is itself a dry run
    tried_dry: bool = False  # a dry run with the same input has ended


class ConfirmVerdict(NamedTuple):
    level: Level
    allowed: bool
    confirm: bool
    dry_run_first: bool
    why: str
    asked: str = ""  # the reason for asking a person, in words for that person


class ConfirmOutcome(NamedTuple):
    allowed: bool
    why: str  # a pattern with {level}, {source}, {limit}
    asked: str = ""  # a pattern with {does}; empty: no person is asked


# By kind of caller, and by how the level compares with the levels that are approved without asking.
OUTCOMES: dict[tuple[CallerKind, str], ConfirmOutcome] = {
    (CallerKind.PERSON, "within"): ConfirmOutcome(True, "a person confirms a tool by running it"),
    (CallerKind.PERSON, "above"): ConfirmOutcome(True, "a person confirms a tool by running it ({source})"),
    (CallerKind.PERSON, "blocked"): ConfirmOutcome(True, "a person may, an agent may not ({source})"),
    (CallerKind.AGENT, "within"): ConfirmOutcome(
        True, "calls up to {limit} need no approval, and this is {level} ({source})"
    ),
    (CallerKind.AGENT, "above"): ConfirmOutcome(
        True, "{source}, above {limit}, so you are asked", "this {does}, so you are asked"
    ),
    (CallerKind.AGENT, "always"): ConfirmOutcome(
        True,
        "its approval file says ask, so you are asked ({source})",
        "this {does}, and this agent asks about every call",
    ),
    (CallerKind.AGENT, "untried"): ConfirmOutcome(
        True,
        "it has required_before_execute but no dry run, so you are asked each time ({source})",
        "this {does}; its author requires a dry run, but it has none, so you are asked each time",
    ),
    (CallerKind.AGENT, "unheard"): ConfirmOutcome(
        False, "{level} must be confirmed, and no person can be asked ({source})"
    ),
    (CallerKind.AGENT, "blocked"): ConfirmOutcome(
        False, "it is blocked for agents, and no approval can allow it ({source})"
    ),
}


def verdict(
    tool: RatedTool, form: CallForm, settings: RiskSettings = DEFAULT, call: Circumstances = CALM
) -> ConfirmVerdict:
    if form.dry_run and not tool.dry_run_flag:
        level = assess(tool, settings, call).level
        return ConfirmVerdict(level, False, False, False, dryrun.lacking(tool.name))
    rated = tool._replace(effects=_hidden_effects(tool)) if form.dry_run and tool.trusted else tool
    level, source, _ = assess(rated, settings, call)
    limit = approved_up_to(settings)
    outcome = OUTCOMES[form.kind, _standing(level, limit, form, asks_each_time(tool))]
    why = outcome.why.format(level=level.word, source=source, limit=limit.word)
    first = outcome.allowed and not (form.dry_run or form.tried_dry) and needs_dry_run(tool)
    if first:
        why = f"{why}; it needs a dry run first, with the same input and --dry-run"
    reason = outcome.asked and outcome.asked.format(does=causes(rated, settings, call))
    return ConfirmVerdict(level, outcome.allowed, bool(reason), first, why, reason)


def approved_up_to(settings: RiskSettings) -> Level:
    """Returns the highest level that is approved without asking: never block, whatever policy.toml says."""
    word = settings.auto_approve_up_to
    return min(LEVELS[word], REQUIRE_CONFIRMATION) if word else MODES[settings.mode]


def needs_dry_run(tool: RatedTool) -> bool:
    return tool.dry_run_flag and _requires_dry_run(tool)


def asks_each_time(tool: RatedTool) -> bool:
    """Returns True if the tool's author requires a dry run before each call, but the tool has none."""
    return _requires_dry_run(tool) and not tool.dry_run_flag


def _requires_dry_run(tool: RatedTool) -> bool:
    return any(effect.dry_run == REQUIRED for effect in tool.effects)


def _standing(level: Level, limit: Level, form: CallForm, each_time: bool) -> str:
    if level is BLOCK:
        return "blocked"
    if form.kind is CallerKind.PERSON:
        return "within" if level <= limit else "above"
    if level <= limit and not form.always_ask and not each_time:
        return "within"
    if not form.can_ask:
        return "unheard"
    if each_time:
        return "untried"
    return "above" if level > limit else "always"


def _hidden_effects(tool: RatedTool) -> tuple[Effect, ...]:
    """Returns the effects that a dry run does not show, and those that are blocked in any case."""
    return tuple(
        effect
        for effect in tool.effects
        if effect.dry_run not in (OFFERED, REQUIRED) or floor(effect).level is BLOCK
    )


class Denials(NamedTuple):
    """The numbers of denied calls in a session."""

    in_a_row: int = 0
    ever: int = 0

    def after(self, denied: bool) -> Denials:
        return Denials(self.in_a_row + 1, self.ever + 1) if denied else Denials(0, self.ever)

    @property
    def pause(self) -> bool:
        """Returns True if the turn must stop and wait for its user."""
        return self.in_a_row >= PAUSE_AFTER

    @property
    def escalate(self) -> bool:
        """Returns True if the session must not go on without a person."""
        return self.ever >= ESCALATE_AFTER


class DryRuns:
    """The dry runs that have ended. Each is valid for one call with the same key, within DRY_RUN_SECONDS.

    A key names caller, tool, the tool's version and the input.
    """

    def __init__(self) -> None:
        self._ended: dict[bytes, float] = {}

    def add(self, key: bytes, now: float) -> None:
        self._ended.pop(key, None)  # so that it becomes the newest
        self._ended[key] = now
        if len(self._ended) > MAX_DRY_RUNS:
            del self._ended[next(iter(self._ended))]

    def use(self, key: bytes, now: float) -> bool:
        """Returns True if there was a valid dry run, which is used up."""
        ended = self._ended.pop(key, None)
        return ended is not None and now - ended <= DRY_RUN_SECONDS
