"""Manifests as found in real plugins, and as only a test would write them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings, strategies

from cortexfs.core.manifestjson import problems
from cortexfs.core.manifestjson.fields import input_schema
from tests.core.manifest_json import EVERYTHING, read, spoilt


def test_a_manifest_as_they_are_in_the_wild_loads_with_warnings() -> None:
    # Of the originals: what 35 real manifests have beside the reference, or have not
    field = {"key": "host", "label": "Host", "type": "text", "required": True, "default": ""}
    param = {"name": "box", "type": "string", "description": "", "defaultValue": "inbox"}
    wild = read(
        name="cortex-plugin-email",
        entryPoint="mod.ts",
        tools=[{"name": "list", "description": "", "params": [param]}],
        ui={"settings": [{"section": "General", "fields": [field]}]},
        config={"properties": {"host": {"type": "string"}}},
        dependencies={},
        peerDependencies={"cortex": ">=0.51.0"},
        aiDisclosure={"tools": ["any"], "humanReviewed": True},
    )
    assert wild.errors == ()
    assert wild.manifest
    assert sorted((one.category, one.path) for one in wild.warnings) == [
        ("missing_default", "ui.settings[0].fields[0].defaultValue"),
        ("settings_without_capability", "ui.settings"),
        ("unknown_key", "config.properties"),
        ("unknown_key", "ui.settings[0].fields[0].default"),
    ]


def test_words_of_the_wild_are_known() -> None:
    # abi.md 9.44
    choices = [{"label": "Red", "value": "red"}, {"label": "Blue", "value": "blue"}]
    params: list[dict[str, Any]] = [
        {"name": "colour", "type": "enum", "description": "", "options": choices, "defaultValue": "red"},
        {"name": "size", "type": "enum", "description": "", "options": ["s", "m"], "default": "m"},
    ]
    field = {"key": "host", "label": "Host", "type": "text", "required": True, "defaultValue": ""}
    wild = read(
        capabilities=["tools", "config:schema"],
        tools=[{"name": "paint", "description": "", "params": params}],
        ui={"settings": {"fields": [field]}},
        aiDisclosure={"tools": ["any"], "humanReviewed": True},
    )
    assert (wild.errors, wild.warnings) == ((), ())
    assert wild.manifest
    assert input_schema(wild.manifest.tools[0].params)["properties"] == {
        "colour": {"type": "string", "description": "", "enum": ["red", "blue"], "default": "red"},
        "size": {"type": "string", "description": "", "enum": ["s", "m"], "default": "m"},
    }
    (section,) = wild.manifest.ui.settings
    assert [one.required for one in section.fields] == [True]
    without = read(tools=[{"name": "p", "description": "", "params": [params[0] | {"options": []}]}])
    assert [(one.category, one.path) for one in without.errors] == [
        ("missing_field", "tools[0].params[0].options")
    ]


def places(value: Any, way: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for step, child in inner for place in ((*way, step), *places(child, (*way, step)))]


PLACES = places(EVERYTHING)
_LEAF = strategies.none() | strategies.booleans() | strategies.integers(-9, 9) | strategies.text(max_size=5)
_KEY = strategies.text(max_size=5)
VALUES = strategies.recursive(
    _LEAF,
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(_KEY, inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=40, derandomize=True, database=None, deadline=None)
@given(strategies.sampled_from(PLACES), VALUES)
def test_whatever_stands_anywhere_is_a_manifest_or_an_error_with_a_mend(
    place: tuple[str | int, ...], value: Any
) -> None:
    result = spoilt(place[:-1], place[-1], value)
    assert (result.manifest is None) == bool(result.errors)
    for problem in (*result.errors, *result.warnings):
        assert problem.category in problems.ERRORS.keys() | problems.WARNINGS.keys()
        assert problem.fault
        assert problem.mend
        assert "\n" not in problem.sentence("manifest.json")
