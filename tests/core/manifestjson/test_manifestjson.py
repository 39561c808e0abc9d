"""manifest.json: all that abi.md 9 accepts and refuses, and cases that it leaves open."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cortexfs.core import manifestjson
from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson import entry, problems
from tests.core.manifest_json import EVERYTHING, SOUND, found, manifest, read, read_value, spoilt
from tests.tables import each_of

REQUIRED = ("name", "version", "description", "kind", "entryPoint", "runtime", "capabilities")


# A part of EVERYTHING, its required members, its optional members (abi.md 9.1).
MEMBERS: tuple[tuple[tuple[str | int, ...], str, str], ...] = (
    ((), " ".join(REQUIRED), " ".join(EVERYTHING.keys() - set(REQUIRED))),
    (("tools", 0), "name description params", ""),
    (("tools", 0, "params", 0), "name type description", "required"),
    (("tools", 0, "params", 1), "name type description", "enum"),
    (("cliCommands", 0), "name description", "args options"),
    (("cliCommands", 0, "args", 0), "name type description", "required"),
    (("cliCommands", 0, "options", 0), "name type description flag", ""),
    (("ui",), "", "panels widgets settings"),
    (("ui", "panels", 0), "id title htmlPath", "icon"),
    (("ui", "widgets", 0), "id title type config", ""),
    (("ui", "settings", 0), "section fields", ""),
    # abi.md 9.19
    (("ui", "settings", 0, "fields", 0), "key label type options", ""),
    (("ui", "settings", 0, "fields", 3), "key label type", "description"),
    (("ui", "settings", 0, "fields", 0, "options", 0), "label value", ""),
    (("config",), "", "providers settings"),
    (("config", "providers", 0), "kind label defaultModel", ""),
)


def test_everything_that_the_reference_names_is_read() -> None:
    # abi.md 9.1
    result = read_value(EVERYTHING)
    assert (result.errors, result.warnings) == ((), ())
    assert result.manifest
    # nothing of it is lost: all written members are kept, and defaults fill the rest
    kept = msgspec.json.decode(msgspec.json.encode(result.manifest))
    assert all(kept[key] == EVERYTHING[key] for key in EVERYTHING.keys() - {"tools", "ui"})
    assert result.manifest.tools[0].params[1].enum == ("words", "lines")
    assert result.manifest.ui.panels[0].html_path == "panel/index.html"
    assert [field.type for field in result.manifest.ui.settings[0].fields] == [
        "select", "number", "boolean", "text", "secret",
    ]  # fmt: skip


def test_only_the_required_fields_are_required() -> None:
    # abi.md 9.1: these seven, and no other
    assert found() == []
    for key in REQUIRED:
        assert found(**{key: ...}) == [("missing_field", key)]
    assert read_value({}).errors == tuple(
        problems.Problem("missing_field", key, "is missing", "add it: it is required") for key in REQUIRED
    )


def test_a_value_of_another_type_is_refused_wherever_it_stands() -> None:
    # abi.md 9.1, and the interfaces: every member has a type; none is nullable
    for way, required, optional in MEMBERS:
        for member in f"{required} {optional}".split():
            for value in (None, 7):
                wrong = spoilt(way, member, value).errors
                assert [one.category for one in wrong] == ["wrong_type"], (way, member)
                assert wrong[0].path.endswith(member)
    inside: list[tuple[str, str | int]] = [
        ("capabilities", 0),
        ("events", 0),
        ("dependencies", "a"),
        ("tools", 0),
    ]
    for key, item in inside:
        assert [one.category for one in spoilt((key,), item, 7).errors] == ["wrong_type"]
    assert spoilt(("peerDependencies",), "@a/b", 7).errors[0].path == 'peerDependencies["@a/b"]'


def test_only_the_members_without_a_question_mark_are_required() -> None:
    # abi.md 9.15, 9.16, 9.18, 9.19
    for way, required, optional in MEMBERS:
        for member in required.split():
            wrong = spoilt(way, member).errors
            assert [one.category for one in wrong] == ["missing_field"], (way, member)
            assert wrong[0].path.endswith(member)
        for member in optional.split():
            result = spoilt(way, member)
            assert (result.errors, result.warnings) == ((), ()), (way, member)
    # "defaultValue: unknown": of the originals: 10 of 35 real manifests leave it away
    result = spoilt(("ui", "settings", 0, "fields", 1), "defaultValue")
    assert [(one.category, one.path) for one in result.warnings] == [
        ("missing_default", "ui.settings[0].fields[1].defaultValue")
    ]


def test_names_are_kebab_case() -> None:
    # abi.md 9.2
    for name in ("a", "my-plugin", "cortex-plugin-context7", "3d"):
        assert found(name=name) == []
    for name in (
        "My-plugin",
        "my_plugin",
        "-a",
        "a-",
        "a--b",
        "a b",
        "",
        ".",
        "a/b",
        "@acme/a",
        "ä",
        "a" * 65,
    ):
        assert found(name=name) == [("invalid_name", "name")], name
    # Of the originals: "cortex" is the host, not a plugin
    assert found(name="cortex") == [("invalid_name", "name")]
    assert "the key author has it" in read(name="@acme/a").errors[0].mend


def test_the_version_is_semver() -> None:
    # abi.md 9.3
    for version in ("1.2.3", "0.0.0", "2.0.0-alpha.1"):
        assert found(version=version) == []
    for version in ("1.2", "v1.2.3", "1.2.3.4", "latest", ""):
        assert found(version=version) == [("invalid_version", "version")], version


def test_the_description_is_one_line() -> None:
    # abi.md 9.4
    assert found(description="Knows — more than “words”\u00a0🙂") == []
    for text in ("", "  ", "a\nb", "a\x1b[31m"):
        assert found(description=text) == [("invalid_description", "description")]


def test_kind_and_runtime_are_of_the_lists_and_fit_each_other() -> None:
    # abi.md 9.5, 9.27
    assert found(kind="python") == [("invalid_kind", "kind")]
    assert found(runtime="node") == [("invalid_runtime", "runtime")]
    entries = {"esm": "./mod.ts", "mcp": "https://example.com/rpc", "wasm": "plugin.wasm"}
    for kind, entry_point in entries.items():
        for runtime in ("deno", "wasm"):
            wrong = [] if entry.PAIRS[kind] == runtime else [("kind_runtime_mismatch", "runtime")]
            assert found(kind=kind, runtime=runtime, entryPoint=entry_point) == wrong
    assert entry.PAIRS == {"esm": "deno", "mcp": "deno", "wasm": "wasm"}


# kind: entry points that it accepts, and entry points that it refuses
ENTRY_POINTS = {
    # abi.md 9.6
    "esm": (
        "mod.ts ./mod.ts src/a/mod.js a..b.ts /opt/plugins/a/mod.ts file:///opt/a/mod.ts "
        "https://example.com https://example.com:8443/a/mod.ts?v=1 jsr:@std/path jsr:@std/path@1.0.0/posix "
        "npm:ms npm:ms@2.1.3 npm:@scope/name@^1.0/sub",
        "../mod.ts a/../../b.ts ./ . /a/../b src/ http://example.com/mod.ts http://127.0.0.1/mod.ts "
        "ftp://a/b data:text/javascript,1 node:fs file://host/a file:mod.ts https:// https:///a "
        "HTTPS://a C:\\a a\\b.ts jsr:std/path npm: npm:UPPER blob:x javascript:1",
    ),
    # abi.md 9.27; issue 6: "https only but for loopback"
    "mcp": (
        "https://example.com/rpc https://[2001:db8::1]/ http://127.0.0.1:8080/rpc http://localhost/ "
        "http://[::1]:1/",
        "http://example.com http://localhost.example.com http://127.0.0.1.example.com "
        "http://127.0.0.1@evil.example https://user@example.com ./server.ts "
        "/srv stdio:cmd wss://example.com file:///a npm:server",
    ),
    # abi.md 9.29
    "wasm": (
        "plugin.wasm ./build/plugin.wasm https://example.com/plugin.wasm",
        "plugin.js /opt/plugin.wasm file:///opt/plugin.wasm ../plugin.wasm http://127.0.0.1/plugin.wasm "
        "jsr:@a/b .wasm/",
    ),
}  # fmt: skip


def test_each_kind_takes_its_entry_points_and_no_others() -> None:
    for kind, (taken, refused) in ENTRY_POINTS.items():
        for text in taken.split():
            assert found(kind=kind, runtime=entry.PAIRS[kind], entryPoint=text) == [], text
        for text in (*refused.split(), "", "a b", "a\nb", "https://a b/", "./x\x00.ts"):
            if text == "a b" and kind == "esm":  # a file name may hold a space
                continue
            wrong = found(kind=kind, runtime=entry.PAIRS[kind], entryPoint=text)
            assert wrong == [("invalid_entry_point", "entryPoint")], text


def test_an_entry_point_is_told_by_its_form() -> None:
    forms = {"./a/./mod.ts": "relative", "/a.ts": "absolute", "jsr:@a/b": "jsr", "https://a/b": "https"}
    assert {text: found.form for text in forms if (found := entry.entry_of(text))} == forms
    assert entry.entry_of("./a/./mod.ts") == entry.EntryPoint("relative", "a/mod.ts")


@each_of(
    ("text", "files"),
    {
        "./a/./mod.ts": ["a/mod.ts"],
        "/opt/a/mod.ts": ["opt/a/mod.ts", "a/mod.ts", "mod.ts"],
        "file:///opt/my%20p/mod.ts": ["opt/my p/mod.ts", "my p/mod.ts", "mod.ts"],
        "file:///opt/%2e%2e/mod.ts": ["mod.ts"],
        "file:///opt/%2F%00": [],
        "npm:a": [],
        "https://a/mod.ts": [],
    }.items(),
)
def test_a_path_is_the_file_of_the_package_that_it_ends_in(text: str, files: list[str]) -> None:
    # abi.md 9.6
    given = entry.entry_of(text)
    assert given is not None
    assert [*entry.files_of(given)] == files


def test_capabilities_are_of_the_list_and_declared_once() -> None:
    # abi.md 9.7
    assert found(capabilities=[]) == []
    assert found(capabilities=["config:auth"]) == [("unknown_capability", "capabilities[0]")]
    assert found(capabilities=["tools", "fs:read", "tools"]) == [("duplicate_capability", "capabilities[2]")]
    # "memory:store — Custom memory backend (reserved for future use)"
    assert found(capabilities=["memory:store"]) == [("reserved_capability", "capabilities[0]")]
    assert "did you mean network:fetch?" in read(capabilities=["network:fetsh"]).errors[0].mend


def test_what_is_contributed_needs_its_capability() -> None:
    # abi.md 9.7, 9.13
    for key, member, category in (
        ("events", None, "events_without_capability"),
        ("tools", None, "missing_capability"),
        ("cliCommands", None, "missing_capability"),
        ("ui", "panels", "missing_capability"),
        ("ui", "widgets", "missing_capability"),
        ("config", "providers", "missing_capability"),
        # must not be an error: 24 of 35 real manifests have settings, and none declares config:schema
        ("ui", "settings", "settings_without_capability"),
    ):
        given = {member: EVERYTHING[key][member]} if member else EVERYTHING[key]
        path = f"{key}.{member}" if member else key
        assert found(**{key: given}, capabilities=[]) == [(category, path)]
        assert found(**{key: [] if member is None else {member: []}}, capabilities=[]) == []


def test_events_are_of_the_list() -> None:
    # abi.md 9.13, 9.41
    listening = ["events:listener"]
    assert found(capabilities=listening, events=["session:begin"]) == [("unknown_event", "events[0]")]
    assert found(capabilities=listening, events=["daemon:status"] * 2) == [("duplicate_name", "events[1]")]


def test_dependencies_are_names_and_ranges() -> None:
    # abi.md 9.11, 9.12
    for key in ("dependencies", "peerDependencies"):
        assert found(**{key: {"a": "^1.0", "b": ">=2.0", "c": "*", "cortex": ">=0.51.0"}}) == []
        for name, range_ in (("a", "newest"), ("A", "*"), ("my-plugin", "*"), ("", "*")):
            assert [one for one, _ in found(**{key: {name: range_}})] == ["invalid_dependency"], name
        assert read(**{key: {"a": "=>1"}}).errors[0].path == f"{key}.a"
        assert found(**{key: {f"p{number}": "*" for number in range(201)}}) == [("invalid_dependency", key)]


def test_hash_and_signature_have_their_form() -> None:
    # abi.md 9.9, 9.10
    digits = "0123456789abcdefABCDEF" + "0" * 42
    assert found(hash=f"sha256:{digits}", signature="aGk=") == []
    for hash_ in ("", digits, "sha256:" + digits[1:], f"sha512:{digits}", f"sha256:{digits} "):
        assert found(hash=hash_) == [("invalid_hash", "hash")]
    for signature in ("", "aGk", "a b=", "-----BEGIN PGP SIGNATURE-----"):
        assert found(signature=signature) == [("invalid_signature", "signature")]


def test_what_is_recommended_is_only_a_warning() -> None:
    # abi.md 9.8
    assert found(license="GPL-2.0-only WITH Classpath-exception-2.0", repository="git+https://a/b.git") == []
    assert found(license="do what you want") == [("not_spdx", "license")]
    assert found(homepage="example") == [("not_a_url", "homepage")]
    assert read(license="?").manifest is not None


def tool(**changes: Any) -> dict[str, Any]:
    param = {"name": "a", "type": "string", "description": ""}
    return {"name": "count", "description": "", "params": [param]} | changes


def test_tools_are_declared_soundly() -> None:
    # abi.md 9.15
    for type_ in ("string", "number", "boolean", "object", "array"):
        param = {"name": "a", "type": type_, "description": ""}
        assert found(tools=[tool(params=[param])]) == []
        wrong = [] if type_ == "string" else [("invalid_value", "tools[0].params[0].enum")]
        assert found(tools=[tool(params=[param | {"enum": ["x"]}])]) == wrong
    assert found(tools=[tool(params=[param | {"type": "integer"}])]) == [
        ("invalid_value", "tools[0].params[0].type")
    ]
    assert found(tools=[tool(), tool()]) == [("duplicate_name", "tools[1].name")]
    assert found(tools=[tool(params=[param, param])]) == [("duplicate_name", "tools[0].params[1].name")]
    # a tool's name becomes a file of the tree (abi.md 2.4)
    assert found(tools=[tool(name="a/b")]) == [("invalid_name", "tools[0].name")]


def test_commands_are_declared_soundly() -> None:
    # abi.md 9.16
    def command(**changes: Any) -> dict[str, Any]:
        given = {"name": "c", "description": ""} | changes
        return {"capabilities": ["cli:commands"], "cliCommands": [given]}

    argument = {"name": "file", "type": "string", "description": ""}
    option = {"name": "all", "type": "boolean", "description": "", "flag": "-a"}
    assert found(**command(args=[argument], options=[option])) == []
    where = "cliCommands[0].options[0]"
    assert found(**command(options=[option | {"flag": "--all"}])) == [("invalid_value", f"{where}.flag")]
    assert found(**command(options=[option | {"name": "--all"}])) == [("invalid_name", f"{where}.name")]
    # abi.md 9.16
    assert found(**command(options=[option | {"type": "array"}])) == [("invalid_value", f"{where}.type")]
    # abi.md 9.17
    twice = command(args=[argument], options=[option | {"name": "file"}])
    assert found(**twice) == [("duplicate_name", f"{where}.name")]
    flags = command(options=[option, option | {"name": "any"}])
    assert found(**flags) == [("duplicate_name", "cliCommands[0].options[1].flag")]
    assert found(**command(name="a b")) == [("invalid_name", "cliCommands[0].name")]


def test_panels_and_widgets_are_declared_soundly() -> None:
    # abi.md 9.18
    def part(key: str, *given: dict[str, Any]) -> dict[str, Any]:
        return {"capabilities": ["ui:panel", "ui:widget"], "ui": {key: given}}

    panel = {"id": "main", "title": "Main", "htmlPath": "./a/b.html"}
    widget = {"id": "w", "title": "W", "type": "html", "config": {}}
    assert found(**part("panels", panel)) == []
    assert found(**part("panels", panel, panel)) == [("duplicate_name", "ui.panels[1].id")]
    assert found(**part("panels", panel | {"id": "a/b"})) == [("invalid_name", "ui.panels[0].id")]
    for path in ("../b.html", "/etc/passwd", "https://a/b.html", "", "a/"):
        assert found(**part("panels", panel | {"htmlPath": path})) == [
            ("invalid_path", "ui.panels[0].htmlPath")
        ]
    # "type: 'html' | 'chart' | 'table'"
    assert found(**part("widgets", widget | {"type": "table"})) == []
    assert found(**part("widgets", widget | {"type": "map"})) == [("invalid_value", "ui.widgets[0].type")]
    assert found(**part("widgets", widget, widget)) == [("duplicate_name", "ui.widgets[1].id")]
    assert found(**part("widgets", widget | {"id": "a/b"})) == [("invalid_name", "ui.widgets[0].id")]


def test_providers_are_declared_soundly() -> None:
    # abi.md 9.22
    def providers(*kinds: str) -> dict[str, Any]:
        given = [{"kind": kind, "label": "", "defaultModel": "m"} for kind in kinds]
        return {"capabilities": ["config:provider"], "config": {"providers": given}}

    assert found(**providers("acme", "other")) == []
    assert found(**providers("acme", "acme")) == [("duplicate_name", "config.providers[1].kind")]
    assert found(**providers("a/b")) == [("invalid_name", "config.providers[0].kind")]


def test_unknown_keys_are_warnings_wherever_they_stand() -> None:
    strange = {"aiDisclosed": {"tools": []}, "tools": [tool(params=[{**tool()["params"][0], "deflt": 1}])]}
    assert found(**strange) == [
        ("unknown_key", "tools[0].params[0].deflt"),
        ("unknown_key", "aiDisclosed"),
    ]
    assert "did you mean entryPoint?" in read(entrypoint="x").warnings[0].mend
    assert found(config={"properties": {}}) == [("unknown_key", "config.properties")]


def test_each_problem_names_file_field_and_mend() -> None:
    # issue 6: errors name file, field and mend
    with pytest.raises(Fault) as raised:
        manifestjson.checked(msgspec.json.encode(SOUND | {"capabilities": ["fs:raed"]}), "a/manifest.json")
    said = 'a/manifest.json: capabilities[0]: "fs:raed" is no capability; remove it; did you mean fs:read?'
    assert (raised.value.code, raised.value.message) == ("EINVAL", said)
    with pytest.raises(Fault, match=r"^EINVAL: manifest.json: name: is missing; .* \(6 more\)$"):
        manifestjson.checked(b"{}")
    whole, warnings = manifestjson.checked(msgspec.json.encode(SOUND | {"x": 1}))
    assert whole == manifest()
    assert [one.sentence("m") for one in warnings] == ["m: x: is an unknown key; it is ignored"]


def test_what_is_no_json_object_is_refused() -> None:
    deep = b'{"config":{"settings":' + b'{"a":' * 200 + b"1" + b"}" * 202
    for data in (b"", b"{", b"[]", b"null", b'"a"', b"\xff", b"{} {}", deep, b'{"a":' + b"9" * 500 + b"}"):
        assert [one.category for one in manifestjson.read(data).errors] == ["invalid_json"], data[:20]
    large = b'{"description":"' + b"a" * manifestjson.MAX_BYTES + b'"}'
    assert manifestjson.read(large).errors[0].fault.startswith("is larger than")


def test_a_hostile_manifest_ends_after_a_bounded_number_of_problems() -> None:
    # errors behind the last reported problem are not missed: too many problems are an error themselves
    keys = {f"key{number}": 1 for number in range(1000)}
    result = read_value(SOUND | keys)
    assert [one.category for one in result.errors] == ["too_many_problems"]
    assert len(result.warnings) == manifestjson.MAX_PROBLEMS
    assert read(capabilities=["x"] * 1000).manifest is None
