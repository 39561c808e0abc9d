"""The comment at the top of a script that is a tool, and the script's arguments (abi.md 12.1 to 12.7)."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core.arguments.parse import tool_input
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import own_script, script
from cortexfs.core.manifest.script import MAX_HEADER, header_of, parsed
from tests.tables import each_of

GREET = """\
# tool: Greet somebody.
# arg who string: whom
# arg times? int = 1: how often
# flag loud: in capitals
# flag lang de|en = de: the language"""


def test_the_comment_ends_where_another_line_stands() -> None:
    # abi.md 12.1
    above = "#!/bin/sh\n# (c) somebody, who argues\n\n"
    text = f"{above}{GREET}\necho\n# arg no string: behind it\n"
    assert header_of(text.encode()) == GREET
    assert header_of(f"{GREET}\n\n# arg no string: x".encode()) == GREET
    assert header_of(b"-- tool: a\n-- arg n int: b") == "-- tool: a\n-- arg n int: b"
    assert header_of(b"  // tool: a\r\n  //\targ n int: b") == "  // tool: a\n  // arg n int: b"


def test_what_it_says_of_the_tool() -> None:
    # abi.md 12.1, 12.5
    said = parsed("# tool: One\n# tool: and two.\n# name: other\n# timeout: 5\n# shellcheck disable=SC1\n#")
    assert (said.description, said.name, said.timeout) == ("One and two.", "other", 5)
    assert said.schema["properties"] == {}


@each_of(
    ("line", "property_"),
    [
        # abi.md 12.2, 12.3, 12.4
        ("arg a string: text", {"type": "string", "description": "text"}),
        ("arg a path:", {"type": "string"}),
        ("arg a... number: text", {"type": "array", "items": {"type": "number"}, "minItems": 1}),
        ("arg a? bool: text", {"type": "boolean"}),
        ("arg a one|two: text", {"type": "string", "enum": ["one", "two"]}),
        ("arg a string = http://x: y: text", {"type": "string", "default": "http://x"}),
        ("arg a integer=-3: text", {"type": "integer", "default": -3}),
        ("flag a: text", {"type": "boolean"}),
        ("flag a... str: text", {"type": "array", "items": {"type": "string"}}),
    ],
)
def test_a_line_is_a_property(line: str, property_: dict[str, Any]) -> None:
    schema = parsed(f"# tool: x\n# {line}").schema
    assert {key: value for key, value in schema["properties"]["a"].items() if key in property_} == property_
    is_needed = line.startswith("arg a ") and "=" not in line
    assert schema["required"] == (["a"] if is_needed or "arg a..." in line else [])


def test_effects_are_those_of_a_process_at_least() -> None:
    # abi.md 12.5
    def told(line: str) -> list[tuple[str, str, str]]:
        return [(one.kind, one.target, one.confirmation) for one in parsed(f"# tool: x\n# {line}").effects]

    process = ("run_process", "script", "always")
    assert told("") == [process]
    assert told("effect: read_file /etc") == [("read_file", "/etc", "on_risk"), process]
    assert told("effect: run_process - on_risk") == [("run_process", "", "on_risk")]


@each_of(
    "line",
    [
        # abi.md 12.6
        "arg a: no type",
        "arg a string",
        "arg a thing: no such type",
        "arg ../a string: x",
        "arg a... string = x: a list with a default",
        "arg a int = one: x",
        "arg a one|two = three: x",
        "flag -a: x",
        "effect: destroy",
        "effect: read_file a b c",
        "effect: read_file /etc sometimes",
        "effect: read_file /etc never more",
        "timeout: soon",
        "timeout: 9999999",
        "name: ../../etc/passwd",
        "name: a.d",
        "arg help string: x",
        "arg a string: x\n# flag A: x",
        "arg a... string: x\n# arg b string: x",
        "arg a? string: x\n# arg b string: x",
        "arg a string: \x1b[31mred",
        "arg a string: \u202eturned",
        "\n# ".join(f"arg a{number} string: x" for number in range(65)),
        "flag a = true: x",
    ],
)
def test_a_wrong_line_is_refused(line: str) -> None:
    with pytest.raises(Fault) as refused:
        parsed(f"# tool: x\n# {line}")
    assert refused.value.code == "EINVAL"


