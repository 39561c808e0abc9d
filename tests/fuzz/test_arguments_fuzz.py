"""Any command line gives an input or a `Fault`, and flags can express all that JSON can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cortexfs.core.arguments.parse import prompt, tool_input
from cortexfs.core.arguments.usage import complete, help_text, usage
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import json_object
from cortexfs.host.call.validation import Validator

# No test fails because of time, and no example is stored.
CALM = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
NAMES = st.text("ab_-.no", min_size=1, max_size=5)
LEAVES = st.one_of(
    st.builds(lambda type_: {"type": type_}, st.sampled_from(TYPES)),
    st.builds(lambda types: {"type": types}, st.lists(st.sampled_from(TYPES), min_size=1, unique=True)),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.one_of(st.none(), st.integers(), st.text()), min_size=1)
    ),
    st.builds(lambda name: {"$ref": f"#/properties/{name}"}, NAMES),
    st.just({}),
)
PROPERTIES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(
            lambda key, branches: {key: branches}, st.sampled_from(["anyOf", "allOf"]), st.lists(inner)
        ),
    ),
    max_leaves=4,
)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, PROPERTIES, max_size=5))
    return {"properties": properties, "required": draw(st.lists(NAMES | st.sampled_from([*properties, "x"])))}


def likely_words(schema: dict[str, Any]) -> st.SearchStrategy[bytes]:
    names = st.sampled_from([*schema["properties"], "no-a", "help"]).map(str.encode)
    values = st.sampled_from(
        [b"", b"-", b"--", b"1", b"-5", b"true", b"null", b"[1", b"[]", b"{}", b"[[1],2]", b"1e999"]
    )
    built = st.builds(
        lambda dashes, name, equals, value: dashes + name + equals + value,
        st.sampled_from([b"", b"-", b"--", b"--no-"]), names, st.sampled_from([b"", b"="]), values,
    )  # fmt: skip
    return st.one_of(st.binary(max_size=8), values, built)


def outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    """Returns the result of the call, and the code of its fault or an empty text."""
    try:
        return call(), ""
    except Fault as fault:
        return None, fault.code


@CALM
@given(st.data(), schemas())
def test_random_words_give_an_input_or_a_fault(data: st.DataObject, schema: dict[str, Any]) -> None:
    args = data.draw(st.lists(likely_words(schema), max_size=6))
    stdin = data.draw(st.binary(max_size=20))
    value, code = outcome(lambda: tool_input(args, schema, lambda: stdin))
    assert code in ("", "EINVAL")
    if not code:
        assert json_object(msgspec.json.encode(value)) == value
        assert outcome(lambda: Validator(schema).check(value))[1] in ("", "EINVAL", "EPROTO")


@CALM
@given(st.lists(st.binary(max_size=20), max_size=4), st.binary(max_size=50))
def test_random_bytes_give_a_prompt_or_a_fault(args: list[bytes], stdin: bytes) -> None:
    value, code = outcome(lambda: prompt(args, stdin))
    assert code == "" if value else code == "EINVAL"


@CALM
@given(st.binary(max_size=200) | st.text('{}[]":,0123456789e.-+ntrufalse ', max_size=60).map(str.encode))
def test_random_bytes_give_an_object_or_a_fault(data: bytes) -> None:
    value, code = outcome(lambda: json_object(data))
    assert code in ("", "EINVAL")
    assert code or json_object(msgspec.json.encode(value)) == value


@CALM
@given(schemas(), st.lists(st.text(max_size=6), max_size=4))
def test_any_schema_has_usage_help_and_completion(schema: dict[str, Any], words: list[str]) -> None:
    for text in (usage("t", schema), help_text("t", "", schema)):
        assert text.endswith("\n")
        assert text.encode()
    complete(schema, words)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
# Each type, with the values that a word can express. "-" alone stands for standard input.
WORDS: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "s": ({"type": "string"}, st.text().filter(lambda text: text != "-")),
    "i": ({"type": "integer"}, st.integers(-(1 << 63), (1 << 64) - 1)),
    "n": ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False)),
    "b": ({"type": "boolean"}, st.booleans()),
    "z": ({"type": ["integer", "null"]}, st.none() | st.integers(-100, 100)),
    "l": ({"type": "array", "items": {"type": "integer"}}, st.lists(st.integers(-100, 100))),
    "t": ({"type": "array"}, st.lists(JSON)),
    "o": ({"type": "object"}, st.dictionaries(st.text(), JSON)),
    "snake_name": ({"enum": ["x", "y z", 3, None, True]}, st.sampled_from(["x", "y z", 3, None, True])),
}
OBJECTS = st.fixed_dictionaries({}, optional={name: values for name, (_, values) in WORDS.items()})
STYLES = st.sampled_from(["--{}={}", "{}={}", "--{} {}"])


def as_word(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@CALM
@given(OBJECTS, st.data())
def test_an_object_said_in_flags_is_read_as_itself(value: dict[str, Any], data: st.DataObject) -> None:
    # abi.md 4.8: properties are converted to the types of the schema
    args: list[bytes] = []
    for name, part in value.items():
        pattern = data.draw(STYLES) if name != "b" else "--{}={}"
        label = name.replace("_", "-")
        if pattern == "--{} {}":
            args += [f"--{label}".encode(), as_word(part).encode()]
        else:
            args.append(pattern.format(label, as_word(part)).encode())
    schema = {"type": "object", "properties": {name: schema for name, (schema, _) in WORDS.items()}}
    parsed = tool_input(args, schema, lambda: b"")
    assert parsed == value
    Validator(schema).check(parsed)
