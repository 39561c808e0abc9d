"""Models of the SDK, as a plugin's own tests meet them (docs/sdk.md, "MODELS")."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from cortexfs.sdk import (
    InvalidInput,
    MemoryRuntime,
    Model,
    ModelMedia,
    ModelRequest,
    Reasoning,
    ToolCall,
    ToolRuntime,
    Usage,
    descriptor,
    run,
    tool,
    tools_of,
)
from tests.tables import each_of

ASKED = {"messages": [{"role": "user", "text": "to be"}]}


class Parrot(Model):
    name = "birds/parrot"
    description = "Says again what it hears."
    cap = ("vision",)
    limit = 100

    def answer(self, request: ModelRequest, runtime: ToolRuntime) -> Iterator[object]:
        yield Reasoning("hm")
        yield from request.text.split()
        yield ToolCall("c1", "fs.read", {"path": "x"})
        yield Usage(1, 2)


class Awaited(Model):
    name = "birds/owl"
    description = "Says it later."

    async def answer(self, request: ModelRequest, runtime: ToolRuntime) -> AsyncIterator[object]:
        yield request.text
        yield Usage(0, 1)


def test_pieces_of_each_kind_go_where_they_belong() -> None:
    runtime = MemoryRuntime()
    result = run(Parrot(), ASKED, runtime)
    assert (runtime.emitted, result.output) == (["to", "be"], "")
    assert runtime.events == [Reasoning("hm"), ToolCall("c1", "fs.read", {"path": "x"}), Usage(1, 2)]
    runtime = MemoryRuntime()
    run(Awaited(), ASKED, runtime)
    assert (runtime.text, runtime.events) == ("to be", [Usage(0, 1)])


def test_what_a_model_is_asked_is_typed() -> None:
    request = ModelRequest.of(
        {
            "messages": [
                {"role": "user", "text": "first", "media": [{"kind": "image", "url": "https://x.example"}]},
                {"role": "user", "text": "second"},
                {"role": "assistant", "calls": [{"call": "c", "name": "n", "input": {}}]},
                {"role": "tool", "call": "c", "text": "result"},
            ],
            "tools": [{"name": "n", "description": "d", "schema": {}}],
            "parameters": {"temperature": 0},
        }
    )
    assert request.text == "second"
    assert request.messages[0].media == (ModelMedia("image", url="https://x.example"),)
    assert request.messages[2].calls == (ToolCall("c", "n", {}),)
    assert request.tools[0].name == "n"
    assert (request.schema, request.effort, request.parameters) == (None, "auto", {"temperature": 0})


@each_of("given", [{}, {"messages": 1}, {"messages": [{}]}, {**ASKED, "colour": "red"}])
def test_what_is_no_request(given: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        ModelRequest.of(given)


def test_it_says_what_it_is_and_a_tool_does_not() -> None:
    @tool
    def beside() -> str:
        """Beside."""
        return ""

    _, found = tools_of([Parrot, beside])
    model, other = found
    assert descriptor(model)["model"] == {"cap": ["vision"], "limit": 100}
    assert "model" not in descriptor(other)


def test_only_models_say_events() -> None:
    @tool
    def thinking() -> object:
        """Think."""
        return iter([Reasoning("hm")])

    with pytest.raises(TypeError, match="only str can be streamed"):
        run(thinking, {}, MemoryRuntime())


def test_the_sdk_imports_nothing_else_of_ours() -> None:
    # docs/sdk.md: "The SDK imports nothing else of CortexFS"
    program = "import sys, cortexfs.sdk; print(sorted(m for m in sys.modules if m.startswith('cortexfs.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "'cortexfs.sdk.models'" in done.stdout
    assert not [name for name in eval(done.stdout) if not name.startswith("cortexfs.sdk")]
