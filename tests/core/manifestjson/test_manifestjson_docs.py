"""All that docs/manifest-json.md shows matches the code."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import inspect

from cortexfs.core import hooks, manifestjson
from cortexfs.core.manifestjson import entry, settings
from cortexfs.core.manifestjson.capabilities import CAPABILITIES
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.core.manifestjson.problems import ERRORS, WARNINGS
from cortexfs.plugins import dependencies
from cortexfs.plugins.package import manifest_hash
from tests.places import PROJECT

PAGE = (PROJECT / "docs" / "manifest-json.md").read_text()
EXAMPLE = re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
PROGRAM = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
WORDS = {
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.AnyType: "any",
    inspect.StructType: "object",
}


def table(first: str) -> list[list[str]]:
    """Returns the rows of the table whose first column has this title, one for each name in that column.
    Missing cells at the end of a row are empty."""
    found = re.search(rf"^\| {first} \|.*\n(\|[-|]+)\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert found
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in found[2].splitlines()]
    rows = [row + [""] * (found[1].count("|") - 1 - len(row)) for row in rows]
    return [[name, *rest] for names, *rest in rows for name in names.split(", ")]


def inner(type_: inspect.Type) -> inspect.Type:
    return type_.types[0] if isinstance(type_, inspect.UnionType) else type_


def word(type_: inspect.Type) -> str:
    if isinstance(type_, inspect.LiteralType):
        return f"one of {', '.join(sorted(map(str, type_.values)))}"
    if isinstance(type_, inspect.VarTupleType):
        return "list of strings" if isinstance(type_.item_type, inspect.StrType) else "list"
    if isinstance(type_, inspect.DictType):
        return "map of strings" if isinstance(type_.value_type, inspect.StrType) else "object"
    return WORDS[type(type_)]


def keys(type_: inspect.Type, path: str = "") -> Iterator[list[str]]:
    """Yields each key below a type, bold if it is required, with its type."""
    if isinstance(type_, inspect.VarTupleType):
        yield from keys(type_.item_type, path.removesuffix(".") + "[].")
    if isinstance(type_, inspect.StructType):
        for field in type_.fields:
            name = f"{path}{field.encode_name}"
            yield [f"**{name}**" if field.required else name, word(inner(field.type))]
            yield from keys(inner(field.type), f"{path}{field.encode_name}.")


def test_the_keys_are_those_of_the_code() -> None:
    assert [row[:2] for row in table("key")] == list(keys(inspect.type_info(JsonManifest)))


def test_the_kinds_and_capabilities_are_those_of_the_code() -> None:
    assert table("kind") == [
        [kind, entry.PAIRS[kind], ", ".join(forms)] for kind, forms in entry.FORMS.items()
    ]
    rows = []
    for name, one in CAPABILITIES.items():
        effects = [(effect.kind, effect.confirmation) for effect in one.effects] or [("", "")]
        about = f"{one.about} (reserved)" if one.reserved else one.about
        rows.append([name, about, *effects[0], one.deno or ""])
        assert len(effects) == 1
    assert table("capability") == rows


def test_settings_events_hooks_and_exports_are_those_of_the_code() -> None:
    assert table("type") == [[type_, about] for type_, (about, _) in settings.TYPES.items()]
    events = {
        name: ", ".join(" ".join(one) for one in members.items()) for name, members in hooks.EVENTS.items()
    }
    assert dict(table("event")) == events
    assert table("export") == [[name, capability or ""] for name, capability in hooks.EXPORTS.items()]
    assert dict(table("when")) == {when: ", ".join(hooks) for when, hooks in hooks.LIFECYCLE.items()}
    assert f"answers to {dependencies.HOST_VERSION}." in PAGE


def test_errors_and_warnings_are_those_of_the_code() -> None:
    assert dict(table("error")) == ERRORS
    assert dict(table("warning")) == WARNINGS


def test_the_example_is_sound() -> None:
    result = manifestjson.read(EXAMPLE.encode())
    assert (result.errors, result.warnings) == ((), ())


def test_the_program_prints_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    for path in ("manifest.json", "lib/a.ts", "lib-b.ts", "lib.ts", ".hidden", "lib/ü.ts", "package.toml"):
        (tmp_path / path).write_text(path)
    number = '"config": {"settings": {"a": 1e16, "b": 1.0, "c": "é\\u0001", "d": -0.0}}, "hash": "x", '
    (tmp_path / "manifest.json").write_text(EXAMPLE.replace('"kind"', f'{number}"kind"'))
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(PROGRAM, "docs/manifest-json.md", "exec"), {})
    paths = (path for path in tmp_path.rglob("*") if path.is_file())
    files = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in paths}
    assert printed.getvalue() == manifest_hash.package_digest(files) + "\n"
