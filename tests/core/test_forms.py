"""Forms of MCP's elicitation: their fields, and a person's typed text as values."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core import forms
from cortexfs.core.errors import Fault
from tests.tables import each_of

TITLED = [{"const": "a", "title": "First"}, {"const": "b", "title": "Second"}]
SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "title": "Your name"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number"},
        "sure": {"type": "boolean", "default": False},
        "plain": {"type": "string", "enum": ["x", "y"]},
        "titled": {"type": "string", "oneOf": TITLED},
        "old": {"type": "string", "enum": ["o"], "enumNames": ["Old one"]},
        "many": {"type": "array", "items": {"anyOf": TITLED}},
    },
}
TYPED = [
    ("name", " Ann ", "Ann"),
    ("age", "7", 7),
    ("age", "", 30),
    ("score", "1.5", 1.5),
    ("score", "", None),
    ("sure", "yes", True),
    ("sure", "", False),
    ("plain", "y", "y"),
    ("plain", "1", "x"),
    ("titled", "Second", "b"),
    ("old", "Old one", "o"),
    ("many", "a, 2", ["a", "b"]),
]
WRONG = [
    ("name", "", "name needs an answer"),
    ("age", "x", "age must be a whole number"),
    ("score", "x", "score must be a number"),
    ("sure", "perhaps", "sure must be yes or no"),
    ("plain", "z", "plain must be one of x, y"),
    ("many", "a,c", "many must be one of a, b"),
]


def field(name: str) -> forms.FormField:
    return next(one for one in forms.fields(SCHEMA) if one.name == name)


@each_of(("name", "text", "value"), TYPED)
def test_what_is_typed_is_a_value(name: str, text: str, value: Any) -> None:
    assert field(name).read(text) == value


@each_of(("name", "text", "why"), WRONG)
def test_what_cannot_be_one_is_told(name: str, text: str, why: str) -> None:
    with pytest.raises(Fault, match=why):
        field(name).read(text)


def test_defaults_answer_a_form_that_asks_for_nothing_else() -> None:
    properties = {"age": {"type": "integer", "default": 30}, "score": {"type": "number"}}
    assert forms.defaults(forms.fields({"properties": properties})) == {"age": 30}
    with pytest.raises(Fault, match="needs an answer"):
        forms.defaults(forms.fields(SCHEMA))


@each_of(
    "schema",
    [
        {},
        {"properties": []},
        {"properties": {"a": 1}},
        {"properties": {"a": {"type": "object"}}},
        {"properties": {"a": {"type": "array", "items": 1}}},
        {"properties": {str(number): {"type": "string"} for number in range(101)}},
    ],
)
def test_a_strange_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(Fault):
        forms.fields(schema)


def test_what_is_no_name_is_not_required() -> None:
    strange: list[Any] = [[{}, ["a"], None], {}, 1]
    for required in strange:
        (one,) = forms.fields({"properties": {"a": {"type": "string"}}, "required": required})
        assert not one.required
    (one,) = forms.fields({"properties": {"a": {"type": "string"}}, "required": [{}, "a"]})
    assert one.required


def test_labels_are_one_line() -> None:
    (one,) = forms.fields({"properties": {"a": {"type": "string", "title": "a\nb\x1b[2J"}}})
    assert "\n" not in one.label
    assert "\x1b" not in one.label


def test_so_many_fields_are_a_form_and_more_are_none() -> None:
    properties = {f"f{number}": {"type": "string"} for number in range(forms.MAX_FIELDS)}
    assert len(forms.fields({"properties": properties})) == forms.MAX_FIELDS
    with pytest.raises(Fault, match="over 100 fields"):
        forms.fields({"properties": properties | {"more": {"type": "string"}}})
