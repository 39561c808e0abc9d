"""The mistakes in the policy of a whole mount: findings with stable codes.

Rules: an error makes policy differ from its author's intent, or allows calls about which a person should be
asked. A warning is about a setting that has no effect, or is missing. A finding names one subject and its
remedy. Without mistakes, POLICY_OK is the finding, so that the user sees that policy was checked.
This file must never know where the facts are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from cortexfs.core import value_formats
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import DISABLE, without
from cortexfs.core.policy import rules as policy
from cortexfs.core.policy.confirming import approved_up_to
from cortexfs.core.policy.decision import DENY, mount_answer
from cortexfs.core.policy.risk import (
    BLOCK,
    DEFAULT,
    FILE,
    FLOORS,
    REQUIRE_CONFIRMATION,
    Profile,
    RatedTool,
    RiskSettings,
    assess,
)
from cortexfs.core.policy.rules import Rule
from cortexfs.core.registry import path_of

ERROR, WARNING, INFO = "error", "warning", "info"
UNREVIEWED = "unreviewed_process"
# The classes of objects that are files of the tree, so that their names can be looked up.
IN_TREE = ("tool", "model", "agent")

# Every code, with its level and its remedy.
CODES: dict[str, tuple[str, str]] = {
    "RISK_SETTINGS_INVALID": (ERROR, "correct the file; until then agents may run nothing"),
    "RISK_ALLOW_DENY_CONFLICT": (ERROR, "take it out of one list; deny wins"),
    "RISK_AUTO_APPROVES_BLOCK": (ERROR, "write require_confirmation at most; what is blocked stays blocked"),
    "RISK_TOOL_UNKNOWN": (WARNING, "correct the name, or remove it"),
    "BACKGROUND_HIGH_RISK_TOOL": (ERROR, "remove allow_background, or block the tool"),
    "PLUGIN_MANIFEST_UNAVAILABLE": (ERROR, f"repair the plugin, or: {DISABLE} NAME"),
    "PLUGIN_GOVERNANCE_INVALID": (ERROR, "correct trust, sandbox and capabilities in its manifest"),
    "PLUGIN_PACKAGE_GOVERNANCE_GAP": (WARNING, "ask its author for what is missing"),
    "OPEN_PERMISSION_UNREVIEWED_PLUGIN": (ERROR, "review the plugin, or use mode balanced"),
    "NATIVE_PLUGIN_WITHOUT_RISK_PROFILE": (ERROR, f"add [tools.NAME] to {FILE} for each of them"),
    "PLUGIN_SECRET_ACCESS_UNGATED": (ERROR, f"block each, or set require_confirmation, in {FILE}"),
    "PLUGIN_BACKGROUND_WITHOUT_RISK_PROFILE": (ERROR, f"add [tools.NAME] to {FILE} for each of them"),
    "EFFECT_UNKNOWN": (WARNING, "correct the plugin; until then agents need a confirmation"),
    "POLICY_LINE_INVALID": (ERROR, "correct the line"),
    "POLICY_REMOVED": (WARNING, "write it again, or: ctx policy reset OBJECT"),
    "POLICY_OBJECT_UNKNOWN": (WARNING, "correct the name, or remove the line"),
    "POLICY_OBJECT_HIDDEN": (WARNING, "add a line for it to the agent's .d/mount, or remove this one"),
    "POLICY_LABEL_OTHER": (WARNING, "write the agent's own label, or remove the line"),
    "POLICY_LABEL_UNKNOWN": (WARNING, "correct the label, or remove the line"),
    "AGENT_LABEL_MISSING": (ERROR, "write a label such as user_u:agent_r:coder_t:s0 to its .d/label"),
    "AGENT_LABEL_SHARED": (WARNING, "give each agent its own label, unless they should share every line"),
    "AGENT_TOOL_NOT_ALLOWED": (WARNING, "add the line to its policy, or take the tool out of its tools"),
    "AGENT_TOOL_BLOCKED": (WARNING, "take the tool out of its tools"),
    "AGENT_SKILL_UNKNOWN": (WARNING, "correct the name in its .d/skills, or enable the plugin that has it"),
    "POLICY_OK": (INFO, ""),
}


class LintFinding(msgspec.Struct, frozen=True):
    code: str
    subject: str  # a file, an object or a plugin
    why: str

    @property
    def level(self) -> str:
        return CODES[self.code][0]

    @property
    def mend(self) -> str:
        return CODES[self.code][1].replace(f"{DISABLE} NAME", without(self.subject))


class LintedPlugin(msgspec.Struct, frozen=True):
    """The facts about an enabled plugin that policy needs."""

    name: str
    fault: str = ""  # the reason why its manifest, or the plugin itself, cannot be read
    governance: str = ""  # the mistake in its manifest
    gaps: tuple[str, ...] = ()  # the parts that its package lacks
    trust: str = ""
    native: bool = False  # it has native or process tools
    profiled: bool = False  # its package names a risk profile
    secrets: bool = False
    background: bool = False
    tools: tuple[str, ...] = ()


class PolicyText(msgspec.Struct, frozen=True):
    """A `policy` control, of an object or an agent."""

    path: str
    text: str
    removed: bool = False  # its file was removed: the text is not known, but still counts


class LintedAgent(msgspec.Struct, frozen=True):
    name: str
    label: str  # its type; empty for none
    policy: PolicyText
    tools: tuple[str, ...] = ()
    home: int | None = None  # the uid of the home that it is in
    model: str = ""  # the name by which it uses its model
    mounts: str = ""  # its mount table
    skills: tuple[str, ...] = ()

    @property
    def policy_name(self) -> str:
        """Returns its name in objects' policies."""
        return policy.policy_name(self.label, self.home)


