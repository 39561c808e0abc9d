"""manifest.toml: accepted values, their defaults, and the sentences by which other values are refused."""

from __future__ import annotations

import tomllib
from typing import Any, get_args

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifest import targets
from cortexfs.core.manifest import toml as m
from cortexfs.core.manifest.toml import decode, decode_package
from cortexfs.sdk import effects
from tests.tables import each_of

TOP = 'name = "notes"\nversion = "0.1.0"\ndescription = "Keeps notes"\n'
TOOL = '[[native.tools]]\nname = "add"\ndescription = "Adds a note"\ncommand = "bin/add"\ninput_schema = {}\n'
EFFECT = (
    'effects = [{kind = "read_file", reversibility = "reversible", confirmation = "never", '
    'dry_run = "supported"%s}]\n'
)


def manifest(text: str = "", top: str = TOP) -> m.Manifest:
    return decode(tomllib.loads(top + text))


def tool(text: str = "") -> m.DeclaredProcessTool:
    native = manifest(TOOL + text).native
    assert native
    return native.tools[0]


def refused(text: str, top: str = TOP) -> str:
    with pytest.raises(Fault) as caught:
        manifest(text, top)
    assert caught.value.code == "EINVAL"
    assert caught.value.message.startswith("invalid manifest.toml: ")
    return caught.value.message.removeprefix("invalid manifest.toml: ")


def test_what_is_left_out_has_its_default() -> None:
    # abi.md 11.1
    assert manifest() == m.Manifest("notes", "0.1.0", "Keeps notes")
    found = msgspec.json.decode(msgspec.json.encode(manifest()))
    assert found == {
        "name": "notes",
        "version": "0.1.0",
        "description": "Keeps notes",
        "author": "",
        "cortex_version": "",
        "trust": "unreviewed_process",
        "capabilities": {
            "provides": [],
            "file_read": [],
            "file_write": [],
            "network": [],
            "process": False,
            "secrets": False,
            "background": False,
        },
        "sandbox": {
            "level": "child_process",
            "network": "inherit",
            "filesystem": None,
            "writable_paths": [],
            "seccomp": "",
            "uid_drop": False,
            "memory_mb": None,
            "cpu_seconds": None,
        },
        "package": dict.fromkeys(
            [
                "publisher_id",
                "manifest_sha256",
                "binary_sha256",
                "signature_algorithm",
                "public_key",
                "signature",
                "sbom",
                "risk_profile",
            ],
            "",
        )
        | {"conformance": None},
        "native": None,
        "python": None,
        "plugin_type": "Tool",
        "dependencies": [],
    }


def test_a_process_tool_has_its_defaults() -> None:
    # abi.md 11.1
    found = tool()
    assert (found.args, found.working_dir, found.allow_host_paths, found.env) == ((), None, False, {})
    assert (found.effects, found.max_memory_bytes, found.max_cpu_secs) == ((), None, None)
    # "empty means ["PATH"]"
    assert found.inherited == tool("inherit_env = []\n").inherited == ("PATH",)
    assert tool('inherit_env = ["HOME"]\n').inherited == ("HOME",)
    # "1048576, stdout+stderr together"
    assert found.output_limit == 1048576
    assert tool("max_output_bytes = 0\n").output_limit == 0
    # "none = no process timeout; 0 also = none at runtime"
    assert targets.seconds_of(found.timeout_secs) is None
    assert targets.seconds_of(tool("timeout_secs = 0\n").timeout_secs) is None
    # abi.md 11.36
    assert targets.seconds_of(tool(f"timeout_secs = {(1 << 64) - 1}\n").timeout_secs) == targets.MAX_TIMEOUT
    assert targets.seconds_of(tool("timeout_secs = 7\n").timeout_secs) == 7


def test_native_and_certificates_have_their_defaults() -> None:
    # abi.md 11.1
    assert manifest("[native]\n").native == m.Native("", None, "process", ())
    # conformance = {suite, passed=false, checked_at, checks=[{name, passed, message=""}]}
    table = {"conformance": {"suite": "cortex", "checks": [{"name": "abi", "passed": True}]}}
    assert decode_package(table).conformance == m.Conformance(
        "cortex", False, "", (m.CertificationCheck("abi", True, ""),)
    )


