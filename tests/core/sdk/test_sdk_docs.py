"""The examples of docs/sdk.md run, and its tables match the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cortexfs import sdk
from tests.places import PROJECT

PAGE = (PROJECT / "docs" / "sdk.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """Runs all examples in order as one program, and returns the names that they define."""
    made: dict[str, Any] = {"__name__": "examples"}
    exec(compile("\n".join(EXAMPLES), "docs/sdk.md", "exec"), made)
    return made


def test_the_examples_run_in_order(names: dict[str, Any]) -> None:
    assert len(EXAMPLES) == 7
    assert {"word_count", "add", "count_down", "MyPlugin", "Parrot"} <= names.keys()


def test_the_synopsis_answers_as_shown(names: dict[str, Any]) -> None:
    shown = re.search(r"\$ /ctx/tool/word_count '(.*)'\n(.*)\n", PAGE)
    assert shown
    result = sdk.run(names["word_count"], {"text": shown[1]}, sdk.MemoryRuntime())
    assert result.output == shown[2]


def test_the_notes_example_writes_where_the_caller_lives(names: dict[str, Any], tmp_path: Path) -> None:
    runtime = sdk.MemoryRuntime(environ={"HOME": str(tmp_path)})
    assert sdk.run(names["add"], {"line": "milk"}, runtime).output == ""
    assert ((tmp_path / "notes").read_text(), runtime.progress) == ("milk\n", ["writing"])
    with pytest.raises(sdk.ExecutionFailed, match="HOME is not set"):
        sdk.run(names["add"], {"line": "milk"}, sdk.MemoryRuntime())


def test_the_class_example_refuses_a_text_without_words(names: dict[str, Any]) -> None:
    with pytest.raises(sdk.InvalidInput, match="holds no words"):
        sdk.run(names["Longest"](), {"text": " "}, sdk.MemoryRuntime())


def test_the_model_of_the_example_answers(names: dict[str, Any]) -> None:
    runtime = sdk.MemoryRuntime()
    sdk.run(names["Parrot"](), {"messages": [{"role": "user", "text": "to be"}]}, runtime)
    assert runtime.emitted == ["to", "be"]
    assert runtime.events == [sdk.Reasoning("it said something"), sdk.Usage(3, 3)]


def test_the_table_of_effects_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| ([a-z_ ]+) \| (\w*reversible) \| (\w+) \|$", PAGE, re.MULTILINE)
    told = {kind: row[1:] for row in rows for kind in row[0].split()}
    assert told == {
        kind: (kind.default_reversibility, kind.default_confirmation) for kind in sdk.ToolEffectKind
    }