class LintInput(msgspec.Struct, frozen=True):
    root: str = ""  # the mount point
    settings: RiskSettings = DEFAULT
    settings_fault: str = ""
    tools: tuple[RatedTool, ...] = ()
    names: frozenset[tuple[str, str]] = frozenset()  # class and name of every object
    skills: frozenset[str] = frozenset()
    files: tuple[PolicyText, ...] = ()  # the policies of tools and models
    agents: tuple[LintedAgent, ...] = ()
    plugins: tuple[LintedPlugin, ...] = ()


def lint(world: LintInput) -> tuple[LintFinding, ...]:
    """Returns all findings, errors first, or POLICY_OK alone if there are none."""
    found = [finding for look in LOOKS for finding in look(world)]
    order = [ERROR, WARNING, INFO]
    return tuple(sorted(found, key=lambda each: order.index(each.level))) or (_ok(world),)


def _ok(world: LintInput) -> LintFinding:
    groups = {"tools": world.tools, "agents": world.agents, "plugins": world.plugins}
    counts = ", ".join(f"{kind} ({len(items)})" for kind, items in groups.items())
    return LintFinding("POLICY_OK", "policy", f"no problems in {counts}")


def passed(findings: Iterable[LintFinding]) -> bool:
    return all(finding.level != ERROR for finding in findings)


def _settings(world: LintInput) -> Iterator[LintFinding]:
    settings = world.settings
    if world.settings_fault:
        yield LintFinding("RISK_SETTINGS_INVALID", FILE, world.settings_fault)
    for pattern in sorted(set(settings.allow) & set(settings.deny)):
        yield LintFinding("RISK_ALLOW_DENY_CONFLICT", FILE, f"{pattern} is in allow and in deny")
    if settings.auto_approve_up_to == BLOCK.word:
        yield LintFinding("RISK_AUTO_APPROVES_BLOCK", FILE, "auto_approve_up_to is block")
    known = {tool.name for tool in world.tools}
    for name in sorted(settings.tools.keys() - known):
        yield LintFinding("RISK_TOOL_UNKNOWN", FILE, f"[tools.{name}] names no existing tool")
    for name in sorted({*settings.allow, *settings.deny} - known):
        if "*" not in name:  # a pattern may be meant for later tools
            yield LintFinding("RISK_TOOL_UNKNOWN", FILE, f"{name} in allow or deny names no existing tool")


def _background(world: LintInput) -> Iterator[LintFinding]:
    for tool in world.tools:
        allowed = world.settings.tools.get(tool.name, Profile()).allow_background
        level, why, _ = assess(tool, world.settings)
        if allowed and level is REQUIRE_CONFIRMATION:
            text = f"it may run in the background, where no person can confirm: {why}"
            yield LintFinding("BACKGROUND_HIGH_RISK_TOOL", f"tool/{tool.name}", text)


def _effects(world: LintInput) -> Iterator[LintFinding]:
    for tool in world.tools:
        for effect in tool.effects:
            if effect.kind not in FLOORS:
                text = f"the effect {effect.kind} is unknown"
                yield LintFinding("EFFECT_UNKNOWN", f"tool/{tool.name}", text)


def _plugins(world: LintInput) -> Iterator[LintFinding]:
    is_open = approved_up_to(world.settings) >= REQUIRE_CONFIRMATION
    for plugin in world.plugins:
        if plugin.fault:
            yield LintFinding("PLUGIN_MANIFEST_UNAVAILABLE", plugin.name, plugin.fault)
            continue
        if plugin.governance:
            yield LintFinding("PLUGIN_GOVERNANCE_INVALID", plugin.name, plugin.governance)
        if plugin.gaps:
            yield LintFinding("PLUGIN_PACKAGE_GOVERNANCE_GAP", plugin.name, ", ".join(plugin.gaps))
        if is_open and plugin.trust == UNREVIEWED:
            text = "agents may run its tools without approval"
            yield LintFinding("OPEN_PERMISSION_UNREVIEWED_PLUGIN", plugin.name, text)
        yield from _profiles(world.settings, plugin)


