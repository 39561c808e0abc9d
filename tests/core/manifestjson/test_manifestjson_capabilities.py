"""Capabilities: the seed's list, their meaning to policy and to Deno, and which are in effect."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.governance import with_rights
from cortexfs.core.manifestjson import capabilities
from cortexfs.core.manifestjson.capabilities import CAPABILITIES, PROCESS, effective, effects, process_rights
from cortexfs.core.policy import risk

# abi.md 9.25
PERMISSIONS = {
    "fs:read": "read", "fs:list": "read", "fs:write": "write", "fs:edit": "write", "fs:delete": "write",
    "fs:search": None, "shell:run": "run", "network:fetch": "net", "net:outbound": "net",
    "net:inbound": "net", "db:read": None, "db:write": None,
}  # fmt: skip
# abi.md 9.24
EXTENSION_POINTS = [
    "tools", "cli:commands", "ui:panel", "ui:widget", "config:schema", "config:provider", "memory:store",
    "memory:embedder", "events:listener", "middleware:pre", "middleware:post",
]  # fmt: skip


def test_the_capabilities_are_those_of_the_reference() -> None:
    assert list(CAPABILITIES) == [*EXTENSION_POINTS, *PERMISSIONS]
    permissions = {name: one.deno for name, one in CAPABILITIES.items() if one.permission}
    assert permissions == PERMISSIONS
    # "(reserved for future use)", "(reserved)"
    reserved = [name for name, one in CAPABILITIES.items() if one.reserved]
    assert reserved == ["memory:store", "memory:embedder"]


def test_every_permission_is_an_effect_of_this_project_and_no_extension_point_is() -> None:
    # issue 6: "mapped onto this project's effects so that policy and confirmation treat both systems alike"
    for name, one in CAPABILITIES.items():
        assert bool(one.effects) == one.permission, name
        for effect in one.effects:
            like = sdk.ToolEffect(sdk.ToolEffectKind(effect.kind))
            assert (effect.reversibility, effect.dry_run) == (like.reversibility, like.dry_run), name
            # a process that accepts connections lets others in, so that is always confirmed
            assert effect.confirmation == ("always" if name == "net:inbound" else like.confirmation), name
    kinds = [
        effect.kind
        for effect in capabilities.effects(["fs:read", "tools", "fs:list", "shell:run", "fs:delete"])
    ]
    assert kinds == ["read_file", "run_process", "delete_file"]


def test_effective_is_declared_without_denied_with_granted() -> None:
    # abi.md 9.26
    name = "fs:read"
    for declared, denied, granted in itertools.product([(), (name,)], repeat=3):
        found = effective(("tools", *declared), denied, granted)
        assert found.has(name) == bool((declared and not denied) or granted)
        assert found.capabilities[0] == "tools"
        told = [one for one in found.explained if one.capability == name]
        assert [one.effective for one in told] == ([found.has(name)] if declared or denied or granted else [])


def test_each_capability_is_explained() -> None:
    found = effective(
        ["shell:run", "tools", "fs:read"], ["shell:run", "db:read"], ["net:outbound", "fs:read"]
    )
    assert found.capabilities == ("tools", "fs:read", "net:outbound")
    assert [(one.capability, one.reason) for one in found.explained] == [
        ("tools", "declared by the manifest"),
        ("fs:read", "declared by the manifest, and granted by the administrator"),
        ("shell:run", "declared by the manifest, denied by the administrator"),
        ("net:outbound", "granted by the administrator, though the manifest does not declare it"),
        ("db:read", "denied by the administrator, and not declared either"),
    ]
    with pytest.raises(Fault, match=r'^EINVAL: "fs:raed" is no capability; did you mean fs:read\?$'):
        effective(["tools"], ["fs:raed"], [])


def test_deno_gets_the_permissions_of_the_effective_capabilities_and_no_others() -> None:
    # Of the originals: "env, sys, ffi, import: never"
    every = effective(CAPABILITIES, ["shell:run"], [])
    assert capabilities.deno_permissions(every.capabilities) == ("net", "read", "write")
    assert capabilities.deno_permissions(["tools", "fs:search", "db:write"]) == ()
    assert capabilities.deno_permissions(["shell:run"]) == ("run",)


def test_a_tool_that_wants_more_than_its_plugin_has_is_refused() -> None:
    # Of the originals: "tool caps must be a subset → refuse that tool"
    has = effective(["tools", "network:fetch", "shell:run"], ["shell:run"], [])
    assert capabilities.tool_fault("get", ["network:fetch"], has) is None
    told = capabilities.tool_fault("run", ["network:fetch", "shell:run"], has)
    assert told
    assert told.startswith("the tool run needs shell:run, which its plugin does not have; declare it")


def test_a_tool_is_judged_by_what_its_process_may() -> None:
    # policy.md: "What the process of a tool may do counts too, whatever the tool says of itself"
    rights = process_rights(["tools", "shell:run", "fs:read", "fs:delete", "net:outbound", "db:write"])
    assert [(one.kind, one.target) for one in rights] == [
        ("read_file", PROCESS),
        ("write_file", PROCESS),
        ("run_process", PROCESS),
        ("network_request", PROCESS),
    ]
    assert process_rights(["tools", "fs:search", "events:listener"]) == ()
    declared = effects(["shell:run"])
    judged = with_rights(declared, rights)
    assert judged[0] == declared[0]
    assert [one.kind for one in judged[1:]] == ["read_file", "write_file", "network_request"]
    # an effect with a target does not cover all targets
    (named,) = (replace(one, target="git") for one in declared)
    assert [one.target for one in with_rights([named], rights) if one.kind == "run_process"] == [
        "git",
        PROCESS,
    ]
    assert risk.assess(risk.RatedTool("t", with_rights((), process_rights(["fs:write"])))).level >= (
        risk.assess(risk.RatedTool("t", effects(["fs:write"]))).level
    )
