"""Completion and examples, word by word: the words offered after others, and the sources of samples."""

from __future__ import annotations

from typing import Any

from cortexfs.core.arguments.schema import kind_of, shape_of
from cortexfs.core.arguments.usage import FILES, complete, examples, help_text
from tests.tables import each_of

SCHEMA: dict[str, Any] = {
    "properties": {
        "path": {"type": "string"},
        "word": {"type": "string"},
        "level": {"enum": ["low", "high"]},
        "count": {"type": "integer"},
        "deep": {"type": "boolean"},
        "file": {"type": "integer"},
    },
    "required": ["path", "level"],
}


@each_of(
    ("words", "offered"),
    [
        (["--level", ""], ["low", "high"]),
        (["--level", "h"], ["high"]),
        (["--level=h"], ["--level=high"]),
        (["level=h"], ["level=high"]),
        (["level"], [FILES, "level="]),
        (["other=h"], [FILES]),
        (["--path", ""], [FILES]),
        (["--word", ""], []),
        (["--file", ""], []),  # no completion of text, whatever its name
        (["README.md", "h"], ["high"]),
        (["a=b", "h"], ["high"]),  # no property of the schema, so it is the path
        (["path=x", "h"], ["high"]),
        (["--path=x", "h"], ["high"]),
        (["--path", "x", "h"], ["high"]),
        (["--deep", "x", "h"], ["high"]),
        (["--", "--path", "h"], ["high"]),
        (["--", "path=x", "l"], ["low"]),
    ],
)
def test_what_a_word_may_become(words: list[str], offered: list[str]) -> None:
    assert complete(SCHEMA, words) == offered


def test_a_property_that_is_used_is_offered_no_more() -> None:
    left = complete(SCHEMA, ["--count=1", "--no-deep", "--"])
    assert "--word" in left
    assert not {"--count", "--deep", "--no-deep"} & {*left}


@each_of(
    ("property_", "said"),
    [
        ({"type": "string", "examples": ["e"], "default": "d"}, "t e"),
        ({"type": "string", "examples": [], "default": "d"}, "t d"),
        ({"type": "string", "examples": "e"}, "t text"),
        ({"type": "integer", "minimum": 7}, "t 7"),
        ({"enum": ["x", "y"]}, "t x"),
        ({"type": "integer"}, "t 1"),
        ({"type": "array", "items": {"enum": ["i"]}}, "t '[\"i\"]'"),
    ],
)
def test_where_a_sample_comes_from(property_: dict[str, Any], said: str) -> None:
    schema = {"properties": {"a": property_}, "required": ["a"]}
    first, _ = examples("t", schema)
    assert first.replace(" -- ", " ") == said


def test_an_example_without_required_properties_has_the_first_option() -> None:
    assert examples("t", {"properties": {"n": {"type": "null"}, "m": {"type": "integer"}}})[0] == "t --m=1"
    assert examples("t", {"properties": {"on": {"type": "boolean"}}})[0] == "t --on"
    assert examples("t", {})[0] == "t '{}'"


def test_a_description_that_is_no_text_is_left_out() -> None:
    others: tuple[Any, ...] = ({}, "", 7)
    for described in others:
        said = help_text("t", "d", {"properties": {"a": {"type": "integer", "description": described}}}, ())
        assert "--a N" in said
        assert "integer\n" in said


def test_the_types_of_a_schema() -> None:
    def types(schema: dict[str, Any]) -> set[str]:
        return set(kind_of(schema, {}).types)

    assert types({"type": ["string", "nonsense", 7]}) == {"string"}
    assert types({"const": 1}) == {"integer"}
    assert types({"enum": [True, "x"]}) == {"boolean", "string"}
    assert types({"anyOf": [{"type": "string"}, {"type": "null"}]}) == {"string", "null"}
    assert types({"allOf": [{"type": ["string", "null"]}, {"type": "string"}]}) == {"string"}
    everything = types({})
    assert types({"allOf": [{"type": "string"}, {"type": "null"}]}) == everything
    assert len(everything) == 7


def test_choices_of_branches_count_where_there_are_no_own() -> None:
    branches = {"anyOf": [{"const": "a"}, {"const": "b"}]}
    assert kind_of(branches, {}).choices == ("a", "b")
    assert kind_of({"enum": ["c"], **branches}, {}).choices == ("c",)
    assert kind_of({"anyOf": [{}, {}]}, {}).choices == ()


def test_what_one_branch_requires_is_not_required() -> None:
    part = {"properties": {"a": {}}, "required": ["a"]}
    assert shape_of({"anyOf": [part, {}]}).required == ()
    assert shape_of({"allOf": [part]}).required == ("a",)
    assert shape_of({"anyOf": [{"allOf": [part]}, {}]}).required == ()
