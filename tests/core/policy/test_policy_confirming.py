"""Calls that are confirmed first, calls that are refused, and the changes by a dry run."""

from __future__ import annotations

from itertools import product

from cortexfs.core.hostcalls import Effect
from cortexfs.core.policy.confirming import (
    DRY_RUN_SECONDS,
    ESCALATE_AFTER,
    MAX_DRY_RUNS,
    PAUSE_AFTER,
    CallerKind,
    CallForm,
    ConfirmVerdict,
    Denials,
    DryRuns,
    verdict,
)
from cortexfs.core.policy.risk import (
    ALLOW,
    BLOCK,
    REQUIRE_CONFIRMATION,
    REVIEW,
    Circumstances,
    Level,
    Mode,
    RatedTool,
    RiskSettings,
    decode,
)
from tests.tables import each_of

AGENT, PERSON = CallForm(CallerKind.AGENT), CallForm(CallerKind.PERSON)


def effect(
    kind: str, confirmation: str = "on_risk", dry_run: str = "not_supported", target: str = ""
) -> Effect:
    return Effect(kind, "reversible", confirmation, dry_run, target)


def builtin(*effects: Effect) -> RatedTool:
    return RatedTool("one", effects, builtin=True)


BY_LEVEL = {
    ALLOW: builtin(effect("read_file")),
    REVIEW: builtin(effect("network_request")),
    REQUIRE_CONFIRMATION: builtin(effect("write_file")),
    BLOCK: builtin(effect("delete_file")),
}
LIMITS: dict[Mode, Level] = {"strict": ALLOW, "balanced": REVIEW, "open": REQUIRE_CONFIRMATION}


EVERY: list[tuple[Mode, Level]] = list(product(LIMITS, Level))


@each_of(("mode", "level"), EVERY)
def test_an_agent_asks_above_what_the_mode_approves(mode: Mode, level: Level) -> None:
    # section 6: "Gate: Block denied; level <= auto_approve_up_to approved; else ask. strict=Allow,
    # balanced=Review (default), open=RequireConfirmation"
    said = verdict(BY_LEVEL[level], AGENT, RiskSettings(mode=mode))
    assert said.level is level
    assert said.allowed is (level is not BLOCK)
    assert said.confirm is (level is not BLOCK and level > LIMITS[mode])


@each_of(("mode", "level"), EVERY)
def test_nobody_there_to_ask_means_no(mode: Mode, level: Level) -> None:
    # section 6: "Non-interactive: deny"
    said = verdict(BY_LEVEL[level], CallForm(CallerKind.AGENT, can_ask=False), RiskSettings(mode=mode))
    assert said.allowed is (level <= LIMITS[mode])
    assert not said.confirm


@each_of(("mode", "level"), EVERY)
def test_a_person_has_confirmed_what_they_run(mode: Mode, level: Level) -> None:
    # issue 5: "a person at a terminal or running a tool directly has confirmed it; an agent asks"
    said = verdict(BY_LEVEL[level], PERSON, RiskSettings(mode=mode, deny=("*",)))
    assert (said.allowed, said.confirm, said.dry_run_first) == (True, False, False)


@each_of(("mode", "level"), EVERY)
def test_a_person_is_told_the_source_of_a_level_above_what_the_mode_approves(
    mode: Mode, level: Level
) -> None:
    why = verdict(BY_LEVEL[level], PERSON, RiskSettings(mode=mode)).why
    assert (why == "a person confirms a tool by running it") is (level <= LIMITS[mode])


@each_of(("mode", "level"), [pair for pair in EVERY if pair[1] is not BLOCK])
def test_who_is_asked_about_every_call_is_told_so_where_the_mode_would_approve(
    mode: Mode, level: Level
) -> None:
    said = verdict(BY_LEVEL[level], CallForm(CallerKind.AGENT, always_ask=True), RiskSettings(mode=mode))
    assert said.why.startswith("its approval file says ask") is (level <= LIMITS[mode])


def test_approval_ask_asks_about_everything() -> None:
    # Of the originals: "Approval `ask`: after all checks, before spawn"
    always = CallForm(CallerKind.AGENT, always_ask=True)
    for level, tool in BY_LEVEL.items():
        said = verdict(tool, always, RiskSettings(mode="open"))
        assert (said.allowed, said.confirm) == ((True, True) if level < BLOCK else (False, False))


