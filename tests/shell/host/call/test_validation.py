"""Inputs against schemas (abi.md 4.15)."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.host.call.validation import Validator
from cortexfs.host.call.wrong_tool import WrongTool, schema_fault

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
SHAPES = {
    "anyOf": [
        {"properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}, "required": ["kind", "n"]},
        {"properties": {"kind": {"const": "b"}, "s": {"type": "string"}}, "required": ["kind", "s"]},
    ]
}


def at(path: str, schema: object) -> dict[str, Any]:
    """Returns a schema with `schema` for the property `path`; the complaint begins with that name."""
    return {"type": "object", "properties": {path: schema}}


def complaint(schema: Any, input: object, code: str = "EINVAL") -> str:
    with pytest.raises(Fault) as caught:
        Validator(schema).check(input)
    assert caught.value.code == code
    return caught.value.message


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        # "`path: expected string, got number`", to the letter
        (at("path", {"type": "string"}), {"path": 5}, "path: expected string, got number"),
        ({"type": "object"}, [], "input: expected object, got array"),
        (at("n", {"type": "integer"}), {"n": 1.5}, "n: expected integer, got number"),
        (at("n", {"type": ["integer", "null"]}), {"n": True}, "n: expected integer or null, got boolean"),
        (
            at("items", {"items": {"properties": {"name": {"type": "string"}}}}),
            {"items": [{}, {}, {"name": None}]},
            "items[2].name: expected string, got null",
        ),
        (at("a.b", {"type": "string"}), {"a.b": {}}, '["a.b"]: expected string, got object'),
        (at("mode", {"enum": ["r", "w"]}), {"mode": "x"}, 'mode: expected one of "r", "w", got "x"'),
        (at("v", {"const": 2}), {"v": 1}, "v: expected 2, got 1"),
        ({"required": ["path"]}, {}, "path: is required"),
        (at("o", {"required": ["p"]}), {"o": {}}, "o.p: is required"),
        (
            {"properties": {"path": {}}, "additionalProperties": False},
            {"pth": 1},
            "pth: is an unknown property; did you mean path?",
        ),
        ({"properties": {"path": {}}, "unevaluatedProperties": False}, {"z": 1}, "z: is an unknown property"),
        ({"additionalProperties": False}, {"a": 1}, "input: takes no properties"),
        (
            {
                "$defs": {"p": {"properties": {"path": {}}, "additionalProperties": False}},
                **at("x", {"$ref": "#/$defs/p"}),
            },
            {"x": {"pat": 1}},
            "x.pat: is an unknown property; did you mean path?",
        ),
        (at("n", {"minimum": 1}), {"n": 0}, "n: must be at least 1, got 0"),
        (at("n", {"maximum": 1}), {"n": 2}, "n: must be at most 1, got 2"),
        (at("n", {"exclusiveMinimum": 1}), {"n": 1}, "n: must be more than 1, got 1"),
        (at("n", {"exclusiveMaximum": 1}), {"n": 1}, "n: must be less than 1, got 1"),
        (at("n", {"multipleOf": 5}), {"n": 7}, "n: must be a multiple of 5, got 7"),
        (at("s", {"minLength": 2}), {"s": "ü"}, "s: must have at least 2 characters, has 1"),
        (at("s", {"maxLength": 1}), {"s": "ab"}, "s: must have at most 1 character, has 2"),
        (at("s", {"pattern": "^a+$"}), {"s": "b"}, 's: must match the pattern ^a+$, got "b"'),
        (at("s", {"format": "date"}), {"s": "b"}, 's: must be a valid date, got "b"'),
        (at("l", {"minItems": 1}), {"l": []}, "l: must have at least 1 element, has 0"),
        (at("l", {"maxItems": 1}), {"l": [1, 2]}, "l: must have at most 1 element, has 2"),
        (at("l", {"uniqueItems": True}), {"l": [1, 1]}, "l: must not have the same element twice"),
        (at("l", {"contains": {"const": 1}}), {"l": [2]}, "l: has no elements of the kind"),
        (at("l", {"contains": {}, "minContains": 2}), {"l": [2]}, "l: has too few elements"),
        (at("l", {"contains": {}, "maxContains": 1}), {"l": [2, 3]}, "l: has too many elements"),
        (at("l", {"prefixItems": [{}], "items": False}), {"l": [1, 2]}, "l[1]: is not allowed here"),
        (
            at("l", {"prefixItems": [{}], "unevaluatedItems": False}),
            {"l": [1, 2]},
            "l: has more elements than",
        ),
        (at("o", {"minProperties": 1}), {"o": {}}, "o: must have at least 1 property, has 0"),
        (at("o", {"maxProperties": 0}), {"o": {"a": 1}}, "o: must have at most 0 properties, has 1"),
        (
            at("o", {"propertyNames": {"maxLength": 1}}),
            {"o": {"ab": 1}},
            'o: the property name "ab" must have at most 1 character, has 2',
        ),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "b: is required beside a property that is given"),
        ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, "b: is required"),
        (at("s", {"not": {"type": "string"}}), {"s": ""}, 's: must not fit {"type":"string"}'),
        (at("n", {"if": {"minimum": 5}, "then": {"maximum": 7}}), {"n": 8}, "n: must be at most 7, got 8"),
        (at("n", {"if": {"minimum": 5}, "else": {"minimum": 3}}), {"n": 2}, "n: must be at least 3, got 2"),
        (at("a", False), {"a": 1}, "a: is not allowed here"),
        # alternatives: the complaint names what all of them want, else the alternative that came closest
        (
            at("u", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
            {"u": 4},
            "u: expected string or null, got number",
        ),
        (at("u", {"oneOf": [{"const": 1}, {"const": 2}]}), {"u": 4}, "u: expected one of 1, 2, got 4"),
        (
            at("u", {"anyOf": [{"type": "integer"}, {"const": "auto"}]}),
            {"u": "on"},
            'u: expected integer or "auto", got "on"',
        ),
        (
            at("u", {"anyOf": [{"type": "string"}, {"items": {"type": "string"}, "type": "array"}]}),
            {"u": ["a", 1]},
            "u[1]: expected string, got number",
        ),
        (at("u", {"oneOf": [{}, {"minimum": 1}]}), {"u": 2}, "u: fits 2 alternatives of the schema"),
        (SHAPES, {"kind": "a", "n": ""}, "n: expected integer, got string"),
        (SHAPES, {"kind": "b"}, "s: is required"),
        (SHAPES, {"kind": "c"}, 'kind: expected one of "a", "b", got "c"'),
        # older drafts, chosen by $schema
        ({"$schema": DRAFT_7, "items": [{}], "additionalItems": False}, [1, 2], "input: has more elements"),
        ({"$schema": DRAFT_7, "contentEncoding": "base64"}, "%", "input: must be encoded as base64"),
        (
            {"$schema": DRAFT_7, "contentMediaType": "application/json"},
            "%",
            "input: must hold application/json",
        ),
    ],
)
def test_a_wrong_input_is_told_with_its_path(schema: dict[str, Any], value: object, said: str) -> None:
    message = complaint(schema, value)
    assert message.startswith(said)
    assert message.count("\n") == 0


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, {"any": [1, None]}),
        (at("n", {"type": "integer"}), {"n": 5.0}),
        (at("n", {"type": "integer"}), {"n": (1 << 64) - 1}),
        (SHAPES, {"kind": "a", "n": 1}),
        ({"properties": {"next": {"$ref": "#"}}, "additionalProperties": False}, {"next": {"next": {}}}),
        (at("x", {"format": "something of ours"}), {"x": "y"}),
    ],
)
def test_a_right_input_passes(schema: dict[str, Any], value: object) -> None:
    validator = Validator(schema)
    for _ in range(2):
        validator.check(value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "strin"}, "the tool's schema is wrong at type: expected "),
        (
            at("a", {"pattern": "("}),
            'the tool\'s schema is wrong at properties.a.pattern: must be a valid regex, got "("',
        ),
        (at("a", {"minimum": "1"}), "the tool's schema is wrong at properties.a.minimum: expected number"),
        ({"required": "a"}, "the tool's schema is wrong at required: expected array, got string"),
        ({"$ref": "#/nope"}, "the tool's schema is wrong at the top: Pointer '/nope' does not exist"),
        ({"$schema": "http://127.0.0.1:1/x"}, "the tool's schema is wrong at the top: Unknown meta-schema"),
        ([1], "the tool's schema is wrong at the top: expected boolean or object, got array"),
        ({"a": object()}, "the tool's schema is not JSON"),
    ],
)
def test_a_wrong_schema_is_the_plugins_fault(schema: Any, said: str) -> None:
    assert complaint(schema, {}, "EPROTO").startswith(said)


@pytest.mark.parametrize("reference", ["http://127.0.0.1:1/x.json", "file:///etc/passwd", "other.json"])
def test_references_outside_the_schema_are_never_fetched(reference: str) -> None:
    # validation.py: "References outside the schema are never fetched"
    assert "is not present in a registry" in complaint({"$ref": reference}, {}, "EPROTO")


LINEAR = r"^(a+)+$"
BACKTRACKING = r"^(?=a)(a|aa|a.)+\1\1b$"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"pattern": LINEAR}, "input: must match the pattern ^(a+)+$"),
        ({"pattern": BACKTRACKING}, "input: takes too long to match with the schema's pattern"),
        ({"not": {"pattern": BACKTRACKING}}, "input: takes too long to match with the schema's pattern"),
    ],
)
def test_a_catastrophic_pattern_ends_in_a_refusal(schema: dict[str, Any], said: str) -> None:
    # validation.py: "If another pattern gives up after BACKTRACKS steps, the input is refused."
    assert complaint(schema, "a" * 5000 + "!").startswith(said)


def test_deep_values_are_refused_before_they_reach_the_validator() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    recursive = {"items": {"$ref": "#"}}
    assert complaint(recursive, deep) == "input: is nested in more than 100 levels"
    while isinstance(deep, list):  # freed level by level: freeing all at once would recurse
        deep = deep.pop()


@pytest.mark.parametrize("depth", [300, 10_000])
def test_deep_schemas_are_refused(depth: int) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    assert "the tool's schema is wrong at the top: is nested" in complaint(schema, {}, "EPROTO")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ],
)
def test_a_circular_schema_ends(schema: dict[str, Any]) -> None:
    Validator(schema).check({})


def test_no_input_is_checked_to_list_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    # checking with this schema takes hours, and the checking thread blocks all others
    doubled = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    monkeypatch.setattr(Validator, "check", None)
    tool = WrongTool("x", "")
    tool.input_schema = {"$ref": "#/$defs/a0", "$defs": doubled | {"a40": {}}}
    assert schema_fault(tool) == ""


@pytest.mark.parametrize("value", [b"x", "\ud800", {1: 2}, object()])
def test_what_json_cannot_hold_is_einval(value: object) -> None:
    assert complaint(at("a", {"enum": ["x", {}]}), {"a": value}).startswith("input: is not JSON")


def test_a_large_input_is_refused_without_an_account_of_each_error() -> None:
    # validation.py: LARGE
    strings = {"type": "array", "items": {"type": "string"}}
    many = [1] * 100_000
    assert complaint({"anyOf": [strings, {"type": "null"}]}, many).endswith("too large to say where")
    assert complaint(strings, many) == "[0]: expected string, got number"


def test_a_complaint_stays_short() -> None:
    long = "x" * 2_000_000
    assert len(complaint({"enum": [long, "a"]}, long + "y")) < 1000
    assert len(complaint({"additionalProperties": False, "properties": {"a": {}}}, {long: 1})) < 1000
    assert len(complaint({"pattern": "a" * 10_000}, "b")) < 1000
