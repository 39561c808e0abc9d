"""`@tool`: a signature becomes a schema, and JSON becomes arguments."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import pytest

from cortexfs.sdk import (
    FunctionTool,
    InvalidInput,
    MemoryRuntime,
    Tool,
    ToolCapabilities,
    ToolEffect,
    ToolEffectKind,
    ToolResult,
    ToolRuntime,
    descriptor,
    run,
    tool,
)
from tests.tables import each_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Node(msgspec.Struct):
    value: int
    children: list[Node] = []


# Functions of many signatures, and the properties and required names of their schemas.


@tool
def nothing() -> None:
    """No parameters."""


@tool
def words(
    text: Annotated[str, "What to count"],
    limit: Annotated[int, msgspec.Meta(description="At most", ge=1, le=9)] = 5,
    *,
    loud: bool = False,
) -> str:
    """Count words.

    Not for letters.
    """
    return f"{min(len(text.split()), limit)}{'!' if loud else ''}"


@tool
def shapes(
    colour: Colour,
    how: Literal["fast", "slow"] = "fast",
    near: Point | None = None,
    path: Annotated[list[Point] | None, "Corners"] = None,
    weights: dict[str, float] | None = None,
) -> list[object]:
    """Structured parameters."""
    return [colour, how, near, path, weights]


@tool
def converted(raw: bytes, day: date, numbers: set[int], by_number: dict[int, str]) -> str:
    """What JSON does not have."""
    return repr((raw, day, sorted(numbers), by_number))


@tool
def tree(root: Node) -> int:
    """A type that contains itself."""
    return root.value + sum(child.value for child in root.children)


@tool
def anything(value: Any, runtime: ToolRuntime) -> str:
    """The runtime is handed in."""
    return f"{runtime.invocation.tool_name} {value}"


POINT = {
    "title": "Point",
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
    "required": ["x"],
}
NODE = {
    "title": "Node",
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
    },
    "required": ["value"],
}

SCHEMAS: list[tuple[FunctionTool[..., Any], dict[str, Any], list[str]]] = [
    (nothing, {}, []),
    (
        words,
        {
            "text": {"type": "string", "description": "What to count"},
            "limit": {"type": "integer", "description": "At most", "minimum": 1, "maximum": 9, "default": 5},
            "loud": {"type": "boolean", "default": False},
        },
        ["text"],
    ),
    (
        shapes,
        {
            "colour": {"title": "Colour", "enum": ["blue", "red"]},
            "how": {"enum": ["fast", "slow"], "default": "fast"},
            "near": {"anyOf": [POINT, {"type": "null"}], "default": None},
            "path": {
                "anyOf": [{"type": "array", "items": POINT}, {"type": "null"}],
                "description": "Corners",
                "default": None,
            },
            "weights": {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}],
                "default": None,
            },
        },
        ["colour"],
    ),
    (
        converted,
        {
            "raw": {"type": "string", "contentEncoding": "base64"},
            "day": {"type": "string", "format": "date"},
            "numbers": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
            "by_number": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        ["raw", "day", "numbers", "by_number"],
    ),
    (anything, {"value": {}}, ["value"]),
]


@each_of(("made", "properties", "required"), SCHEMAS)
def test_the_schema_is_the_signature(
    made: FunctionTool[..., Any], properties: dict[str, Any], required: list[str]
) -> None:
    assert made.input_schema == {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def test_a_type_that_contains_itself_keeps_its_definition() -> None:
    assert tree.input_schema["$defs"] == {"Node": NODE}
    assert tree.input_schema["properties"] == {"root": NODE}
    assert run(tree, {"root": {"value": 1, "children": [{"value": 2}]}}, MemoryRuntime()).output == "3"


def test_name_and_description_come_from_the_function() -> None:
    assert words.name == "words"
    assert words.description == "Count words.\n\nNot for letters."
    assert (words.timeout_secs, words.capabilities) == (None, ToolCapabilities())


def test_options_are_what_the_descriptor_says() -> None:
    effect = ToolEffect(ToolEffectKind.SEND_MESSAGE, "ops")

    @tool(
        name="fs.tell",
        description="Tell somebody.",
        timeout_secs=3,
        effects=[effect],
        emits_progress=True,
        emits_observer_text=True,
        background_safe=True,
    )
    def tell() -> str:
        return "told"

    said = descriptor(tell)
    assert [said["name"], said["description"], said["timeout_secs"]] == ["fs.tell", "Tell somebody.", 3]
    assert tell.capabilities == ToolCapabilities(True, True, True, (effect,))
    assert run(tell, {}, MemoryRuntime()).output == "told"


def test_the_function_can_still_be_called() -> None:
    assert words("a b", loud=True) == "2!"
    assert isinstance(words, Tool)


def test_the_classic_execute_works_too() -> None:
    assert words.execute({"text": "a b"}) == "2"
    assert anything.execute({"value": 1}) == "anything 1"


CALLS: list[tuple[FunctionTool[..., Any], dict[str, Any], str]] = [
    (nothing, {}, ""),
    (words, {"text": "a b c"}, "3"),
    (words, {"text": "a b c", "limit": 2, "loud": True}, "2!"),
    (shapes, {"colour": "red"}, '["red","fast",null,null,null]'),
    (
        shapes,
        {"colour": "blue", "near": {"x": 1}, "path": [{"x": 1, "y": 2}], "weights": {"a": 1}},
        '["blue","fast",{"x":1,"y":0},[{"x":1,"y":2}],{"a":1.0}]',
    ),
    (
        converted,
        {"raw": "aGk=", "day": "2024-02-29", "numbers": [2, 1], "by_number": {"7": "x"}},
        "(b'hi', datetime.date(2024, 2, 29), [1, 2], {7: 'x'})",
    ),
    (anything, {"value": [1]}, "here [1]"),
]


@each_of(("made", "input", "output"), CALLS)
def test_arguments_arrive_in_the_types_of_the_function(
    made: FunctionTool[..., Any], input: dict[str, Any], output: str
) -> None:
    assert run(made, input, MemoryRuntime("here")) == ToolResult(output)


# abi.md 4.15
MISMATCHES: list[tuple[FunctionTool[..., Any], Any, str]] = [
    (words, {}, "object missing required field text"),
    (words, {"text": 3}, "text: expected str, got int"),
    (words, {"text": "a", "limit": 10}, "limit: expected int <= 9"),
    (words, {"text": "a", "limit": "5"}, "limit: expected int, got str"),
    (words, {"text": "a", "lout": True}, "object contains unknown field lout"),
    (words, [], "expected object, got array"),
    (shapes, {"colour": "green"}, "colour: invalid enum value 'green'"),
    (shapes, {"colour": "red", "path": [{"x": 1}, {"x": "1"}]}, "path[1].x: expected int, got str"),
    (converted, {"raw": "%"}, "raw: invalid base64 encoded string"),
    (anything, {"value": 1, "runtime": {}}, "object contains unknown field runtime"),
]


@each_of(("made", "input", "message"), MISMATCHES)
def test_a_mismatch_is_invalid_input_with_its_path(
    made: FunctionTool[..., Any], input: Any, message: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        run(made, input, MemoryRuntime())
    assert str(raised.value) == f"invalid input: {message}"


def untyped(x) -> str:  # type: ignore[no-untyped-def]
    """X."""
    return str(x)


def unknown(x: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
    """X."""
    return str(x)


def many(*x: str) -> str:
    """X."""
    return str(x)


def keywords(**x: str) -> str:
    """X."""
    return str(x)


def nameless(x: str, /) -> str:
    """X."""
    return x


def undocumented(x: str) -> str:
    return x


def strange(x: threading.Thread) -> str:
    """X."""
    return str(x)


UNFIT: list[tuple[Callable[..., str], str]] = [
    (untyped, "untyped a tool: the parameter x needs a type annotation"),
    (unknown, "unknown a tool: name 'Missing' is not defined"),
    (many, r"the parameter \*x: 'str' cannot be given by name"),
    (keywords, r"the parameter \*\*x: 'str' cannot be given by name"),
    (nameless, "cannot be given by name"),
    (undocumented, "undocumented a tool: it needs a docstring, or description="),
    (strange, "strange a tool: "),
]


@each_of(("function", "words"), UNFIT)
def test_a_function_that_cannot_be_described_is_refused_at_once(
    function: Callable[..., str], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        tool(function)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="nmae"):
        tool(nmae="x")(words.function)  # type: ignore[call-overload]


def test_one_tool_serves_many_threads() -> None:
    # abi.md 10.2
    results: list[str] = []

    def call(number: int) -> None:
        results.append(run(words, {"text": "a " * number}, MemoryRuntime()).output)

    threads = [threading.Thread(target=call, args=(number % 5,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(str(number % 5) for number in range(40))
