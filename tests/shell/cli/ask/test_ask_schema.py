"""The concise form of a schema, as in llm, and the code blocks of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.cli.ask import answer
from cortexfs.core.errors import Fault
from cortexfs.models.ask.structured import is_strict


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("name, age int", {"name": {"type": "string"}, "age": {"type": "integer"}}),
        ("ok bool,score float", {"ok": {"type": "boolean"}, "score": {"type": "number"}}),
        ("name str: the name", {"name": {"type": "string", "description": "the name"}}),
        ("name: a, b\nage int: how old\n", {
            "name": {"type": "string", "description": "a, b"},
            "age": {"type": "integer", "description": "how old"},
        }),
    ],
)  # fmt: skip
def test_fields_are_written_in_short(text: str, properties: dict[str, Any]) -> None:
    # abi.md 8.26
    found = answer.schema(text)
    assert found["properties"] == properties
    assert found["required"] == list(properties)
    assert is_strict(found)


def test_json_is_taken_as_it_is() -> None:
    # abi.md 8.26
    assert answer.schema(' {"type": "array"}') == {"type": "array"}


@pytest.mark.parametrize("text", ["name thing", "a int b", ", ,", ": x", "{", '{"a":'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    # abi.md 8.26
    with pytest.raises(Fault) as fault:
        answer.schema(text)
    assert fault.value.code == "EINVAL"


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("so:\n```sh\nls -l\n```\nand\n```\nrm\n```\n", "ls -l\n"),
        ("~~~~\n```\nx\n```\n~~~~\n", "```\nx\n```\n"),
        ("```python\nunclosed", "unclosed"),
        ("```\n```", ""),
        ("use ```this``` or\n```it``` is\n  ```c\nint x;\n  ```", "int x;\n"),
    ],
)
def test_the_first_code_block_alone(text: str, block: str) -> None:
    # abi.md 8.27
    assert answer.code_block(text) == block


def test_an_answer_without_one_is_a_fault() -> None:
    # abi.md 8.27
    with pytest.raises(Fault) as fault:
        answer.code_block("just `words`")
    assert fault.value.code == "EBADMSG"