def test_every_field_is_taken() -> None:
    text = (
        'author = "A"\ncortex_version = "1.6.4"\ntrust = "trusted_native"\nplugin_type = "Llm"\n'
        'dependencies = ["other"]\n[capabilities]\nprovides = ["tools", "unheard_of"]\nfile_read = ["/a"]\n'
        'file_write = ["/b"]\nnetwork = ["h"]\nprocess = true\nsecrets = true\nbackground = true\n'
        '[sandbox]\nlevel = "system_sandbox"\nnetwork = "none"\nfilesystem = "declared_paths"\n'
        'writable_paths = ["/c"]\nseccomp = "default"\nuid_drop = true\nmemory_mb = 64\ncpu_seconds = 3\n'
        '[native]\nlibrary = "lib/x.so"\nabi_version = 1\nisolation = "trusted_in_process"\n'
    )
    tools = TOOL + (
        'args = ["-v"]\nworking_dir = "data"\nallow_host_paths = true\ninherit_env = ["HOME"]\n'
        'env = {LANG = "C"}\ntimeout_secs = 5\n'
        "max_output_bytes = 9\nmax_memory_bytes = 10\nmax_cpu_secs = 11\n"
    )
    found = manifest(text + tools)
    native = m.Native("lib/x.so", 1, "trusted_in_process", (found.native or m.Native()).tools)
    assert found.native == native
    assert found.capabilities == m.ManifestCapabilities(
        # "unknown names silently kept"
        ("tools", "unheard_of"), ("/a",), ("/b",), ("h",), True, True, True
    )  # fmt: skip
    assert found.sandbox == m.ManifestSandbox(
        "system_sandbox", "none", "declared_paths", ("/c",), "default", True, 64, 3
    )
    assert native.tools[0] == m.DeclaredProcessTool(
        "add", "Adds a note", "bin/add", {}, ("-v",), "data", True, ("HOME",), {"LANG": "C"}, 5, 9, 10, 11
    )
    assert (found.author, found.trust, found.plugin_type, found.dependencies) == (
        "A", "trusted_native", "Llm", ("other",)
    )  # fmt: skip


@each_of(
    "text",
    [
        "extra = 1\n",
        "[capabilities]\nextra = 1\n",
        "[sandbox]\nextra = 1\n",
        "[package]\nextra = 1\n",
        '[package.conformance]\nsuite = "s"\nextra = 1\n',
        '[package.conformance]\nsuite = "s"\nchecks = [{name = "n", passed = true, extra = 1}]\n',
        "[native]\nextra = 1\n",
        TOOL + "extra = 1\n",
    ],
)
def test_an_unknown_field_is_refused(text: str) -> None:
    # abi.md 11.2
    assert refused(text).startswith("unknown key ")
    assert "extra; known are name, " in refused("extra = 1\n")


def test_effects_may_hold_more() -> None:
    # abi.md 11.2
    found = tool(EFFECT % ', note = "x"').effects
    assert found == (m.ManifestEffect("read_file", "reversible", "never", "supported", ""),)
    assert tool(EFFECT % ', target = "/etc"').effects[0].target == "/etc"
    for key in ("kind", "reversibility", "confirmation", "dry_run"):
        without = EFFECT.replace(f"{key} =", f"{key}x =") % ""
        assert refused(TOOL + without) == f"missing key native.tools[0].effects[0].{key}; it is required"


@each_of("field", ["name", "version", "description"])
def test_three_fields_are_required(field: str) -> None:
    top = "".join(line for line in TOP.splitlines(True) if not line.startswith(field))
    assert refused("", top) == f"missing key {field}; it is required"


@each_of("field", ["name", "description", "command", "input_schema"])
def test_four_fields_of_a_tool_are_required(field: str) -> None:
    text = "".join(line for line in TOOL.splitlines(True) if not line.startswith(field))
    assert refused(text) == f"missing key native.tools[0].{field}; it is required"


@each_of(
    ("text", "sentence"),
    [
        ('nmae = "x"\n', "unknown key nmae; did you mean name?"),
        ('[native]\nlibary = ""\n', "unknown key native.libary; did you mean library?"),
        (TOOL + "timeout = 1\n", "unknown key native.tools[0].timeout; did you mean timeout_secs?"),
        (
            '[package.conformance]\nsuiet = ""\n',
            "unknown key package.conformance.suiet; did you mean suite?",
        ),
        ('author = ["x"]\n', "author: expected string, got array"),
        ("[capabilities]\nprocess = 1\n", "capabilities.process: expected boolean, got integer"),
        ('[capabilities]\nnetwork = "x"\n', "capabilities.network: expected array, got string"),
        ("native = 3\n", "native: expected table, got integer"),
        ("[native]\nabi_version = 4294967296\n", "native.abi_version: expected integer <= 4294967295"),
        ("[native]\nabi_version = -1\n", "native.abi_version: expected integer >= 0"),
        ("[sandbox]\nmemory_mb = -1\n", "sandbox.memory_mb: expected integer >= 0"),
        ("[sandbox]\ncpu_seconds = 1.5\n", "sandbox.cpu_seconds: expected integer, got float"),
        (TOOL + "timeout_secs = -1\n", "native.tools[0].timeout_secs: expected integer >= 0"),
        (TOOL + 'env = {LANG = "C", N = 1}\n', "native.tools[0].env.NAME: expected string, got integer"),
        (TOOL + 'args = ["a\\u0000"]\n', "native.tools[0].args: contains a NUL character"),
        (TOOL + 'env = {A = "\\u0000"}\n', "native.tools[0].env: contains a NUL character"),
        (TOOL + 'working_dir = "\\u0000"\n', "native.tools[0].working_dir: contains a NUL character"),
        (TOOL + 'env = {"A=B" = ""}\n', 'native.tools[0].env: "A=B" is not the name of a variable'),
        (TOOL + 'inherit_env = [""]\n', "native.tools[0].inherit_env: the name of a variable is empty"),
        (TOOL + TOOL, "native.tools[1].name: another tool is called add; rename one of them"),
    ],
)
def test_a_fault_names_the_field_and_the_mend(text: str, sentence: str) -> None:
    assert refused(text).startswith(sentence)


