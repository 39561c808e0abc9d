"""Decisions: the layer that refuses, the order of layers, and that each decision has reason and rule."""

from __future__ import annotations

import stat

from msgspec.structs import replace

from cortexfs.core.hostcalls import Effect
from cortexfs.core.policy.confirming import CallerKind
from cortexfs.core.policy.decision import (
    DENY,
    EXECUTE,
    LAYERS,
    PASS,
    READ,
    WRITE,
    Bits,
    Decision,
    PolicyCaller,
    PolicyQuery,
    Thing,
    decide,
    permits,
)
from cortexfs.core.policy.risk import Circumstances, RatedTool, RiskSettings
from cortexfs.core.policy.rules import parse
from tests.tables import each_of

LINE = "allow base_t tool:fs.read execute"
READ_FILE = Effect("read_file", "reversible", "on_risk", "not_supported")
ALICE = PolicyCaller("alice", 1000, frozenset({1000}))
BASE = PolicyCaller(
    "agent/base",
    1000,
    kind=CallerKind.AGENT,
    label="base_t",
    rules=parse(f"{LINE}\n", "agent/base.d/policy"),
    file="agent/base.d/policy",
)
BITS = (Bits("tool", 0, 0, stat.S_IFDIR | 0o755), Bits("tool/fs.read", 0, 0, stat.S_IFREG | 0o555))
FS_READ = Thing(
    "tool",
    "fs.read",
    BITS,
    file="tool/fs.read.d/policy",
    tool=RatedTool("fs.read", (READ_FILE,), builtin=True),
    path="/ctx/tool/fs.read",
)


def asked(
    caller: PolicyCaller = ALICE, thing: Thing = FS_READ, permission: str = "execute", **more: object
) -> Decision:
    return decide(replace(PolicyQuery(caller, thing, permission), **more))


def results(decision: Decision) -> dict[str, str]:
    return {step.layer: step.result for step in decision.steps}


# People.


def test_people_have_what_unix_permissions_give() -> None:
    # abi.md 7.2
    decision = asked()
    assert decision.allowed
    assert decision.reason == "alice may execute tool:fs.read: Unix permissions let uid 1000 do so"
    assert decision.rule == "mode 0555 of tool/fs.read, owner 0:0"
    assert not decision.confirm


def test_people_are_refused_by_the_first_path_that_does() -> None:
    closed = (Bits("home/1001", 1001, 1001, stat.S_IFDIR | 0o700), *BITS)
    decision = asked(thing=replace(FS_READ, bits=closed))
    assert not decision.allowed
    assert decision.rule == "mode 0700 of home/1001, owner 1001:1001"
    assert decision.reason.endswith("Unix permissions do not let uid 1000 execute home/1001")


def test_policy_lines_are_not_about_people() -> None:
    rules = parse(f"{LINE}\n")
    assert asked(thing=replace(FS_READ, rules=rules)).allowed
    assert results(asked()) == {"daemon": PASS, "mode bits": "allow", "effects": PASS}
    rule = {"agent/base": "policy.toml: mode = ", "alice": "effects of tool:fs.read"}
    for caller in (ALICE, BASE):
        (step,) = [step for step in asked(caller).steps if step.layer == "effects"]
        assert step.rule.startswith(rule[caller.name])


def test_a_users_daemon_serves_that_user_alone() -> None:
    # abi.md 4.37
    assert asked(serves=1000).allowed
    for caller in (ALICE, PolicyCaller("root", 0)):
        decision = asked(caller, serves=1001)
        assert not decision.allowed
        assert decision.rule == "daemon of uid 1001"


@each_of(
    ("mode", "uid", "groups", "need", "permitted"),
    [
        (0o100, 5, {1}, EXECUTE, True),
        (0o011, 5, {6}, EXECUTE, False),  # the owner's bits count for the owner
        (0o010, 9, {6}, EXECUTE, True),
        (0o001, 9, {6}, EXECUTE, False),  # the group's bits count for a member of the group
        (0o001, 9, {7}, EXECUTE, True),
        (0o640, 9, {6}, READ, True),
        (0o640, 9, {6}, WRITE, False),
        (0o000, 0, set(), READ, True),
        (0o000, 0, set(), WRITE, True),
        (0o000, 0, set(), EXECUTE, False),
        (0o001, 0, set(), EXECUTE, True),
        (stat.S_IFDIR, 0, set(), EXECUTE, True),
    ],
)
def test_mode_bits_are_the_kernels(mode: int, uid: int, groups: set[int], need: int, permitted: bool) -> None:
    # path_resolution(7) and capabilities(7)
    assert permits(Bits("x", 5, 6, mode, need), uid, frozenset(groups)) is permitted


# Agents.


