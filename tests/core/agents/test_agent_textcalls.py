"""The text protocol of tool calls: its instructions, its schema, and the reading of answers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.agents.window.text_protocol import (
    MAX_DESCRIPTION,
    Spoken,
    TextCall,
    TextMistake,
    TextReply,
    _written,
    as_text,
    instruction,
    parse,
    result_message,
    schema,
)
from cortexfs.models.ask.question import PastCall, PromptMedia, PromptMessage, PromptText, ToolOffer
from cortexfs.models.ask.structured import Schema, is_strict
from tests.tables import each_of

READ = ToolOffer(
    "fs.read",
    "Read a file. It is returned as it is.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file.", "minLength": 1},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "encoding": {"enum": ["base64", "utf-8"]},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
)
DONE = ToolOffer("todo.done", "", {"type": "object", "properties": {"ids": {"type": "array", "items": {}}}})
TOOLS = [READ, DONE]


# Issue 4: "a model without native tool calls gets a documented text protocol".


def test_the_instruction_is_small_and_shows_tools_and_an_example() -> None:
    told = instruction(TOOLS)
    assert '{"tool":"fs.read","input":{"path":"notes/today.md"}}' in told
    assert '{"answer": "your text"}' in told
    assert '- fs.read {path: string, limit?: integer, encoding?: "base64"|"utf-8"}: Read a file.' in told
    assert "- todo.done {ids?: array}\n" in told + "\n"
    assert "as it is" not in told  # one sentence of each
    assert len(told) < 700


def test_the_example_is_one_that_the_tool_would_take() -> None:
    example = instruction(TOOLS).split("To call a tool: ")[1].splitlines()[0]
    call = parse(example, TOOLS)
    assert isinstance(call, TextCall)
    jsonschema_rs.validator_for(READ.schema).validate(call.input)


def test_without_tools_nothing_is_told() -> None:
    assert instruction([]) == ""


def test_a_long_description_is_cut() -> None:
    assert "w" * MAX_DESCRIPTION + "...\n" in instruction([ToolOffer("a", "w" * 5000, {})]) + "\n"


def test_nested_inputs_are_spelled_out() -> None:
    edit = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
    nested = {
        "$defs": {"edit": edit},
        "properties": {
            "edits": {"type": "array", "items": edit},
            "one": edit,
            "ref": {"$ref": "#/$defs/edit"},
        },
    }
    told = instruction([ToolOffer("edit", "", nested)])
    assert "{edits?: {at: integer}[], one?: {at: integer}, ref?: " in told


def test_a_schema_that_is_circular_ends() -> None:
    loop = {"properties": {"a": {"$ref": "#"}, "b": {"type": "array", "items": {"$ref": "#"}}}}
    assert "- loop {a?: " in instruction([ToolOffer("loop", "", loop)])


# text_protocol.py: "A plain model can be held to any JSON: its answer is a JSON text".


@each_of(
    ("said", "meant"),
    [
        ('"It says \\"hi\\"."', TextReply('It says "hi".')),
        ('  "Hello!"\n', TextReply("Hello!")),
        ('"Hello, I am', TextReply("Hello, I am")),  # cut off in the middle
        ('"Hello\\', TextReply("Hello")),
        ('"bad \\x escape"', TextReply("bad ")),  # the valid beginning of it
        ('"\\ud83d\\ude00 \\ude00"', TextReply("\U0001f600 \ufffd")),
        ('"two\nlines"', TextReply("two\nlines")),
        ('{"tool": "todo.done", "input": {}}', TextCall("todo.done", {})),
        ("Hello.", TextReply("Hello.")),
    ],
)
def test_a_plain_answer_is_a_json_text(said: str, meant: object) -> None:
    assert parse(said, TOOLS, plain=True) == meant


@given(st.text(), st.lists(st.integers(1, 9)), st.booleans())
def test_a_plain_answer_is_told_as_it_comes(answer: str, sizes: list[int], ascii_only: bool) -> None:
    said, spoken, told = f" {json.dumps(answer, ensure_ascii=ascii_only)}\n", Spoken(), ""
    for size in [*sizes, len(said)]:
        piece, said = said[:size], said[size:]
        told += spoken.feed(piece)
        assert answer.startswith(told)
    assert told == answer


@given(st.text(alphabet='"\\ud8c0ef{ \n'))
def test_whatever_comes_is_told_as_text(said: str) -> None:
    spoken = Spoken()
    told = "".join(map(spoken.feed, said))
    assert told.encode().decode() == told == Spoken().feed(said)


@each_of("said", ['""', '" ', '"'])
def test_an_empty_plain_answer_is_none(said: str) -> None:
    assert isinstance(parse(said, TOOLS, plain=True), TextMistake)


def test_a_plain_model_is_held_to_a_call_or_a_text() -> None:
    validator = jsonschema_rs.validator_for(schema(TOOLS, plain=True))
    assert validator.is_valid("Hello!")
    assert validator.is_valid({"tool": "fs.read", "input": {"path": "x"}})
    assert not validator.is_valid({"tool": "fs.read", "input": {}})
    assert not validator.is_valid({"answer": "x"})
    assert '"answer"' not in instruction(TOOLS, plain=True)


# The schema of structured output.


def fits(tools: list[ToolOffer], value: object) -> bool:
    return jsonschema_rs.validator_for(schema(tools)).is_valid(value)


@each_of(
    ("value", "good"),
    [
        ({"tool": "fs.read", "input": {"path": "x", "limit": None}}, True),
        ({"tool": "todo.done", "input": {"ids": [1]}}, True),
        ({"answer": "yes"}, True),
        ({"tool": "fs.read", "input": {}}, False),
        ({"tool": "fs.read", "input": {"path": 1}}, False),
        ({"tool": "fs.read", "input": {"path": "x", "more": 1}}, False),
        ({"tool": "todo.done", "input": {"more": 1}}, False),  # closed, so that the model can invent no name
        ({"tool": "fs.write", "input": {"path": "x"}}, False),
        ({"tool": "fs.read"}, False),
        ({"answer": "yes", "tool": "fs.read", "input": {"path": "x"}}, False),
        ({"answer": 1}, False),
        ("yes", False),
    ],
)
def test_the_schema_allows_a_call_of_a_tool_or_an_answer(value: object, good: bool) -> None:
    assert fits(TOOLS, value) is good
    if good:
        assert not isinstance(parse(json.dumps(value), TOOLS), TextMistake)


def test_the_schema_is_one_that_models_take_and_not_a_strict_one() -> None:
    # OpenAI refuses a strict schema whose root is a choice
    Schema(schema(TOOLS)).check('{"answer":"x"}')
    assert not is_strict(schema([ToolOffer("a", "", READ.schema)]))


def test_what_makes_grammars_large_or_is_refused_by_them_is_left_out() -> None:
    hard = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "b", "maxLength": 1 << 20, "format": "uri"},
            "b": {"oneOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]},
            "not": {"not": {"type": "null"}},
        },
        "if": {"required": ["a"]},
        "then": {"required": ["b"]},
    }
    text = json.dumps(schema([ToolOffer("hard", "", hard)]))
    for word in ("pattern", "maxLength", "format", "oneOf", "minimum", '"if"', '"then"'):
        assert word not in text
    assert fits([ToolOffer("hard", "", hard)], {"tool": "hard", "input": {"a": "", "b": 1, "not": 2}})


def test_references_of_a_schema_lead_into_it_where_it_stands() -> None:
    tree = {
        "$defs": {"node": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}}}},
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/node"}, "self": {"$ref": "#"}},
    }
    tools = [READ, ToolOffer("tree", "", tree)]
    assert fits(tools, {"tool": "tree", "input": {"root": {"left": {"left": {}}}, "self": {"root": {}}}})
    assert not fits(tools, {"tool": "tree", "input": {"root": {"left": {"left": 1}}}})


@each_of(
    "combined",
    [
        {"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "string"}}}]},
        {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "patternProperties": {"^b": {}}, "additionalProperties": False},
    ],
)
def test_schemas_that_hold_together_are_not_closed(combined: dict[str, Any]) -> None:
    assert fits([ToolOffer("both", "", combined)], {"tool": "both", "input": {"a": "1", "b": "2"}})


def test_a_property_may_have_the_name_of_a_keyword() -> None:
    odd = {"type": "object", "properties": {"$ref": {"type": "string"}, "allOf": {"type": "integer"}}}
    assert fits([ToolOffer("odd", "", odd)], {"tool": "odd", "input": {"$ref": "x", "allOf": 1}})


# Answers of a model.

CALL = '{"tool": "fs.read", "input": {"path": "a}b"}}'


@each_of(
    "text",
    [
        CALL,
        f"  {CALL}\n",
        f"```json\n{CALL}\n```",
        f"I will look at it.\n{CALL}\nThen I go on.",
        f'Take {{this}} and {{"x": 1}}: {CALL} {{"answer": "later"}}',
    ],
)
def test_a_call_is_found_whatever_stands_around_it(text: str) -> None:
    assert parse(text, TOOLS) == TextCall("fs.read", {"path": "a}b"})


def test_a_call_without_input_has_an_empty_one() -> None:
    assert parse('{"tool": "todo.done"}', TOOLS) == TextCall("todo.done", {})


@each_of(
    ("text", "answer"),
    [
        ('{"answer": "It is\\n42."}', "It is\n42."),
        ('{"answer": {"n": 42}}', '{"n":42}'),
        ("It is 42.\n", "It is 42."),
        ('As JSON: {"n": 42}', 'As JSON: {"n": 42}'),
        ('{"tools": 1}', '{"tools": 1}'),
    ],
)
def test_an_answer_may_also_be_plain_words(text: str, answer: str) -> None:
    assert parse(text, TOOLS) == TextReply(answer)


@each_of(
    ("text", "why"),
    [
        ("", "the reply is empty"),
        (CALL[:-5], "no whole JSON object"),
        ("{'tool': 'fs.read'}", "no whole JSON object"),
        ('{"tool": "fs_read"}', 'tool: there is no tool "fs_read"; there are: fs.read, todo.done'),
        ('{"tool": ["fs.read"]}', 'tool: there is no tool ["fs.read"]'),
        ('{"tool": "fs.read", "input": "x"}', "input: expected object, got string"),
        ('{"tool": "fs.read", "answer": "x"}', "both tool and answer"),
        ('{"tool": "fs.read", "input": {"path": 1e999}}', "out of the range"),
        ('{"tool": "fs.read", "input": {"path": NaN}}', "not one JSON value"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(text: str, why: str) -> None:
    # issue 4: "a malformed call is answered to the model with what was wrong"
    found = parse(text, TOOLS)
    assert isinstance(found, TextMistake)
    assert why in found.why
    assert len(found.why) < 2000


def test_a_thousand_tools_are_not_all_named() -> None:
    found = parse('{"tool": "x"}', [ToolOffer(f"t{n}", "", {}) for n in range(1000)])
    assert isinstance(found, TextMistake)
    assert found.why.endswith("t19 and 980 more")


@each_of(
    "text",
    ['{"a":' * 200_000, "{" * 200_000, '{"tool":' * 100_000, '{"a":[' * 100_000, '{"x":1}' * 200_000],
)
def test_a_hostile_text_is_read_in_no_time(text: str) -> None:
    assert isinstance(parse(text, TOOLS), TextReply | TextMistake)


@given(st.text() | st.lists(st.sampled_from([CALL, '{"tool":', "{", "}", '"', "```", "\ud800"])).map("".join))
def test_whatever_is_said_one_of_the_three_comes_out(text: str) -> None:
    found = parse(text, TOOLS)
    assert isinstance(found, TextCall | TextReply | TextMistake)
    if isinstance(found, TextCall):
        assert found.name in ("fs.read", "todo.done")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(st.characters(codec="utf-8")),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), below),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8")), json_values), st.text(st.characters(codec="utf-8"))
)
def test_what_is_told_as_a_call_is_read_as_that_call(input_: dict[str, Any], before: str) -> None:
    said = _written("fs.read", input_)
    assert parse(said, TOOLS) == TextCall("fs.read", input_)
    if "{" not in before:
        assert parse(before + said, TOOLS) == TextCall("fs.read", input_)


# Earlier steps.


def test_calls_and_results_are_told_in_the_protocol() -> None:
    user = PromptMessage("user", (PromptText("read a"),))
    steps = (
        user,
        PromptMessage("assistant", (PromptText("I look."),), (PastCall("c1", "fs.read", {"path": "a"}),)),
        PromptMessage("tool", (PromptText("OUT"),), (), "c1"),
        PromptMessage("tool", (PromptText("NO"),), (), "c9", is_error=True),
        user,
    )
    assert as_text(steps) == (
        user,
        PromptMessage("assistant", (PromptText('I look.\n\n{"tool":"fs.read","input":{"path":"a"}}'),)),
        PromptMessage(
            "user",
            (
                PromptText(
                    "The output of fs.read:\nOUT\nCall again, or answer.\n\n"
                    "The call of a tool failed:\nNO\nCall again, or answer.\n\nread a"
                ),
            ),
        ),
    )


def test_a_result_is_a_message_of_the_user() -> None:
    told = result_message("fs.read", "<out>", is_error=False)
    assert told == PromptMessage(
        "user", (PromptText("The output of fs.read:\n<out>\nCall again, or answer."),)
    )


def test_images_stay_where_they_were() -> None:
    image = PromptMedia("image", "image/png", "aGk=")
    said = (PromptMessage("user", (PromptText("a"), image)), PromptMessage("user", (PromptText("b"),)))
    assert as_text(said) == (PromptMessage("user", (PromptText("a"), image, PromptText("b"))),)