@each_of(
    ("text", "field", "words"),
    [
        ('trust = "TrustedNative"\n', "trust", m.Trust),
        ('[sandbox]\nlevel = "x"\n', "sandbox.level", m.Level),
        ('[sandbox]\nnetwork = "x"\n', "sandbox.network", m.Network),
        ('[sandbox]\nfilesystem = "x"\n', "sandbox.filesystem", m.Filesystem),
        ('[native]\nisolation = "x"\n', "native.isolation", m.Isolation),
        # "(PascalCase)"
        ('plugin_type = "tool"\n', "plugin_type", m.PluginType),
        (TOOL + (EFFECT % "").replace("read_file", "x"), "native.tools[0].effects[0].kind", m.EffectKind),
        (
            TOOL + (EFFECT % "").replace("never", "x"),
            "native.tools[0].effects[0].confirmation",
            m.Confirmation,
        ),
        (TOOL + (EFFECT % "").replace("supported", "x"), "native.tools[0].effects[0].dry_run", m.DryRun),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_ones(text: str, field: str, words: Any) -> None:
    assert refused(text) == f"{field}: expected one of {', '.join(get_args(words))}"


def test_the_words_of_effects_are_those_of_the_sdk() -> None:
    # abi.md 10.6, 10.8
    assert get_args(m.EffectKind) == tuple(effects.ToolEffectKind)
    assert get_args(m.Reversibility) == tuple(effects.EffectReversibility)
    assert get_args(m.Confirmation) == tuple(effects.EffectConfirmation)
    assert get_args(m.DryRun) == tuple(effects.DryRunSupport)


@each_of("schema", ["{}", "true", '"x"', "[1]", '{type = "object", default = 1.5}'])
def test_an_input_schema_is_any_json_value(schema: str) -> None:
    # the validator decides if it is a schema
    text = TOOL.replace("input_schema = {}", f"input_schema = {schema}")
    assert (manifest(text).native or m.Native()).tools[0].input_schema == tomllib.loads(f"x = {schema}")["x"]


@each_of("schema", ["1979-05-27", "{a = [07:32:00]}", "nan", "{a = -inf}", "18446744073709551616"])
def test_what_json_cannot_hold_is_refused(schema: str) -> None:
    text = TOOL.replace("input_schema = {}", f"input_schema = {schema}")
    assert "not a JSON value; write it as a string" in refused(text)


@each_of("name", ["../../x", "", ".x", "a/b", "/etc", "x.d", "x.sock", "a b", "a\nb", "é", "x" * 65])
def test_a_name_cannot_lead_anywhere(name: str) -> None:
    # abi.md 2.4, 11.26
    assert refused("", TOP.replace('"notes"', msgspec.json.encode(name).decode())).startswith(
        "name: the name "
    )
    if name:
        tools = TOOL.replace('"add"', msgspec.json.encode(name).decode())
        assert refused(tools).startswith("native.tools[0].name: the name ")


def test_a_name_is_not_that_of_a_backup() -> None:
    # abi.md 11.17: such a plugin could never be loaded
    assert refused("", TOP.replace("notes", "notes.bak")).startswith(
        "name: the name 'notes.bak' ends in .bak"
    )


@each_of("version", ["1/2", "../1", "1 2", "1\n"])
def test_a_version_fits_a_file_name(version: str) -> None:
    # abi.md 11.25
    top = TOP.replace('"0.1.0"', msgspec.json.encode(version).decode())
    assert refused("", top).startswith("version: the version ")


def test_a_blank_version_is_for_the_review() -> None:
    # abi.md 11.3
    assert manifest("", TOP.replace("0.1.0", " ")).version == " "


def test_nesting_is_bounded() -> None:
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    with pytest.raises(Fault, match="more than 100 levels"):
        decode({"name": "notes", "version": "1", "description": "", "native": deep})


def test_package_metadata_has_its_own_file_in_the_fault() -> None:
    # abi.md 11.7
    with pytest.raises(Fault, match=r"^EINVAL: invalid package metadata /p/package.toml: unknown key sobm"):
        decode_package({"sobm": ""}, "package metadata /p/package.toml")
    with pytest.raises(Fault, match=r"^EINVAL: invalid package.toml: unknown key conformance.suit; did you"):
        decode_package({"conformance": {"suit": ""}})
