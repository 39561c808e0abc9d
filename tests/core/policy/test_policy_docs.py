"""docs/policy.md matches the code: its tables are compared with those that decide."""

from __future__ import annotations

import re

import msgspec

from cortexfs.core.hostcalls import Effect
from cortexfs.core.policy import confirming, risk
from cortexfs.core.policy import rules as policy
from cortexfs.core.policy.confirming import CallerKind, CallForm, verdict
from cortexfs.core.policy.decision import LAYERS, PolicyCaller, PolicyQuery, Thing, decide
from cortexfs.core.policy.lint import CODES
from cortexfs.core.policy.risk import FLOORS, LEVELS, MODES, Mode, Profile, RatedTool, RiskSettings, decode
from tests.places import PROJECT

PAGE = (PROJECT / "docs" / "policy.md").read_text()


def table(head: str) -> list[list[str]]:
    """Returns the rows of the table that begins with this line."""
    _, found, after = PAGE.partition(f"| {head} |\n")
    assert found, head
    return cells(after.split("\n\n")[0].splitlines()[1:])


def table_after(text: str) -> list[list[str]]:
    return cells(PAGE.partition(text)[2].partition("|---|---|---|\n")[2].split("\n\n")[0].splitlines())


def cells(rows: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_layers() -> None:
    assert [row[0].strip("*") for row in table("layer | asks")] == list(LAYERS)


def test_classes_and_permissions() -> None:
    rows = {words(row[0])[0]: tuple(words(row[2])) for row in table("class | name | permissions")}
    assert rows == policy.PERMISSIONS
    assert policy.FORM in PAGE


def test_floors() -> None:
    rows = {words(row[0])[0]: words(row[1]) for row in table("level | kinds")}
    assert {kind: level for level, kinds in rows.items() for kind in kinds} == {
        kind: floor.word for kind, floor in FLOORS.items()
    }


def test_who_is_asked() -> None:
    modes: list[Mode] = ["strict", "balanced", "open"]
    head = "level | a person | " + " | ".join(f"an agent, {mode}" for mode in modes)
    rows = {words(row[0])[0]: row[1:] for row in table(head)}
    assert set(modes) == set(MODES)
    for word in LEVELS:
        kind = next(kind for kind, floor in FLOORS.items() if floor.word == word)
        tool = RatedTool("one", (Effect(kind, "reversible", "on_risk", "not_supported"),), builtin=True)
        asked = [(CallerKind.PERSON, mode) for mode in modes[:1]] + [
            (CallerKind.AGENT, mode) for mode in modes
        ]
        said = [verdict(tool, CallForm(who), RiskSettings(mode=mode)) for who, mode in asked]
        assert rows[word] == ["asks" if one.confirm else "runs" if one.allowed else "refused" for one in said]


def test_keys_of_policy_toml() -> None:
    keys = [table("key | default | meaning"), table_after("[tools.NAME]")]
    for rows, empty in zip(keys, (RiskSettings(), Profile()), strict=True):
        defaults = {name: value for name, value in msgspec.structs.asdict(empty).items() if name != "tools"}
        shown = {
            name: "" if value is None else f"`{msgspec.json.encode(value).decode()}`"
            for name, value in defaults.items()
        }
        assert {words(row[0])[0]: row[1] for row in rows} == shown


def test_the_example_is_read() -> None:
    example = PAGE.partition("```toml\n")[2].partition("```")[0]
    settings = decode(example)
    assert (settings.mode, settings.deny, list(settings.tools)) == ("balanced", ("deploy.*",), ["notes.add"])
    assert risk.assess(RatedTool("notes.add"), settings).level is risk.ALLOW


def test_numbers() -> None:
    said = " ".join(PAGE.split())
    assert f"weighed {', '.join(map(str, risk.WEIGHTS[:3]))} and {risk.WEIGHTS[3]}" in said
    assert f"they are {', '.join(map(str, risk.UNKNOWN[:3]))} and {risk.UNKNOWN[3]} unless" in said
    assert f"which gives {risk.score(risk.UNKNOWN):.3f}" in said
    for below, level in risk.THRESHOLDS:
        assert re.search(rf"below {below} (is )?`{level.word}`", said)
    assert f"After {confirming.PAUSE_AFTER} denials in a row" in said
    assert f"after {confirming.ESCALATE_AFTER} in a session" in said
    assert f"in the last {confirming.DRY_RUN_SECONDS / 60:.0f} minutes" in said


def test_depth() -> None:
    # policy.md: "a plugin's tool is blocked three runs deep, and a built-in one is reviewed from seven on"
    def level(depth: int, builtin: bool) -> risk.Level:
        call = risk.Circumstances(depth=depth)
        return risk.assess(RatedTool("one", builtin=builtin), call=call).level

    assert [level(depth, False) for depth in (2, 3)] == [risk.REQUIRE_CONFIRMATION, risk.BLOCK]
    assert [level(depth, True) for depth in (6, 7)] == [risk.ALLOW, risk.REVIEW]
    assert "three runs deep, and a built-in one is reviewed from seven on" in " ".join(PAGE.split())


def test_the_explanation_is_one() -> None:
    write = Effect("write_file", "reversible", "on_risk", "not_supported")
    rules = policy.parse("#\nallow base_t tool:fs.write execute\n", "agent/base.d/policy")
    agent = PolicyCaller("agent/base", 1000, kind=CallerKind.AGENT, label="base_t", rules=rules)
    thing = Thing("tool", "fs.write", tool=RatedTool("fs.write", (write,), builtin=True))
    decision = decide(PolicyQuery(agent, thing, "execute"))
    assert f"{decision.reason} rule: {decision.rule} " in " ".join(PAGE.split())


def test_codes() -> None:
    rows = {words(row[0])[0]: (row[0].startswith("**"), row[1]) for row in table("code | what to do")}
    assert rows == {
        code: (level == "error", mend.replace("|", "\\|")) for code, (level, mend) in CODES.items()
    }
    assert [code for code, (level, _) in CODES.items() if level not in ("error", "warning")] == ["POLICY_OK"]