def test_block_is_never_approved_by_itself() -> None:
    # lint: RISK_AUTO_APPROVES_BLOCK; the gate is closed whatever is written
    said = verdict(BY_LEVEL[BLOCK], AGENT, decode('auto_approve_up_to = "block"'))
    assert not said.allowed
    limit = decode('mode = "open"\nauto_approve_up_to = "allow"')
    assert verdict(BY_LEVEL[REVIEW], AGENT, limit).confirm


def test_process_tools_are_asked_about_in_balanced_mode() -> None:
    # section 6: "Consequence: every process tool needs confirmation in balanced mode"
    assert verdict(RatedTool("theirs", (effect("run_process", confirmation="always"),)), AGENT).confirm


def test_declaring_delete_file_blocks_agents_and_nobody_else() -> None:
    # section 6: "So declaring delete_file blocks the tool outright"; better: a person may run it
    tool = RatedTool("worktree_remove", (effect("delete_file"),))
    assert not verdict(tool, AGENT, RiskSettings(mode="open")).allowed
    assert verdict(tool, PERSON).allowed


def test_a_verdict_says_what_decided() -> None:
    tool = builtin(effect("write_file", target="/etc"))
    assert verdict(tool, AGENT).why == (
        "it changes files (write_file on /etc is require_confirmation), above review, so you are asked"
    )


PLUGINS = RatedTool("one")
ASKED = (
    (builtin(effect("write_file")), (), "this changes files, so you are asked"),
    (builtin(effect("write_file", target="*")), (), "this changes files, so you are asked"),
    (builtin(effect("write_file", target="/etc")), (), "this changes files (/etc), so you are asked"),
    (
        builtin(effect("run_process"), effect("read_file"), effect("write_file")),
        (),
        "this runs a program and changes files, so you are asked",
    ),
    (builtin(effect("fly")), (), "this has the unknown effect fly, so you are asked"),
    (
        builtin(Effect("read_file", "irreversible", "on_risk", "not_supported", "")),
        (),
        "this reads files, with reversibility irreversible, so you are asked",
    ),
    (PLUGINS, (), "this is a plugin's, so you are asked"),
    (PLUGINS, (".env",), "this names .env, which may be secret, so you are asked"),
)


@each_of(("tool", "words", "sentence"), ASKED)
def test_a_person_is_asked_in_words(tool: RatedTool, words: tuple[str, ...], sentence: str) -> None:
    # abi.md 7.6
    said = verdict(tool, AGENT, RiskSettings(mode="strict"), Circumstances(words))
    assert (said.confirm, said.asked) == (True, sentence)


def test_every_reason_to_ask_has_its_words() -> None:
    # abi.md 7.6
    always = CallForm(CallerKind.AGENT, always_ask=True)
    reading = builtin(effect("read_file"))
    assert verdict(reading, always).asked == "this reads files, and this agent asks about every call"
    untried = builtin(effect("write_file", dry_run="required_before_execute"))
    assert verdict(untried, AGENT).asked == (
        "this changes files; its author requires a dry run, but it has none, so you are asked each time"
    )
    listed = decode("[tools.one]\nrequire_confirmation = true")
    assert verdict(RatedTool("one", builtin=True), AGENT, listed).asked == (
        "this must be confirmed, as policy.toml requires, so you are asked"
    )
    assert not verdict(reading, AGENT).asked


# Dry runs.


def opted_in(*effects: Effect, trusted: bool = True) -> RatedTool:
    return RatedTool("one", effects, builtin=True, dry_run_flag=True, trusted=trusted)


def tried(
    tool: RatedTool, dry_run: bool = False, tried_dry: bool = False, kind: CallerKind = CallerKind.AGENT
) -> ConfirmVerdict:
    return verdict(tool, CallForm(kind, dry_run=dry_run, tried_dry=tried_dry))


@each_of("kind", list(CallerKind))
def test_a_required_dry_run_comes_first_for_everybody(kind: CallerKind) -> None:
    # issue 5: "`required_before_execute` is enforced"; section 6: "dry_run is recorded, nowhere enforced"
    tool = opted_in(effect("write_file", dry_run="required_before_execute"))
    assert tried(tool, kind=kind).dry_run_first
    assert "with the same input and --dry-run" in tried(tool, kind=kind).why
    assert not tried(tool, tried_dry=True, kind=kind).dry_run_first
    assert not tried(tool, dry_run=True, kind=kind).dry_run_first