@each_of(
    ("data", "code"),
    [
        # abi.md 12.6
        (b"", "EINVAL"),
        (b"\x7fELF\0\0", "EINVAL"),
        (b"#!/bin/sh\necho\n# tool: too late", "EINVAL"),
        (b"# tool: a\n# \xff", "EINVAL"),
        (b"# tool: a\n# \x07", "EINVAL"),
        (b"# tool: a\n" + b"# more\n" * MAX_HEADER, "EMSGSIZE"),
        (b"#" * (4 << 20), "EMSGSIZE"),
        (b"\n" * (4 << 20), "EMSGSIZE"),
    ],
)
def test_what_has_no_comment_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(Fault) as refused:
        header_of(data)
    assert refused.value.code == code


@each_of(
    ("typed", "words"),
    [
        # abi.md 12.7
        (["bob"], ["--lang", "de", "bob", "1"]),
        (["bob", "--times", "3", "--loud"], ["--loud", "--lang", "de", "bob", "3"]),
        (["bob", "--times=-3", "--lang=en"], ["--lang", "en", "bob", "-3"]),
        (["a b;$(c)"], ["--lang", "de", "a b;$(c)", "1"]),
    ],
)
def test_an_input_is_words(typed: list[str], words: list[str]) -> None:
    said = parsed(GREET)
    assert said.words(tool_input([word.encode() for word in typed], said.schema, bytes)) == words


def test_what_is_left_out_is_empty_or_not_there() -> None:
    # abi.md 12.7
    said = parsed("# tool: x\n# arg a string: x\n# arg b? string: x\n# arg c? bool: x")
    assert said.words({"a": "1"}) == ["1"]
    assert said.words({"a": "1", "c": False}) == ["1", "", "false"]
    assert said.words({"a": "", "b": ""}) == ["", ""]
    assert said.words({"a": "--loud"}) == ["--loud"]  # it has no flag with which this could be confused
    listed = parsed("# tool: x\n# arg a... string: x\n# flag t... int: x")
    assert listed.words({"a": ["1", "2"], "t": [3, 4]}) == ["--t", "3", "--t", "4", "1", "2"]


@each_of("value", [{"who": "--loud"}, {"who": "a\0b"}])
def test_no_word_passes_for_a_flag(value: dict[str, Any]) -> None:
    # abi.md 12.7
    with pytest.raises(Fault, match=r"begins with|NUL"):
        parsed(GREET).words(value)


@each_of(
    "text",
    [
        "relative\n# tool: x",
        "/a/../b\n# tool: x",
        "//a\n# tool: x",
        "/a\x07\n# tool: x",
        "/a\n# held: \x1b[2J\n# tool: x",
        "/a",
        "/a\n# no",
        "/a\n# tool: " + "\U0001f600" * (MAX_HEADER // 2),
    ],
)
def test_a_control_that_names_no_script_is_refused(text: str) -> None:
    # abi.md 12.10
    with pytest.raises(Fault):
        own_script.check(text)


def test_a_control_says_the_same_that_it_was_made_of() -> None:
    # abi.md 12.10, 12.14
    said = own_script.OwnScript("/home/u/greet", GREET)
    assert own_script.read(said.text) == said
    held = said._replace(held="agent/coder")
    assert own_script.read(held.text) == held
    tool = own_script.as_object("greet", 7, said.text, 0.0)
    assert (tool.status, tool.plugin is not None, tool.home) == ("ready", True, 7)
    tool = own_script.as_object("greet", 7, held.text, 0.0)
    assert (tool.status.startswith("broken: agent/coder could write /home/u/greet"), tool.plugin) == (
        True,
        None,
    )
    assert own_script.as_object("greet", 7, "", 0.0).plugin is None
    assert script.MAX_HEADER < 64 << 10  # otherwise no control could hold it
