"""Claims of a plugin: versions, trust, sandbox, boundaries, and the effects that follow from them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.governance import HOST_VERSION, Mechanism, claims, tool_effects
from cortexfs.core.manifest.toml import Manifest, decode
from cortexfs.sdk import effects
from tests.tables import each_of

EVERY = frozenset(Mechanism)
NONE: frozenset[Mechanism] = frozenset()
PLAIN = frozenset((Mechanism.PROCESS, Mechanism.RLIMITS))
NATIVE = {"isolation": "trusted_in_process", "abi_version": 1}
TRUSTED = {"trust": "trusted_native", "native": NATIVE}
TOOL = {"name": "add", "description": "Adds", "command": "bin/add", "input_schema": {}}


def manifest(**fields: Any) -> Manifest:
    return decode({"name": "notes", "version": "1.0.0", "description": "d", **fields})


def refused(available: frozenset[Mechanism] = EVERY, **fields: Any) -> str:
    with pytest.raises(Fault) as caught:
        governance.check(manifest(**fields), available)
    return caught.value.message


def version_fault(wanted: str) -> Fault:
    with pytest.raises(Fault) as caught:
        governance.check_version(manifest(cortex_version=wanted))
    return caught.value


@each_of("wanted", ["1.6.9", "1.6.8", "1.5.999", "0.0.0", "0.18446744073709551615.0", "01.6.9"])
def test_cortex_version_is_a_minimum(wanted: str) -> None:
    # abi.md 11.4; issue: "this host answers to 1.6.9"
    assert HOST_VERSION == "1.6.9"
    made = manifest(cortex_version=wanted)
    governance.check_version(made)
    assert governance.newer(made) == []


@each_of("wanted", ["1.6.10", "1.6.14", "1.7.0", "1.18446744073709551615.0"])
def test_one_for_a_newer_host_of_the_same_interfaces_runs_and_is_told(wanted: str) -> None:
    # abi.md 11.34
    made = manifest(cortex_version=wanted)
    governance.check_version(made)
    (warning,) = governance.newer(made)
    assert warning.startswith(f"cortex_version: it was made for {wanted}; it runs")
    assert warning.endswith("features newer than 1.6.9 are missing here")


@each_of("wanted", ["2.0.0", "18446744073709551615.0.0"])
def test_other_interfaces_are_not_to_be_had(wanted: str) -> None:
    fault = version_fault(wanted)
    assert fault.message == f"it needs {wanted} or newer, and this host has 1.6.9"
    assert fault.code == "ENOTSUP"


def test_cortex_version_is_required() -> None:
    # abi.md 11.4
    mend = '; write cortex_version = "1.6.9", or the oldest version that it runs on'
    assert version_fault("").message == f"cortex_version is required{mend}"


@each_of("wanted", [">=1.6.9", "<2.0.0", "^1.6.9", "~1.6.9", "1.6.*", "*"])
def test_version_ranges_are_not_accepted(wanted: str) -> None:
    assert version_fault(wanted).message.startswith(f"version ranges are not accepted: {wanted}; ")


@each_of(
    "wanted", ["1.6", "1.6.9.0", "v1.6.9", "1.6.9-rc", "1.6.9+b", " 1.6.9", "1.6.9\n", "1..9", "+1.6.9", "x",
               "18446744073709551616.0.0", "9" * 5000 + ".0.0", "1.6.\u0669"]
)  # fmt: skip
def test_a_version_is_three_numbers(wanted: str) -> None:
    # abi.md 11.4
    fault = version_fault(wanted)
    assert fault.message.startswith("invalid cortex version target: ")
    assert fault.message.endswith("; write three numbers, as 1.6.9")
    assert len(fault.message) < 200


@each_of(
    ("fields", "sentence"),
    [
        ({"trust": "disabled"}, "is Disabled"),
        ({"trust": "quarantined"}, "is Quarantined"),
        (
            {"native": NATIVE, "trust": "reviewed_process"},
            "uses trusted_in_process native code but trust is ReviewedProcess",
        ),
        (
            {"native": NATIVE},
            "uses trusted_in_process native code but trust is UnreviewedProcess",
        ),
        (
            {"trust": "trusted_native"},
            "declares trusted_native without trusted_in_process native isolation",
        ),
        (
            {"trust": "trusted_native", "native": {}},
            "declares trusted_native without trusted_in_process native isolation",
        ),
        ({"capabilities": {"secrets": True}}, "is unreviewed but requests secrets capability"),
        (
            {"sandbox": {"network": "none"}, "capabilities": {"network": ["h"]}},
            "requests network hosts but sandbox.network is none",
        ),
        (
            {"sandbox": {"level": "trusted_in_process"}},
            "requests trusted_in_process sandbox without native trusted isolation",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], sentence: str) -> None:
    # abi.md 11.5
    message = refused(**fields)
    assert message.startswith(f"plugin 'notes' {sentence}; ")
    assert not message.endswith("; ")


def test_the_first_hit_is_the_error() -> None:
    # abi.md 11.5
    wrong: list[dict[str, Any]] = [
        {"trust": "disabled"},
        {"native": NATIVE},
        {"capabilities": {"secrets": True, "network": ["h"]}},
        {"sandbox": {"network": "none", "level": "container_vm"}},
    ]
    together: dict[str, Any] = {}
    said = []
    for part in reversed(wrong):
        together |= part
        said.append(refused(**together).split("'")[2].split(";")[0])
    assert said == [
        " declares unsupported sandbox enforcement: container_vm is not enforced by this runtime",
        " is unreviewed but requests secrets capability",
        " uses trusted_in_process native code but trust is UnreviewedProcess",
        " is Disabled",
    ]


def test_a_sound_plugin_passes() -> None:
    governance.check(manifest(), PLAIN)
    governance.check(manifest(**TRUSTED, sandbox={"level": "trusted_in_process"}), PLAIN)
    reviewed = {"trust": "reviewed_process", "capabilities": {"secrets": True}}
    governance.check(manifest(**reviewed), PLAIN)


@each_of(
    ("sandbox", "claim"),
    [
        ({"level": "uid_no_network"}, "uid_no_network is not enforced by this runtime"),
        ({"level": "system_sandbox"}, "system_sandbox is not enforced by this runtime"),
        ({"level": "container_vm"}, "container_vm is not enforced by this runtime"),
        ({"level": "remote_worker"}, "remote_worker isolation is not provided by this runtime"),
        ({"uid_drop": True}, "uid_drop is not enforced by this runtime"),
        ({"seccomp": "default"}, "seccomp profiles are not enforced by this runtime"),
        ({"network": "none"}, "sandbox.network=none is not kernel-enforced by this runtime"),
        # better than: "parsed and NOT enforced, and not rejected either"
        ({"network": "allowlist"}, "sandbox.network=allowlist is not enforced by this runtime"),
        ({"filesystem": "plugin_only"}, "sandbox.filesystem is not enforced by this runtime"),
        ({"filesystem": "read_only_host"}, "sandbox.filesystem is not enforced by this runtime"),
        ({"filesystem": "declared_paths"}, "sandbox.filesystem is not enforced by this runtime"),
        ({"writable_paths": ["/tmp"]}, "sandbox.writable_paths is not enforced by this runtime"),
        ({"memory_mb": 64}, "sandbox.memory_mb is not enforced by this runtime"),
        ({"cpu_seconds": 1}, "sandbox.cpu_seconds is not enforced by this runtime"),
    ],
)
def test_a_claim_that_nothing_holds_is_refused(sandbox: dict[str, Any], claim: str) -> None:
    # abi.md 11.5; issue: "none is accepted and ignored"
    only = frozenset((Mechanism.PROCESS,))
    message = refused(only, sandbox=sandbox)
    assert message.startswith(
        f"plugin 'notes' declares unsupported sandbox enforcement: {claim}; in manifest.toml"
    )


@each_of(
    ("sandbox", "needs"),
    [
        ({}, {Mechanism.PROCESS}),
        ({"seccomp": "default"}, {Mechanism.PROCESS, Mechanism.SECCOMP}),
        ({"network": "none"}, {Mechanism.PROCESS, Mechanism.SECCOMP, Mechanism.LANDLOCK}),
        ({"filesystem": "plugin_only"}, {Mechanism.PROCESS, Mechanism.LANDLOCK}),
        ({"writable_paths": ["/tmp"]}, {Mechanism.PROCESS, Mechanism.LANDLOCK}),
        ({"memory_mb": 0, "cpu_seconds": 1}, {Mechanism.PROCESS, Mechanism.RLIMITS}),
    ],
)
def test_a_claim_is_accepted_exactly_where_everything_that_holds_it_is_there(
    sandbox: dict[str, Any], needs: set[Mechanism]
) -> None:
    governance.check(manifest(sandbox=sandbox), frozenset(needs))
    for missing in needs:
        refused(frozenset(needs - {missing}), sandbox=sandbox)


@each_of(
    "sandbox",
    [
        {"level": "uid_no_network"},
        {"level": "system_sandbox"},
        {"level": "container_vm"},
        {"level": "remote_worker"},
        {"uid_drop": True},
        {"network": "allowlist"},
        {"seccomp": "strict"},
    ],
)
def test_what_no_mechanism_holds_is_refused_everywhere(sandbox: dict[str, Any]) -> None:
    assert "declares unsupported sandbox enforcement" in refused(EVERY, sandbox=sandbox)


def test_every_field_of_the_sandbox_is_a_claim() -> None:
    # all fields, so that a new field must be enforced or refused
    full = {
        "level": "system_sandbox",
        "network": "none",
        "filesystem": "plugin_only",
        "writable_paths": ["/tmp", "/var/tmp"],
        "seccomp": "default",
        "uid_drop": True,
        "memory_mb": 64,
        "cpu_seconds": 1,
    }
    sandbox = manifest(sandbox=full).sandbox
    told = {claim.key.removeprefix("sandbox.") for claim in claims(sandbox)}
    assert told == set(full) == {field.name for field in msgspec.structs.fields(sandbox)}
    lines = [claim.text for claim in claims(sandbox)]
    assert "sandbox.network = none: held by Landlock and seccomp" in lines
    assert "sandbox.writable_paths = /tmp, /var/tmp: held by Landlock" in lines
    assert [*claims(manifest(sandbox={"network": "allowlist"}).sandbox)][1].text.endswith("not limited")


def boundary_fault(**fields: Any) -> str:
    with pytest.raises(Fault) as caught:
        governance.check_boundary(manifest(**fields))
    return caught.value.message


@each_of(("version", "shown"), [(None, "no abi_version"), (0, "abi_version 0"), (2, "abi_version 2")])
def test_a_library_needs_abi_1(version: int | None, shown: str) -> None:
    # abi.md 11.5
    native = {"isolation": "trusted_in_process"} | ({} if version is None else {"abi_version": version})
    message = boundary_fault(trust="trusted_native", native=native)
    assert message.startswith(f"plugin 'notes' has {shown} of its library, and this host takes 1; write ")
    governance.check_boundary(manifest(**TRUSTED))


def test_process_tools_are_there_and_named() -> None:
    # abi.md 11.3
    tools = {"capabilities": {"provides": ["tools"]}}
    assert "requests process isolation but has no [native] section" in boundary_fault(**tools)
    assert "declares no [[native.tools]]" in boundary_fault(**tools, native={})
    for blank in ("", "  "):
        unnamed = {"tools": [TOOL | {"name": blank}]}
        assert "declares a process tool with an empty name" in boundary_fault(**tools, native=unnamed)
        undescribed = {"tools": [TOOL | {"description": blank}]}
        message = boundary_fault(**tools, native=undescribed)
        assert message.startswith("process tool 'add' has an empty description; ")
    governance.check_boundary(manifest(**tools, native={"tools": [TOOL]}))
    # "if provides tools"
    governance.check_boundary(manifest(capabilities={"provides": ["skills"]}))


def test_where_no_library_is_named_it_is_guessed() -> None:
    # abi.md 11.15
    named = decode({"name": "my-notes", "version": "1", "description": "", **TRUSTED})
    assert governance.library_of(named) == "libmy_notes.so"
    assert (
        governance.library_of(manifest(trust="trusted_native", native=NATIVE | {"library": "lib/x.so"}))
        == "lib/x.so"
    )
    assert governance.library_of(manifest(native={"library": "lib/x.so"})) is None


def test_warnings_stand_in_nobodys_way() -> None:
    # abi.md 11.6
    assert governance.warnings(manifest()) == [
        "missing publisher_id",
        "missing package signature",
        "missing SBOM reference",
        "missing recommended risk profile",
        "missing passing conformance certificate",
    ]
    package = {"publisher_id": "p", "signature": "s", "sbom": "b", "risk_profile": "r"}
    failed = manifest(package=package | {"conformance": {"suite": "s"}})
    assert governance.warnings(failed) == ["missing passing conformance certificate"]
    certified = {"package": package | {"conformance": {"suite": "s", "passed": True}}}
    assert governance.warnings(manifest(**certified)) == []
    # upstream: "unknown names silently kept"
    odd = manifest(**certified, capabilities={"provides": ["tools", "toolz"]})
    ignored = 'capabilities.provides: "toolz" is unknown and is ignored; did you mean tools?'
    assert (governance.warnings(odd), governance.unknown_provides(odd)) == ([], [ignored])


def test_each_capability_becomes_an_effect() -> None:
    # abi.md 11.8
    has = {"file_read": ["/a"], "file_write": ["/b"], "network": ["h"]}
    flags = dict.fromkeys(("process", "secrets", "background"), True)
    told = governance.capability_effects(manifest(capabilities=has | flags))
    assert [(each.kind, each.target, each.confirmation) for each in told] == [
        ("read_file", "/a", "on_risk"),
        ("write_file", "/b", "always"),
        ("network_request", "h", "on_risk"),
        ("run_process", "plugin subprocess", "always"),
        ("read_secret", "host secrets", "always"),
        ("schedule_task", "background execution", "always"),
    ]
    assert governance.capability_effects(manifest()) == []


def test_tools_in_python_and_of_a_library_have_the_capabilities_of_processes() -> None:
    # abi.md 11.8
    has = {"file_read": ["/a"], "file_write": ["/b"], "network": ["h"]}
    flags = dict.fromkeys(("process", "secrets", "background"), True)
    told = governance.process_rights(manifest(capabilities=has | flags))
    assert [(each.kind, each.target) for each in told] == [
        ("read_file", "/a"),
        ("write_file", "/b"),
        ("network_request", "h"),
        ("run_process", "plugin subprocess"),
    ]
    # a plugin that declares no process has no rights of a process
    assert governance.process_rights(manifest(python={"entry": "notes:tools"})) == ()


@each_of("kind", list(effects.ToolEffectKind))
def test_an_effect_is_as_the_sdk_has_it(kind: effects.ToolEffectKind) -> None:
    same = effects.ToolEffect(kind, "x")
    told = governance.effect(kind.value, "x")
    assert (told.reversibility, told.confirmation, told.dry_run) == same[2:]


def test_a_process_tool_is_always_a_process() -> None:
    # abi.md 11.8
    process = hostcalls.Effect(
        "run_process", "partially_reversible", "always", "not_supported", "plugin subprocess"
    )
    quiet = manifest(native={"tools": [TOOL]})
    assert quiet.native
    assert tool_effects(quiet, quiet.native.tools[0]) == [process]
    own = {
        "kind": "run_process",
        "reversibility": "reversible",
        "confirmation": "never",
        "dry_run": "supported",
    }
    loud = manifest(native={"tools": [TOOL | {"effects": [own]}]}, capabilities={"file_read": ["/a"]})
    assert loud.native
    assert [each.kind for each in tool_effects(loud, loud.native.tools[0])] == ["read_file", "run_process"]
    capable = manifest(native={"tools": [TOOL]}, capabilities={"process": True})
    assert capable.native
    assert tool_effects(capable, capable.native.tools[0]) == [process]
