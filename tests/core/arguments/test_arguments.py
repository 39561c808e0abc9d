"""Arguments and standard input of tools, clause by clause of abi.md 4."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from cortexfs.core.arguments import parse
from cortexfs.core.arguments.parse import tool_input
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import json_object
from tests.tables import each_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "text": {"type": "string"},
        "max_results": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "where": {"type": "object"},
        "mode": {"enum": ["fast", "exact", 3, None]},
        "limit": {"type": ["integer", "null"]},
        "pattern": {"type": ["string", "null"]},
        "id": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "size": {"$ref": "#/$defs/size"},
        "any": {},
        "a.b": {"type": "string"},
        "help": {"type": "boolean"},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    },
    "required": ["path", "text"],
    "$defs": {"size": {"type": "integer"}},
}


def no_stdin() -> bytes:
    raise AssertionError("standard input was read")


def piped(data: bytes) -> Callable[[], bytes]:
    return lambda: data


def read(*words: str, schema: dict[str, Any] = SCHEMA) -> dict[str, Any]:
    return tool_input([word.encode() for word in words], schema, no_stdin)


def fault_of(*words: str, schema: dict[str, Any] = SCHEMA) -> Fault:
    with pytest.raises(Fault) as caught:
        read(*words, schema=schema)
    return caught.value


@each_of(
    ("words", "expected"),
    [
        # "one argument that begins with `{` is the input object"
        (['{"path":"a","x":[1]}'], {"path": "a", "x": [1]}),
        (["{}"], {}),
        # "`--name value`, `--name=value`, `--flag`, `--no-flag`"
        (["--path", "a"], {"path": "a"}),
        (["--path=a"], {"path": "a"}),
        (["--path=a=b"], {"path": "a=b"}),
        (["--path="], {"path": ""}),
        (["--deep"], {"deep": True}),
        (["--no-deep"], {"deep": False}),
        (["--deep", "a"], {"deep": True, "path": "a"}),
        (["--deep", "false"], {"deep": False}),
        (["--deep=no"], {"deep": False}),
        # "and, for properties of the schema, `name=value` set properties"
        (["path=a", "text=b=c"], {"path": "a", "text": "b=c"}),
        (["other=a"], {"path": "other=a"}),
        # "converted by the schema's types"
        (["--max_results", "5"], {"max_results": 5}),
        (["--max_results", "-5"], {"max_results": -5}),
        (["--ratio=1e3"], {"ratio": 1000.0}),
        (["--limit=null"], {"limit": None}),
        (["--limit=7"], {"limit": 7}),
        (["--mode=fast"], {"mode": "fast"}),
        (["--mode=3"], {"mode": 3}),
        (["--mode=null"], {"mode": None}),
        (["--size=9"], {"size": 9}),
        (['--where={"a":{"b":[]}}'], {"where": {"a": {"b": []}}}),
        # words.py: where a string is allowed too, only exact JSON notation counts as another value
        (["--id=5"], {"id": 5}),
        (["--id=05"], {"id": "05"}),
        (["--any=1.10"], {"any": "1.10"}),
        (["--any=[1,2]"], {"any": [1, 2]}),
        (['--any={"a" : 1}'], {"any": {"a": 1}}),
        (["--any=[1,"], {"any": "[1,"}),
        (["--any=99999999999999999999"], {"any": "99999999999999999999"}),
        (["--pattern=null"], {"pattern": "null"}),
        (["--path=5"], {"path": "5"}),
        # "bare words fill the required properties in schema order"
        (["a"], {"path": "a"}),
        (["a", "b"], {"path": "a", "text": "b"}),
        (["b", "--path=a"], {"path": "a", "text": "b"}),
        (["-5", ""], {"path": "-5", "text": ""}),
        # "`--` ends flags"
        (["--", "--deep", "path=x"], {"path": "--deep", "text": "path=x"}),
        (["--deep", "--", "-v"], {"deep": True, "path": "-v"}),
        (["--", '{"a":1}'], {"path": '{"a":1}'}),
        # the word after a flag is its value, even if it looks like a flag
        (["--path", "--deep"], {"path": "--deep"}),
        # "repeating an array property appends"
        (["--tags", "a"], {"tags": ["a"]}),
        (["--tags", "a", "--tags=b", "tags=c"], {"tags": ["a", "b", "c"]}),
        (["--tags", "a", '--tags=["b","c"]'], {"tags": ["a", "b", "c"]}),
        (["--tags=[]"], {"tags": []}),
        (["--sizes", "1", "--sizes", "-2"], {"sizes": [1, -2]}),
        (["--grid=[1,2]", "--grid=[3]"], {"grid": [[1, 2], [3]]}),
        (["--grid=[[1,2],[3]]"], {"grid": [[1, 2], [3]]}),
        # "-" and "_" stand for each other
        (["--max-results=1"], {"max_results": 1}),
        (["max-results=1"], {"max_results": 1}),
        (["--a.b=x"], {"a.b": "x"}),
        (["--help=true"], {"help": True}),
        (["ü"], {"path": "ü"}),
    ],
)
def test_words_become_the_input(words: list[str], expected: dict[str, Any]) -> None:
    # abi.md 4.8, 4.9, 4.10; and 4.2: `read` fails if standard input is read.
    assert read(*words) == expected


@each_of(
    ("words", "said"),
    [
        # "an unknown flag is EINVAL"
        (["--pth=a"], "unknown flag --pth; did you mean --path?"),
        (["--zzzzzz"], "unknown flag --zzzzzz; known flags: --path"),
        (["-v"], "unknown flag -v"),
        (["--no-path"], "unknown flag --no-path"),
        (["--no-deep=1"], "--no-deep takes no value"),
        (["--path"], "--path needs a value"),
        # more words than properties
        (["a", "b", "c"], 'surplus word "c": this call takes path, text; known flags: --'),
        (["a", "b", "--deep", "c"], "--sizes"),
        (["--path=a", "--path=b"], "path: is given 2 times"),
        (["--deep", "--no-deep"], "deep: is given 2 times"),
        # "`path: expected string, got number`"
        (["--max_results=abc"], 'max_results: expected integer, got "abc"'),
        (["--max_results="], 'max_results: expected integer, got ""'),
        (["--max_results=007"], "max_results: expected integer"),
        (["--max_results=1.5"], "max_results: expected integer"),
        (["--max_results=1e400"], "max_results: expected integer"),
        (["--max_results=18446744073709551616"], "max_results: is an integer that 64 bits cannot hold"),
        (["--max_results=" + "9" * 100_000], "max_results: is an integer that 64 bits cannot hold"),
        (["--ratio=1e400"], "ratio: is out of the range of numbers"),
        (["--ratio=NaN"], "ratio: expected number"),
        (["--ratio=Infinity"], "ratio: expected number"),
        (["--ratio=٣"], "ratio: expected number"),
        (["--deep=maybe"], "deep: expected boolean"),
        (["--sizes=1", "--sizes=x"], 'sizes[1]: expected integer, got "x"'),
        (["--grid=1"], 'grid[0]: expected array, got "1"'),
        (["--tags=[1"], "tags: is not one JSON value"),
        (["--where=x"], "where: expected object"),
        (['--where={"a":[1e400]}'], "where.a[0]: is out of the range"),
        (["--where=" + '{"a":' * 10_000 + "1" + "}" * 10_000], "where: is nested in more than 100 levels"),
        # one argument that begins with `{`
        (["{"], "input: is not one JSON value"),
        (['{"a":1} {"b":2}'], "input: is not one JSON value"),
        # "at most one -"
        (["-", "-"], "standard input can be read only once"),
        (["--tags=-", "--tags", "-"], "standard input can be read only once"),
    ],
)
def test_a_mistake_is_einval_with_its_place(words: list[str], said: str) -> None:
    fault = fault_of(*words)
    assert fault.code == "EINVAL"
    assert said in fault.message


@each_of(
    ("words", "data", "expected"),
    [
        (["-"], b"hello\n", {"path": "hello\n"}),
        (["--text", "-", "a"], b"x", {"text": "x", "path": "a"}),
        (["--text=-"], b"", {"text": ""}),
        (["text=-"], "ü".encode(), {"text": "ü"}),
        (["--", "-"], b"x", {"path": "x"}),
        (["--max_results=-"], b"12\n", {"max_results": 12}),
        (["--where=-"], b'{"a": 1}\n', {"where": {"a": 1}}),
        (["--tags=a", "--tags=-", "--tags=b"], b"x y", {"tags": ["a", "x y", "b"]}),
        (["--sizes=-"], b" [1, 2]\n", {"sizes": [1, 2]}),
    ],
)
def test_a_dash_is_the_text_of_standard_input(
    words: list[str], data: bytes, expected: dict[str, Any]
) -> None:
    # abi.md 4.3
    assert tool_input([word.encode() for word in words], SCHEMA, piped(data)) == expected


@each_of("words", [["-", "--max_results=x"], ["-", "--nope"], ["-", "a", "b"]])
def test_a_mistake_is_told_before_standard_input_is_read(words: list[str]) -> None:
    # parse.py: "Mistakes in arguments are a `Fault` before standard input is read"
    assert fault_of(*words).code == "EINVAL"


@each_of(
    ("data", "expected"),
    [
        (b'{"path":"a"}\n', {"path": "a"}),
        (b"", {}),  # "empty stdin is `{}`"
        (b" \n\t", {}),
        (b'{"a":1,"a":2}', {"a": 2}),  # jsontext.py: "Of duplicate keys the last one counts"
        (b'{"a":18446744073709551615,"b":-9223372036854775808}', {"a": (1 << 64) - 1, "b": -(1 << 63)}),
        (b'{"a":"' + b"9" * 5000 + b'"}', {"a": "9" * 5000}),
        (b'{"a":' + b"[" * 99 + b"]" * 99 + b"}", None),
    ],
)
def test_without_arguments_standard_input_is_one_object(data: bytes, expected: dict[str, Any] | None) -> None:
    value = tool_input([], SCHEMA, piped(data))
    assert list(value) == ["a"] if expected is None else value == expected


@each_of(
    ("data", "said"),
    [
        (b"[1]", "input: expected object, got array"),
        (b"5", "input: expected object, got number"),
        (b"null", "input: expected object, got null"),
        (b"hello", "input: is not one JSON value"),
        (b'{"a":1}{"b":1}', "input: is not one JSON value: trailing characters"),
        (b'{"a":NaN}', "input: is not one JSON value"),
        (b'{"a":"\xff"}', "it is not UTF-8"),
        (b'{"a":"\\ud800"}', "input: is not one JSON value"),
        (b'{"a":{"b.c":[0,1e400]}}', 'a["b.c"][1]: is out of the range of numbers'),
        (b'{"a":-1e999}', "a: is out of the range"),
        (b'{"a":[18446744073709551616]}', "a[0]: is an integer that 64 bits cannot hold"),
        (b'{"b":0.5,"a":[1,' + b"7" * 5000 + b"]}", "a[1]: is out of the range"),
        (b"[" * 10_000 + b"]" * 10_000, "nested in more than 100 levels"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested in more than 100 levels"),
        (b'{"a":' * 1_000_000, "nested in more than 100 levels"),
    ],
)
def test_what_is_not_one_bounded_object_is_einval(data: bytes, said: str) -> None:
    with pytest.raises(Fault, match="EINVAL") as caught:
        json_object(data)
    assert said in caught.value.message


def test_who_pipes_text_is_told_how() -> None:
    # docs/ctx.md: "An argument `-` asks for it: its text becomes the value in that place"
    for data in (b"hello", b"5", b"\n[1]"):
        with pytest.raises(Fault, match="to pipe text, give - as an argument"):
            tool_input([], SCHEMA, piped(data))
    with pytest.raises(Fault, match="byte 1") as caught:
        tool_input([], SCHEMA, piped(b"{x"))
    assert "-" not in caught.value.message
    assert tool_input([b"-"], {**SCHEMA, "required": ["text"]}, piped(b"hello")) == {"text": "hello"}


def test_input_over_16_mib_is_emsgsize(monkeypatch: pytest.MonkeyPatch) -> None:
    # "At most 16 MiB of input; more is EMSGSIZE", arguments and standard input together
    most = 1000  # in place of 16 MiB, of which tests/core/test_limits.py has the edge
    monkeypatch.setattr(parse, "MAX_INPUT", most)
    over = b" " * (most + 1)
    calls: list[tuple[list[bytes], Callable[[], bytes]]] = [
        ([], piped(over)),
        ([over], no_stdin),
        ([b"-", b"x"], piped(over[2:])),
    ]
    for args, stdin in calls:
        with pytest.raises(Fault, match="EMSGSIZE"):
            tool_input(args, SCHEMA, stdin)
    assert tool_input([b"-", b"xy"], SCHEMA, piped(over[4:]))["text"] == "xy"


@each_of("args", [[b"\xff"], [b"--path=\xff"], [b"--\xff=1"], [b"a", b"b\xc3"]])
def test_invalid_utf8_is_einval(args: list[bytes]) -> None:
    # "Invalid UTF-8 where text is expected is EINVAL"
    with pytest.raises(Fault, match=r"EINVAL: argument \d is not UTF-8"):
        tool_input(args, SCHEMA, no_stdin)


def test_invalid_utf8_on_standard_input_is_einval() -> None:
    with pytest.raises(Fault, match="EINVAL: standard input is not UTF-8: byte 1 is 0xff"):
        tool_input([b"-"], SCHEMA, piped(b"a\xff"))


def test_the_last_array_takes_the_words_that_are_left() -> None:
    schema = {
        "properties": {"to": {"type": "string"}, "from": {"type": "array", "items": {"type": "string"}}},
        "required": ["to", "from"],
    }
    assert read("a", "b", "c", schema=schema) == {"to": "a", "from": ["b", "c"]}
    assert read("--to=a", "b", schema=schema) == {"to": "a", "from": ["b"]}
    assert read("a", schema=schema) == {"to": "a"}
    assert "surplus" in fault_of("a", "b", "--from=c", schema=schema).message


def test_a_name_that_may_mean_two_properties_is_refused() -> None:
    schema = {"properties": {"a-b_c": {"type": "string"}, "a_b-c": {"type": "string"}}}
    assert read("--a-b_c=1", schema=schema) == {"a-b_c": "1"}
    assert '"a_b_c" may mean a-b_c or a_b-c' in fault_of("--a_b_c=1", schema=schema).message


def test_a_property_named_like_a_negation_is_itself() -> None:
    schema = {"properties": {"color": {"type": "boolean"}, "no-color": {"type": "boolean"}}}
    assert read("--no-color", schema=schema) == {"no-color": True}


def test_properties_are_found_through_references_and_combinations() -> None:
    schema = {
        "$ref": "#/$defs/call",
        "$defs": {
            "call": {
                "allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}],
                "anyOf": [{"properties": {"b": {"type": "boolean"}}, "required": ["b"]}],
            }
        },
    }
    assert read("5", "--b", schema=schema) == {"a": 5, "b": True}


@each_of(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}, {"$ref": "#"}]},
        {"properties": {"a": {"$ref": "#/properties/a"}}},
        {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}, {"$ref": "#/properties/a"}]}}},
        {"properties": {"a": {"type": "array", "items": {"$ref": "#/properties/a"}}}},
        {"properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a", "a", "b", 1]},
        {"properties": {"a": True, "b": 5}, "required": "a"},
        {"properties": [], "required": {}},
        {"properties": {"a": {"type": ["nonsense", 5], "enum": {}, "anyOf": 1}}},
    ],
)
def test_a_circular_or_wrong_schema_still_answers(schema: dict[str, Any]) -> None:
    # schema.py: "every dict gets an answer, also a wrong schema, which validation refuses elsewhere"
    with contextlib.suppress(Fault):
        assert read("--a", "x", schema=schema)["a"] in ("x", ["x"])


def test_a_message_stays_short_whatever_was_given() -> None:
    # an error has to fit into a line of frames
    long = "x" * 200_000
    schema = {"properties": {f"name{n}": {} for n in range(1000)}, "required": ["name1"]}
    for words in (["--" + long], ["a", long], ["--" + long + "=1"]):
        assert len(fault_of(*words, schema=schema).message) < 1000
    with pytest.raises(Fault) as caught:
        json_object(b'{"' + b"k" * 200_000 + b'":1e999}')
    assert len(caught.value.message) < 1000


def test_help_among_other_arguments_is_no_flag_of_the_schema() -> None:
    assert "must be the only argument" in fault_of("--help", "x", schema={}).message
    assert read("--help", "x") == {"help": True, "path": "x"}