def test_agents_need_a_line() -> None:
    # abi.md 7.3
    decision = asked(BASE)
    assert decision.allowed
    assert decision.rule == "agent/base.d/policy:1"
    assert decision.reason == f"agent/base may execute tool:fs.read: its policy says: {LINE}"
    assert results(decision) == dict.fromkeys(LAYERS, PASS) | {"caller's policy": "allow"}


def test_agents_are_denied_by_default() -> None:
    # abi.md 7.3
    decision = asked(replace(BASE, rules=()))
    assert not decision.allowed
    assert decision.rule == "agent/base.d/policy (default deny)"
    assert decision.reason == f"agent/base may not execute tool:fs.read: its policy lacks the line: {LINE}"


def test_a_line_for_another_label_is_no_line() -> None:
    assert not asked(replace(BASE, label="other_t")).allowed


def test_an_objects_policy_with_lines_must_allow_too() -> None:
    # Of the originals: "tool's own `policy` file must allow too"
    others = parse("allow other_t tool:fs.read execute\n", "tool/fs.read.d/policy")
    decision = asked(BASE, replace(FS_READ, rules=others))
    assert not decision.allowed
    assert decision.rule == "tool/fs.read.d/policy"
    assert decision.reason.endswith(f"the object's policy has lines, but lacks: {LINE}")
    own = parse(f"{LINE}\n", "tool/fs.read.d/policy")
    assert asked(BASE, replace(FS_READ, rules=own)).allowed


def test_an_objects_policy_alone_allows_no_agent() -> None:
    own = parse(f"{LINE}\n", "tool/fs.read.d/policy")
    assert not asked(replace(BASE, rules=()), replace(FS_READ, rules=own)).allowed


# Facts that make the call of agent/base fail, layer by layer, in the order of the layers.
SPOILT: dict[str, dict[str, dict[str, object]]] = {
    "daemon": {"question": {"serves": 7}},
    "mode bits": {"thing": {"bits": (Bits("tool/fs.read", 0, 0, 0o500),)}},
    "mount view": {"caller": {"mounts": "/srv\t/srv\tro\t-\n"}},
    "label": {"caller": {"label": ""}},
    "object's policy": {"thing": {"rules": parse("allow other_t tool:fs.read execute\n")}},
    "caller's policy": {"caller": {"rules": ()}},
    "effects": {"question": {"settings": RiskSettings(deny=("fs.*",))}},
}


def spoilt(*layers: str) -> Decision:
    caller, thing, question = BASE, FS_READ, PolicyQuery(BASE, FS_READ, "execute")
    for layer in layers:
        said = SPOILT[layer]
        caller = replace(caller, **said.get("caller", {}))
        thing = replace(thing, **said.get("thing", {}))
        question = replace(question, **said.get("question", {}))
    return decide(replace(question, caller=caller, thing=thing))


@each_of("layer", SPOILT)
def test_any_refusal_refuses_and_says_why(layer: str) -> None:
    # Of the originals: "any refusal refuses"
    decision = spoilt(layer)
    assert not decision.allowed
    assert results(decision)[layer] == DENY
    assert decision.rule
    assert decision.reason.startswith("agent/base may not execute tool:fs.read: ")


@each_of("number", range(len(SPOILT)))
def test_the_first_refusal_is_the_reason(number: int) -> None:
    # abi.md 7.1
    layers = list(SPOILT)[number:]
    decision = spoilt(*layers)
    refusing = next(step for step in decision.steps if step.result == DENY)
    assert refusing.layer == layers[0]
    assert decision.rule == refusing.rule


def test_the_layers_are_in_the_order_of_the_page() -> None:
    order = ["mode bits", "object's policy", "caller's policy", "effects", "sandbox"]
    assert [layer for layer in LAYERS if layer in order] == order


def test_a_confirmation_is_part_of_the_decision() -> None:
    # abi.md 7.5
    writing = RatedTool(
        "fs.read", (Effect("write_file", "reversible", "on_risk", "not_supported"),), builtin=True
    )
    decision = asked(BASE, replace(FS_READ, tool=writing))
    assert decision.allowed
    assert decision.confirm
    assert (
        "it changes files (write_file is require_confirmation), above review, so you are asked"
        in decision.reason
    )
    assert decision.asked
    for refused in (replace(BASE, can_ask=False), replace(BASE, rules=())):
        decision = asked(refused, replace(FS_READ, tool=writing))
        assert (decision.allowed, decision.confirm, decision.asked) == (False, False, "")


def test_approval_ask_is_heard() -> None:
    assert asked(replace(BASE, always_ask=True)).confirm


def test_the_input_counts() -> None:
    inside = Circumstances(words=("/var/lib/cortexfs/secrets/x",), protected=("/var/lib/cortexfs",))
    decision = asked(BASE, call=inside)
    assert not decision.allowed
    assert "belongs to the daemon" in decision.reason


