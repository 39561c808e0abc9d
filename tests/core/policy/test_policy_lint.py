"""The codes of `ctx policy lint`: each with a world that shows it, and a similar world that does not."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from cortexfs.core.hostcalls import Effect
from cortexfs.core.policy.lint import (
    CODES,
    ERROR,
    LintedAgent,
    LintedPlugin,
    LintFinding,
    LintInput,
    PolicyText,
    lint,
    passed,
)
from cortexfs.core.policy.risk import RatedTool, decode
from tests.tables import each_of

# The codes of the reference; all others are this project's own.
REFERENCE = """
    RISK_ALLOW_DENY_CONFLICT RISK_AUTO_APPROVES_BLOCK BACKGROUND_HIGH_RISK_TOOL
    PLUGIN_MANIFEST_UNAVAILABLE PLUGIN_GOVERNANCE_INVALID PLUGIN_PACKAGE_GOVERNANCE_GAP
    OPEN_PERMISSION_UNREVIEWED_PLUGIN NATIVE_PLUGIN_WITHOUT_RISK_PROFILE PLUGIN_SECRET_ACCESS_UNGATED
    PLUGIN_BACKGROUND_WITHOUT_RISK_PROFILE POLICY_OK
"""


def tool(name: str, kind: str) -> RatedTool:
    return RatedTool(name, (Effect(kind, "reversible", "on_risk", "not_supported"),), builtin=True)


def agent(policy: str, *tools: str, name: str = "agent/base", label: str = "base_t") -> LintedAgent:
    return LintedAgent(name, label, PolicyText(f"{name}.d/policy", policy), tools)


TOOLS = (tool("fs.read", "read_file"), tool("fs.write", "write_file"), tool("fs.remove", "delete_file"))
READS = agent("# what it needs\nallow base_t tool:fs.read execute\n", "fs.read")
NOTES = LintedPlugin("notes", trust="reviewed_process", tools=("fs.write",))
NAMES = frozenset({("tool", one.name) for one in TOOLS} | {("agent", "base"), ("model", "p/m")})
FINE = LintInput(root="/ctx", tools=TOOLS, names=NAMES, agents=(READS,), plugins=(NOTES,))


def with_settings(text: str, **more: Any) -> LintInput:
    return replace(FINE, settings=decode(text), **more)


def with_plugin(text: str = "", **more: Any) -> LintInput:
    return with_settings(text, plugins=(replace(NOTES, **more),))


def with_agents(*agents: LintedAgent) -> LintInput:
    return replace(FINE, agents=agents)


def codes(world: LintInput) -> list[str]:
    return [finding.code for finding in lint(world)]


PROFILE = "[tools.'fs.write']\n"
ALLOW = "allow base_t tool:fs.read execute\n"
# Code, a world that shows it, its subject, and a part of its sentence.
CASES: list[tuple[str, LintInput, str, str]] = [
    ("RISK_SETTINGS_INVALID", replace(FINE, settings_fault="unknown key x"), "policy.toml", "unknown key x"),
    (
        "RISK_ALLOW_DENY_CONFLICT",
        with_settings('allow = ["fs.*"]\ndeny = ["fs.*"]\n', agents=()),
        "policy.toml",
        "fs.* is in allow and in deny",
    ),
    ("RISK_AUTO_APPROVES_BLOCK", with_settings('auto_approve_up_to = "block"'), "policy.toml", "is block"),
    (
        "RISK_TOOL_UNKNOWN",
        with_settings("[tools.fs-write]"),
        "policy.toml",
        "[tools.fs-write] names no existing tool",
    ),
    (
        "BACKGROUND_HIGH_RISK_TOOL",
        with_settings(f"{PROFILE}allow_background = true"),
        "tool/fs.write",
        "where no person can confirm: it changes files (write_file is require_confirmation)",
    ),
    ("PLUGIN_MANIFEST_UNAVAILABLE", with_plugin(fault="it was killed"), "notes", "it was killed"),
    ("PLUGIN_GOVERNANCE_INVALID", with_plugin(governance="is Quarantined"), "notes", "is Quarantined"),
    ("PLUGIN_PACKAGE_GOVERNANCE_GAP", with_plugin(gaps=("no sbom", "no key")), "notes", "no sbom, no key"),
    (
        "OPEN_PERMISSION_UNREVIEWED_PLUGIN",
        with_plugin('mode = "open"', trust="unreviewed_process"),
        "notes",
        "agents may run its tools without approval",
    ),
    ("NATIVE_PLUGIN_WITHOUT_RISK_PROFILE", with_plugin(native=True), "notes", "no risk profile for fs.write"),
    (
        "PLUGIN_SECRET_ACCESS_UNGATED",
        with_plugin(secrets=True),
        "notes",
        "no confirmation is needed for fs.write",
    ),
    ("PLUGIN_BACKGROUND_WITHOUT_RISK_PROFILE", with_plugin(background=True), "notes", "for fs.write"),
    (
        "EFFECT_UNKNOWN",
        replace(FINE, tools=(*TOOLS, tool("x", "fly"))),
        "tool/x",
        "the effect fly is unknown",
    ),
    (
        "POLICY_LINE_INVALID",
        with_agents(agent(f"{ALLOW}\ndeny base_t tool:x execute\n")),
        "agent/base.d/policy:3",
        "policy has no deny",
    ),
    (
        "POLICY_REMOVED",
        with_agents(replace(READS, policy=PolicyText("agent/base.d/policy", "", removed=True))),
        "agent/base.d/policy",
        "its last lines still apply",
    ),
    (
        "POLICY_OBJECT_UNKNOWN",
        with_agents(agent(f"{ALLOW}allow base_t model:p/n use\n")),
        "agent/base.d/policy:2",
        "there is no model p/n",
    ),
    (
        "POLICY_OBJECT_HIDDEN",
        with_agents(replace(READS, mounts="/srv\t/srv\tro\t-\n")),
        "agent/base.d/policy:2",
        "no line of its mount table shows /ctx/tool/fs.read, so this line has no effect",
    ),
    (
        "POLICY_LABEL_OTHER",
        with_agents(agent("allow other_t tool:fs.read execute\n")),
        "agent/base.d/policy:1",
        "agent/base has the label base_t, so this line has no effect",
    ),
    (
        "POLICY_LABEL_UNKNOWN",
        replace(FINE, files=(PolicyText("tool/fs.read.d/policy", "allow none_t tool:fs.read execute\n"),)),
        "tool/fs.read.d/policy:1",
        "no agent has the label none_t",
    ),
    ("AGENT_LABEL_MISSING", with_agents(agent("", label="")), "agent/base", "no policy line can name it"),
    (
        "AGENT_LABEL_SHARED",
        with_agents(READS, agent(ALLOW, name="agent/two")),
        "agent/two",
        "as agent/base has",
    ),
    (
        "AGENT_TOOL_NOT_ALLOWED",
        with_agents(agent("", "fs.read")),
        "agent/base",
        "its policy lacks the line: allow base_t tool:fs.read execute",
    ),
    (
        "AGENT_TOOL_BLOCKED",
        with_agents(agent("allow base_t tool:fs.remove execute\n", "fs.remove")),
        "agent/base",
        "fs.remove is blocked for agents: it deletes files (delete_file is block)",
    ),
    (
        "AGENT_SKILL_UNKNOWN",
        replace(
            FINE,
            agents=(replace(READS, skills=("notes/tidy", "notes/review")),),
            skills=frozenset({"notes/tidy"}),
        ),
        "agent/base",
        "there is no skill notes/review",
    ),
]


@each_of(("code", "world", "subject", "why"), CASES)
def test_each_code_is_found_alone(code: str, world: LintInput, subject: str, why: str) -> None:
    (found,) = lint(world)
    assert (found.code, found.subject) == (code, subject)
    assert why in found.why
    assert found.mend
    assert passed([found]) is (found.level != ERROR)


def test_nothing_wrong_is_said() -> None:
    # section 6: "POLICY_OK"
    (found,) = lint(FINE)
    assert found == LintFinding("POLICY_OK", "policy", "no problems in tools (3), agents (1), plugins (1)")
    assert passed([found])
    assert codes(LintInput()) == ["POLICY_OK"]


def test_a_misspelt_tool_is_told_and_a_pattern_may_be_of_tools_to_come() -> None:
    world = with_settings('deny = ["fs.remvoe", "deploy.*", "fs.remove"]')
    assert list(lint(world)) == [
        LintFinding("RISK_TOOL_UNKNOWN", "policy.toml", "fs.remvoe in allow or deny names no existing tool")
    ]


def test_every_code_has_a_case() -> None:
    assert [code for code, *_ in CASES] + ["POLICY_OK"] == list(CODES)
    assert set(REFERENCE.split()) <= set(CODES)


def test_a_package_gap_is_a_warning() -> None:
    # section 6: "PLUGIN_PACKAGE_GOVERNANCE_GAP (warn)"
    assert CODES["PLUGIN_PACKAGE_GOVERNANCE_GAP"][0] == "warning"


def test_errors_come_first() -> None:
    world = replace(
        with_plugin(gaps=("missing SBOM reference",), governance="is Disabled"),
        agents=(agent("", "fs.read"),),
    )
    assert [finding.level for finding in lint(world)] == ["error", "warning", "warning"]


@each_of(
    "world",
    [
        with_settings(f"{PROFILE}allow_background = true\nblock = true"),
        with_settings("[tools.'fs.read']\nallow_background = true"),
        with_plugin("mode = 'open'"),
        with_plugin(trust="unreviewed_process"),
        with_plugin(PROFILE, native=True, background=True),
        with_plugin(native=True, background=True, profiled=True),
        with_plugin(f"{PROFILE}require_confirmation = true", secrets=True),
        with_plugin(f"{PROFILE}block = true", secrets=True),
        replace(FINE, files=(PolicyText("tool/fs.read.d/policy", f"# {ALLOW}{ALLOW}"),)),
        with_agents(agent(f"{ALLOW}allow base_t session:default read\n", "fs.read")),
    ],
)
def test_what_is_mended_is_not_found(world: LintInput) -> None:
    assert codes(world) == ["POLICY_OK"]


def test_a_plugin_that_cannot_be_read_is_asked_nothing_else() -> None:
    assert codes(with_plugin(fault="it was killed", native=True, governance="x")) == [
        "PLUGIN_MANIFEST_UNAVAILABLE"
    ]


def test_the_command_that_does_without_a_plugin_is_one_that_works() -> None:
    # abi.md 8.54
    broken = [LintedPlugin(name, fault="it was killed") for name in ("notes", "mcp:excel")]
    mends = [one.mend for one in lint(replace(FINE, plugins=tuple(broken)))]
    mend = "repair the plugin, or:"
    assert mends == [f"{mend} ctx plugin disable notes", f"{mend} ctx mcp remove excel"]


def test_a_wrong_line_hides_no_other() -> None:
    world = with_agents(agent(f"wrong\n{ALLOW}allow base_t tool:gone execute\n", "fs.read"))
    assert codes(world) == ["POLICY_LINE_INVALID", "POLICY_OBJECT_UNKNOWN"]


def test_what_a_mount_table_hides_and_what_it_does_not() -> None:
    # policy.md: an agent's own model is no matter of its mount table, and what an alias leads to is not known
    lines = "allow base_t model:p/m use\nallow base_t model:main use\nallow base_t agent:home/7/mate start\n"
    names = NAMES | {("model", "main"), ("agent", "home/7/mate")}
    its = replace(agent(f"{ALLOW}{lines}"), model="p/m", mounts="/ctx/tool\t/ctx/tool\tro\t-\n")
    (found,) = lint(replace(FINE, names=names, agents=(its,)))
    assert (found.code, found.subject) == ("POLICY_OBJECT_HIDDEN", "agent/base.d/policy:4")
    assert "/ctx/home/7/agent/mate" in found.why
    everything = replace(its, mounts="/\t/\tro\t-\n")
    assert codes(replace(FINE, names=names, agents=(everything,))) == ["POLICY_OK"]
