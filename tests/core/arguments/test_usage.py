"""Usage, help and completion (abi.md 4.5, 4.14)."""

from __future__ import annotations

import shlex
from typing import Any

from cortexfs.core.arguments.parse import prompt, tool_input
from cortexfs.core.arguments.usage import FILES, complete, examples, help_text, usage
from cortexfs.core.hostcalls import Effect
from tests.tables import each_of

READ: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "The file to read."},
        "offset": {"type": "integer", "default": 0, "description": "The first line."},
        "mode": {"enum": ["text", "binary"]},
        "follow": {"type": "boolean", "default": True},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["path"],
}
MANY = {
    "properties": {f"property_number_{n}": {"type": "string"} for n in range(60)},
    "required": ["property_number_3"],
}
ODD: dict[str, Any] = {
    "properties": {"-x": {"type": "string", "examples": ["-a=b c'd"]}, "n": {"$ref": "#/$defs/n"}},
    "required": ["-x", "n"],
    "$defs": {"n": {"type": "integer", "minimum": 7}},
}
ARRAY = {"properties": {"paths": {"type": "array", "items": {"type": "string"}}}, "required": ["paths"]}
SCHEMAS = [
    READ,
    MANY,
    ODD,
    ARRAY,
    {},
    {"properties": {"a": {}}, "required": ["a"]},
    {"properties": {"n": {"type": "number"}}},
]


def test_usage_is_a_synopsis() -> None:
    assert usage("fs.read", READ) == (
        "usage: fs.read [--offset N] [--mode text|binary] [--[no-]follow] [--deep]\n"
        "               [--tags ITEM] PATH\n"
        "Or give one JSON object on standard input. fs.read --help says more.\n"
    )
    assert "usage: t PATHS...\n" in usage("t", ARRAY)


@each_of("schema", SCHEMAS)
def test_usage_is_short_and_fits_a_terminal(schema: dict[str, Any]) -> None:
    lines = usage("tool", schema).splitlines()
    assert 2 <= len(lines) <= 6
    assert max(map(len, lines)) <= 80


def test_usage_of_four_lines_is_whole_and_more_is_told_in_short() -> None:
    def told(count: int) -> str:
        return usage(
            "t", {"properties": {f"name_{number:02}": {"type": "string"} for number in range(count)}}
        )

    four = next(count for count in range(40) if "VALUE" in told(count + 1))
    assert len(told(four).splitlines()) == 5
    assert f"--name_{four - 1:02} TEXT" in told(four)


def test_short_alternatives_are_in_the_synopsis() -> None:
    for last, shown in (("x" * 21, True), ("x" * 22, False)):
        assert (f"[--w ab|{last}]" in usage("t", {"properties": {"w": {"enum": ["ab", last]}}})) == shown


def test_types_are_named_unless_any_will_do() -> None:
    every = ["string", "integer", "number", "boolean", "array", "object", "null"]
    for types, said in ((every[:6], "array or boolean or integer"), (every, "any JSON")):
        assert said in help_text("t", "x", {"properties": {"w": {"type": types}}})


def test_help_names_everything_that_the_schema_declares() -> None:
    effect = Effect("filesystem", "reversible", "never", "no", "/tmp")
    text = help_text("fs.read", "Reads a file.", READ, [effect])
    assert text.startswith("fs.read - Reads a file.\n\nusage: fs.read ")
    for line in (
        "  PATH                    string: The file to read.",
        "  --offset N              integer, default 0: The first line.",
        "  --mode text|binary      one of text, binary",
        "  --[no-]follow           boolean, default true",
        "  --tags ITEM             array, may be repeated",
        "  filesystem /tmp reversible never no",
        "  fs.read README.md",
    ):
        assert line in text.splitlines()
    assert "exit status: 0 done" in text
    # issue 14: "Frames in a pipe are the ABI; README's first screen and `--help` say so"
    assert "output: text on a terminal, else frames, a line of JSON each; CTX_OUTPUT=text" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_long_option_has_a_line_of_its_own_and_an_empty_default_is_seen() -> None:
    theme = {"enum": ["default", "academy", "dark"], "default": "default"}
    schema = {"properties": {"theme": theme, "cwd": {"type": "string", "default": ""}}}
    assert """
  --theme default|academy|dark
                          one of default, academy, dark, default default
  --cwd TEXT              string, default ''
""" in help_text("t", "x", schema)


@each_of("class_", ["model", "agent"])
def test_help_of_those_who_talk_says_how_a_prompt_is_made(class_: str) -> None:
    text = help_text("main", "Answers.", {}, class_=class_)
    assert "usage: main PROMPT...\n" in text
    assert "main            opens a chat, on a terminal\n" in text
    assert "exit status" in text
    line = next(line for line in text.splitlines() if "Say hello" in line)
    assert prompt([word.encode() for word in shlex.split(line)[1:]]) == "Say hello in one word."


@each_of("schema", SCHEMAS)
def test_the_examples_are_accepted(schema: dict[str, Any]) -> None:
    # usage.py: "The texts promise no more than parse.py accepts"
    spoken, piped = examples("tool", schema)
    said = tool_input([word.encode() for word in shlex.split(spoken)[1:]], schema, bytes)
    echo, json, bar, name = shlex.split(piped)
    assert (echo, bar, name) == ("echo", "|", "tool")
    assert tool_input([], schema, json.encode) == (said if schema.get("required") else {})


def test_a_terminal_sees_no_control_characters() -> None:
    evil = "\x1b]0;gone\x07\r\x9b31m\u202e"
    schema = {
        "properties": {"a": {"description": evil, "default": evil}, f"b{evil}": {"enum": [evil, "x"]}},
        "required": ["a"],
    }
    effect = Effect(evil, evil, evil, evil, evil)
    for text in (usage("t", schema), help_text("t", evil, schema, [effect]), *complete(schema, ["--b"])):
        assert not set(text) & set("\x1b\x07\r\x9b\u202e")


@each_of(
    ("words", "expected"),
    [
        (["--o"], ["--offset"]),
        (["--mode", ""], ["text", "binary"]),
        (["--mode", "t"], ["text"]),
        (["--mode=b"], ["--mode=binary"]),
        (["mode=b"], ["mode=binary"]),
        (["mo"], [FILES, "mode="]),
        (["--no-f"], ["--no-follow"]),
        (["--follow", "--fo"], []),
        (["--no-follow", "--fo"], []),
        (["--offset", "5", "--off"], []),
        (["--tags", "a", "--ta"], ["--tags"]),
        (["--tags", ""], ["a", "b"]),
        (["--deep="], ["--deep=true", "--deep=false"]),
        (["--path", ""], [FILES]),
        (["--path=x"], ["--path=" + FILES]),
        (["--", ""], [FILES]),
        (["--", "README.md", ""], []),
        (["README.md", "--p"], ["--path"]),
        ([], [FILES, *complete(READ, ["--"]), "path=", "offset=", "mode=", "follow=", "deep=", "tags="]),
    ],
)
def test_completion_offers_what_may_follow(words: list[str], expected: list[str]) -> None:
    assert complete(READ, words) == expected