def test_a_dry_run_that_is_required_is_said() -> None:
    required = replace(READ_FILE, dry_run="required_before_execute")
    tool = RatedTool("fs.read", (required,), builtin=True, dry_run_flag=True, trusted=True)
    thing = replace(FS_READ, tool=tool)
    for caller in (ALICE, BASE):
        assert asked(caller, thing).dry_run_first
        assert not asked(caller, thing, tried_dry=True).dry_run_first
        assert not asked(caller, thing, dry_run=True).dry_run_first


@each_of(
    ("class_", "name", "permission"), [("model", "openai/gpt", "use"), ("network", "default", "connect")]
)
def test_what_is_no_tool_has_no_effects(class_: str, name: str, permission: str) -> None:
    thing = Thing(class_, name)
    agent = replace(BASE, rules=parse(f"allow base_t {class_}:{name} {permission}\n"))
    assert asked(ALICE, thing, permission).allowed
    assert asked(agent, thing, permission).allowed
    assert not asked(BASE, thing, permission).allowed
    assert "effects" not in results(asked(agent, thing, permission))


# The mount view.

SRV = "/srv\t/srv\trw\t-\n"


def view_of(caller: PolicyCaller, thing: Thing = FS_READ) -> tuple[str, str]:
    permission = "use" if thing.class_ == "model" else "execute"
    return next(
        (one.result, one.rule) for one in asked(caller, thing, permission).steps if "view" in one.layer
    )


@each_of(
    ("table", "result", "rule"),
    [
        ("", PASS, " is empty (default view)"),
        (SRV, DENY, " (no line)"),
        (f"{SRV}/ctx/tool\t/ctx/tool\tro\t-\n", PASS, ":2: /ctx/tool /ctx/tool ro -"),
        ("/\t/\tro\t-\n", PASS, ":1: / / ro -"),  # the root directory contains the mount, too
        (
            "/ctx/tool/fs.read\t/ctx/tool/fs.read\tro\tnosuid\n",
            PASS,
            ":1: /ctx/tool/fs.read /ctx/tool/fs.read ro nosuid",
        ),
        ("/ctx/tool/fs\t/ctx/tool/fs\tro\t-\n", DENY, " (no line)"),
        ("/ctx\t/ctx\tro\tnoexec\n", DENY, ":1: /ctx /ctx ro noexec"),
        ("/ctx\t/ctx\tro\tnoexec\n/ctx/tool\t/ctx/tool\tro\t-\n", PASS, ":2: /ctx/tool /ctx/tool ro -"),
    ],
)
def test_the_line_of_the_mount_table_that_decided_is_said(table: str, result: str, rule: str) -> None:
    # abi.md 7.1, 7.4
    agent = replace(BASE, mounts=table)
    assert view_of(agent) == (result, f"agent/base.d/mount{rule}")
    assert asked(agent).allowed is (result == PASS)


def test_what_an_agent_is_made_of_needs_no_line_and_what_it_calls_does() -> None:
    agent = replace(BASE, mounts=SRV, rules=parse("allow base_t model:p/m use\n"))
    model = Thing("model", "p/m", path="/ctx/model/p/m")
    assert view_of(agent, model)[0] == DENY
    assert view_of(agent, replace(model, is_its_model=True)) == (PASS, "the agent's model")


def test_an_object_whose_path_nobody_has_said_is_hidden_by_any_table() -> None:
    assert view_of(replace(BASE, mounts="/\t/\tro\t-\n"), replace(FS_READ, path=""))[0] == DENY


# Models by an alias.


def test_a_line_for_an_alias_counts_for_whoever_asks_by_it_and_for_nobody_else() -> None:
    # policy.md: "an alias means whatever it leads to, for an agent whose `.d/model` is that alias"
    agent = replace(BASE, rules=parse("allow base_t model:main use\n", BASE.file))
    model = Thing("model", "openai/gpt", file="model/openai/gpt.d/policy")
    by_alias = asked(agent, replace(model, alias="main"), "use")
    assert by_alias.allowed
    assert by_alias.rule == "agent/base.d/policy:1"
    for thing in (model, replace(model, alias="fast"), Thing("tool", "fs.read", alias="main")):
        assert not asked(agent, thing, "use").allowed
    tool = replace(BASE, rules=parse("allow base_t tool:reader execute\n"))
    assert not asked(tool, replace(FS_READ, alias="reader")).allowed


def test_an_alias_does_not_get_round_what_the_model_says() -> None:
    # abi.md 7.1
    agent = replace(BASE, rules=parse("allow base_t model:main use\n"))
    for line, allowed in (
        ("allow base_t model:openai/gpt use", True),
        ("allow other_t model:openai/gpt use", False),
        ("allow base_t model:main use", False),
    ):
        thing = Thing("model", "openai/gpt", rules=parse(line), alias="main")
        assert asked(agent, thing, "use").allowed == allowed