def test_a_supported_dry_run_is_no_duty() -> None:
    # issue 5: "`supported` tools get `--dry-run`"
    tool = opted_in(effect("write_file", dry_run="supported"))
    assert not tried(tool).dry_run_first
    assert tried(tool).confirm


@each_of("kind", list(CallerKind))
def test_a_tool_without_a_dry_run_is_not_run_instead(kind: CallerKind) -> None:
    for word in ("not_supported", "supported", "required_before_execute"):
        said = tried(builtin(effect("write_file", dry_run=word)), dry_run=True, kind=kind)
        assert not said.allowed
        assert "has no dry run, even if its effects declare one. Nothing was run" in said.why


@each_of("mode", LIMITS)
def test_a_required_dry_run_that_there_is_not_asks_each_time(mode: Mode) -> None:
    # abi.md 4.48
    for kind in ("read_file", "write_file"):
        tool = builtin(effect(kind, dry_run="required_before_execute"))
        said = verdict(tool, AGENT, RiskSettings(mode=mode))
        assert (said.allowed, said.confirm, said.dry_run_first) == (True, True, False)
        assert "so you are asked each time" in said.why
        assert not verdict(tool, CallForm(CallerKind.AGENT, can_ask=False), RiskSettings(mode=mode)).allowed
        said = verdict(tool, PERSON, RiskSettings(mode=mode))
        assert (said.allowed, said.confirm, said.dry_run_first) == (True, False, False)
    blocked = builtin(effect("delete_file", dry_run="required_before_execute"))
    assert not verdict(blocked, AGENT, RiskSettings(mode=mode)).allowed


@each_of("mode", LIMITS)
def test_a_dry_run_of_nobody_trusted_is_judged_as_the_call(mode: Mode) -> None:
    # abi.md 4.49
    tool = opted_in(effect("write_file", dry_run="supported"), trusted=False)
    for can_ask in (True, False):
        dry = verdict(
            tool, CallForm(CallerKind.AGENT, can_ask=can_ask, dry_run=True), RiskSettings(mode=mode)
        )
        assert dry == verdict(tool, CallForm(CallerKind.AGENT, can_ask=can_ask), RiskSettings(mode=mode))
    trusted = tool._replace(trusted=True)
    assert not verdict(trusted, CallForm(CallerKind.AGENT, dry_run=True), RiskSettings(mode=mode)).confirm


def test_a_dry_run_counts_what_it_does_not_show() -> None:
    writing = effect("write_file", dry_run="supported")
    assert not tried(opted_in(writing), dry_run=True).confirm
    assert tried(opted_in(writing, effect("run_process")), dry_run=True).confirm
    assert not tried(opted_in(effect("delete_file", dry_run="supported")), dry_run=True).allowed


def test_a_dry_run_is_good_for_one_call_for_a_while() -> None:
    runs = DryRuns()
    runs.add(b"a", 0.0)
    assert not runs.use(b"b", 1.0)
    assert runs.use(b"a", DRY_RUN_SECONDS)
    assert not runs.use(b"a", DRY_RUN_SECONDS)
    runs.add(b"a", 0.0)
    assert not runs.use(b"a", DRY_RUN_SECONDS + 1)


def test_dry_runs_are_bounded_and_the_oldest_is_forgotten() -> None:
    runs = DryRuns()
    for number in range(MAX_DRY_RUNS):
        runs.add(str(number).encode(), 0.0)
    runs.add(b"0", 0.0)
    runs.add(b"new", 0.0)
    assert not runs.use(b"1", 0.0)
    assert runs.use(b"0", 0.0)


# Denials.


def test_denials_in_a_row_pause_and_many_escalate() -> None:
    # section 6: "3 consecutive denials pause the turn, 10 per session escalate"
    assert (PAUSE_AFTER, ESCALATE_AFTER) == (3, 10)
    counted = Denials()
    for denied in (True, True, False, True, True):
        counted = counted.after(denied)
    assert not counted.pause
    assert counted.after(True).pause
    assert not counted.after(True).escalate
    for _ in range(6):
        counted = counted.after(False).after(True)
    assert counted.escalate
    assert not counted.pause
