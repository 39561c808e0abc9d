"""The prompt of models and agents (abi.md 4)."""

from __future__ import annotations

import json

import pytest

from cortexfs.core.arguments import parse
from cortexfs.core.arguments.parse import MAX_VALUES, Prompt, prompt, prompt_room
from cortexfs.core.errors import Fault
from tests.tables import each_of

MOST = 1000  # in place of 16 MiB, of which tests/core/test_limits.py has the edge


@each_of(
    ("words", "expected"),
    [
        # "arguments are joined by spaces into the prompt"
        (["say", "hello  you"], "say hello  you"),
        (["--", "--flag", "a=b"], "--flag a=b"),
        (["say", "--", "--", "-x"], "say -- -x"),
        (["-x", "a--b", "a=--b"], "-x a--b a=--b"),
        # "one argument that is a JSON object with messages, input or task is taken as such"
        (['{"input":"hi"}'], {"input": "hi"}),
        (['{"messages":[{"role":"user"}],"x":1}'], {"messages": [{"role": "user"}], "x": 1}),
        (['{"task":"t"}'], {"task": "t"}),
        (['{"other":1}'], '{"other":1}'),
        (["{input}"], "{input}"),
        (['{"input":"a"}', "b"], '{"input":"a"} b'),
        (['["input"]'], '["input"]'),
    ],
)
def test_arguments_are_the_prompt(words: list[str], expected: Prompt) -> None:
    # abi.md 4.12
    # "With arguments, standard input is NOT read"
    args = [word.encode() for word in words]
    assert prompt_room(args) is None
    assert prompt(args) == expected


@each_of(
    ("words", "data", "expected"),
    [
        ([], b"hello\n", "hello"),
        ([], b"  two\n\nlines \r\n\n", "  two\n\nlines "),
        ([], b'{"input":"hi"}\n', {"input": "hi"}),
        ([], b'{"no":"hi"}\n', '{"no":"hi"}'),
        # "its text is appended to the prompt after a blank line"
        (["sum", "-", "up"], b"text\n", "sum up\n\ntext"),
        (["sum", "-"], b"", "sum"),
        (["-"], b"text", "text"),
        (["-"], b'{"task":"t"}', {"task": "t"}),
        (["sum", "-"], b'{"task":"t"}', 'sum\n\n{"task":"t"}'),
        (['{"task":"t"}', "-"], b"x", '{"task":"t"}\n\nx'),
        (['{"task":"t"}', "-"], b"", '{"task":"t"}'),
        (['{"input":"sum","x":1}', "-"], b"text\n", {"input": "sum\n\ntext", "x": 1}),
        (["-", '{"input":""}'], b"text", {"input": "text"}),
        (['{"input":["a"]}', "-"], b"text", '{"input":["a"]}\n\ntext'),
    ],
)
def test_standard_input_is_the_prompt_or_follows_it(words: list[str], data: bytes, expected: Prompt) -> None:
    # abi.md 4.3
    assert prompt([word.encode() for word in words], data) == expected


@each_of(
    ("args", "data", "code"),
    [
        ([], b"", "EINVAL"),  # "An empty prompt is EINVAL"
        ([], b" \n", "EINVAL"),
        ([b""], b"", "EINVAL"),
        ([b" ", b" "], b"", "EINVAL"),
        ([b"-"], b"\n", "EINVAL"),
        ([b'{"input":""}'], b"", "EINVAL"),
        ([b'{"messages":[]}'], b"", "EINVAL"),
        ([b'{"task":"a","n":1e999}'], b"", "EINVAL"),  # it is no text, whatever else it has
        ([b"a", b"-", b"-"], b"x", "EINVAL"),
        ([b"\xff"], b"", "EINVAL"),
        ([], b"a\xff", "EINVAL"),
        ([b"a" * (MOST + 1)], b"", "EMSGSIZE"),
        ([b"a", b"-"], b"a" * MOST, "EMSGSIZE"),
    ],
)
def test_what_is_no_prompt_is_refused(
    args: list[bytes], data: bytes, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 4.13, 4.16, 4.17
    monkeypatch.setattr(parse, "MAX_INPUT", MOST)
    with pytest.raises(Fault) as caught:
        prompt(args, data)
    assert caught.value.code == code


MANY = '{"input":[' + "{}," * MAX_VALUES + "1]}"


@each_of(
    ("text", "is_object"),
    [
        ('{"input":"' + "a,[{" * MAX_VALUES + '"}', True),  # a text with commas is one value
        ('{"input":"' + '\\",' * MAX_VALUES + '"}', True),
        ('{"input":[' + "1," * 100_000 + "1]}", True),
        ('{"input":"' + '\\",' * MAX_VALUES, False),  # not JSON, but text that happens to begin with a brace
        ('{"input":"' + '\\"' * (1 << 20), False),
        ('{"n":12345678901234567890123}', False),
    ],
)
def test_large_prompts_that_are_taken(text: str, is_object: bool) -> None:
    assert prompt([], text.encode()) == (json.loads(text) if is_object else text)


def test_an_object_of_too_many_values_is_not_parsed() -> None:
    # parse.py: "many small values take fifty times their size in memory"
    with pytest.raises(Fault, match="EMSGSIZE: the prompt's object holds over 250000 values"):
        prompt([], MANY.encode())