def _profiles(settings: RiskSettings, plugin: LintedPlugin) -> Iterator[LintFinding]:
    missing = ", ".join(name for name in plugin.tools if name not in settings.tools)
    if missing and not plugin.profiled:
        text = f"no risk profile for {missing}"
        if plugin.native:
            yield LintFinding("NATIVE_PLUGIN_WITHOUT_RISK_PROFILE", plugin.name, text)
        if plugin.background:
            yield LintFinding("PLUGIN_BACKGROUND_WITHOUT_RISK_PROFILE", plugin.name, text)
    profiles = {name: settings.tools.get(name, Profile()) for name in plugin.tools}
    ungated = [
        name for name, profile in profiles.items() if not (profile.block or profile.require_confirmation)
    ]
    if plugin.secrets and ungated:
        text = f"it may read secrets, and no confirmation is needed for {', '.join(ungated)}"
        yield LintFinding("PLUGIN_SECRET_ACCESS_UNGATED", plugin.name, text)


def _lines(world: LintInput) -> Iterator[LintFinding]:
    labels = {agent.policy_name for agent in world.agents}
    for file in (*world.files, *(agent.policy for agent in world.agents)):
        if file.removed:
            yield LintFinding("POLICY_REMOVED", file.path, "the file is gone, but its last lines still apply")
        for number, line in value_formats.rules(file.text):
            try:
                policy.parse(line)
            except Fault as fault:
                why = fault.message.removeprefix("line 1: ")
                yield LintFinding("POLICY_LINE_INVALID", f"{file.path}:{number}", why)
        for rule in _valid(file):
            if rule.class_ in IN_TREE and (rule.class_, rule.name) not in world.names:
                text = f"there is no {rule.class_} {rule.name}: {rule.text}"
                yield LintFinding("POLICY_OBJECT_UNKNOWN", rule.where, text)
    for file in world.files:
        for rule in _valid(file):
            if rule.label not in labels and "/" not in rule.label:  # we cannot read the homes of other users
                text = f"no agent has the label {rule.label}: {rule.text}"
                yield LintFinding("POLICY_LABEL_UNKNOWN", rule.where, text)


def _agents(world: LintInput) -> Iterator[LintFinding]:
    first: dict[str, str] = {}
    for agent in world.agents:
        if not agent.label:
            yield LintFinding("AGENT_LABEL_MISSING", agent.name, "no policy line can name it")
        elif agent.policy_name in first:
            text = f"it has the label {agent.label}, as {first[agent.policy_name]} has"
            yield LintFinding("AGENT_LABEL_SHARED", agent.name, text)
        first.setdefault(agent.policy_name, agent.name)
        for rule in _valid(agent.policy):
            if agent.label and rule.label != agent.label:
                text = f"{agent.name} has the label {agent.label}, so this line has no effect: {rule.text}"
                yield LintFinding("POLICY_LABEL_OTHER", rule.where, text)
        yield from _agents_tools(world, agent)
        yield from _agents_view(world, agent)
        for skill in agent.skills:
            if skill not in world.skills:
                yield LintFinding("AGENT_SKILL_UNKNOWN", agent.name, f"there is no skill {skill}")


def _agents_tools(world: LintInput, agent: LintedAgent) -> Iterator[LintFinding]:
    if agent.policy.removed:
        return
    rules = tuple(_valid(agent.policy))
    tools = {tool.name: tool for tool in world.tools}
    for name in agent.tools:
        if not policy.find(rules, agent.label, "tool", name, "execute"):
            line = Rule(agent.label or "LABEL", "tool", name, "execute").text
            yield LintFinding("AGENT_TOOL_NOT_ALLOWED", agent.name, f"its policy lacks the line: {line}")
        elif name in tools and (source := assess(tools[name], world.settings)).level is BLOCK:
            yield LintFinding("AGENT_TOOL_BLOCKED", agent.name, f"{name} is blocked for agents: {source.why}")


def _agents_view(world: LintInput, agent: LintedAgent) -> Iterator[LintFinding]:
    """Yields a finding for each line about an object that the agent's mount table hides. Lines with an alias
    are skipped, as the target of an alias is not known here."""
    for rule in _valid(agent.policy):
        is_alias = rule.class_ == "model" and "/" not in rule.name
        if rule.class_ not in IN_TREE or is_alias or (rule.class_, rule.name) == ("model", agent.model):
            continue
        path = f"{world.root}/{path_of((rule.class_, rule.name))}"
        result, why, _ = mount_answer(agent.name, agent.mounts, path)
        if result == DENY:
            text = f"{why}, so this line has no effect: {rule.text}"
            yield LintFinding("POLICY_OBJECT_HIDDEN", rule.where, text)


def _valid(file: PolicyText) -> Iterator[Rule]:
    """Yields the rules of a file line by line, so that a wrong line does not hide the others."""
    for number, line in value_formats.rules(file.text):
        try:
            (rule,) = policy.parse(line, file.path)
        except Fault:
            continue
        yield rule._replace(line=number)


LOOKS: tuple[Callable[[LintInput], Iterator[LintFinding]], ...] = (
    _settings,
    _background,
    _plugins,
    _effects,
    _lines,
    _agents,
)
