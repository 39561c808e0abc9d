"""`run`: every shape of a tool's answer, and how a call is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import msgspec
import pytest

from cortexfs.sdk import Attachment, ExecutionFailed, MemoryRuntime, Tool, ToolResult, ToolRuntime, run, tool
from tests.tables import each_of

PNG = Attachment("image", "image/png", "/tmp/a.png")


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Answering(Tool):
    """A class tool that answers whatever it was made with."""

    name = "answering"
    description = "Answers."
    input_schema: dict[str, Any] = {"type": "object"}  # noqa: RUF012

    def __init__(self, answer: Callable[[], object]) -> None:
        self.answer = answer

    def execute(self, input: dict[str, Any]) -> object:
        return self.answer()


def pieces() -> Iterator[str]:
    yield "a"
    yield "b"


def pieces_and_text() -> Generator[str, None, str]:
    yield "a"
    return "b"


def pieces_and_result() -> Generator[str, None, ToolResult]:
    yield "a"
    return ToolResult.error("b").with_media(PNG)


async def coroutine() -> dict[str, int]:
    await asyncio.sleep(0)
    return {"n": 1}


async def async_pieces() -> AsyncIterator[str]:
    yield "a"
    await asyncio.sleep(0)
    yield "b"


async def late_pieces() -> Iterator[str]:
    return pieces()


# The answer of a tool, the emitted texts, and the result.
ANSWERS: list[tuple[Callable[[], object], list[str], ToolResult]] = [
    (lambda: None, [], ToolResult("")),
    (lambda: "text", [], ToolResult("text")),
    (lambda: ToolResult("x", (PNG,), True), [], ToolResult("x", (PNG,), True)),
    (lambda: True, [], ToolResult("true")),
    (lambda: {"a": [1, None, "ü"]}, [], ToolResult('{"a":[1,null,"ü"]}')),
    (lambda: Point(1), [], ToolResult('{"x":1,"y":0}')),
    (lambda: ["a", "b"], [], ToolResult('["a","b"]')),
    (lambda: iter(["a", "b"]), ["a", "b"], ToolResult("")),
    (pieces, ["a", "b"], ToolResult("")),
    (pieces_and_text, ["a"], ToolResult("b")),
    (pieces_and_result, ["a"], ToolResult("b", (PNG,), True)),
    (coroutine, [], ToolResult('{"n":1}')),
    (async_pieces, ["a", "b"], ToolResult("")),
    (late_pieces, ["a", "b"], ToolResult("")),
]


@each_of(("answer", "emitted", "result"), ANSWERS)
def test_run_knows_every_shape_of_an_answer(
    answer: Callable[[], object], emitted: list[str], result: ToolResult
) -> None:
    runtime = MemoryRuntime()
    assert run(Answering(answer), {}, runtime) == result
    assert runtime.emitted == emitted


def numbers() -> Iterator[int]:
    yield 1


async def async_numbers() -> AsyncIterator[int]:
    yield 1


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: b"x", "returned bytes"),
    (object, "object"),
    (numbers, "yielded int; only str can be streamed"),
    (async_numbers, "yielded int; only str can be streamed"),
]


@each_of(("answer", "words"), WRONG)
def test_an_answer_that_is_no_text_is_the_tools_fault(answer: Callable[[], object], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        run(Answering(answer), {}, MemoryRuntime())


async def failing() -> str:
    raise FileNotFoundError(2, "gone")


def failing_late() -> Iterator[str]:
    yield "a"
    raise ExecutionFailed("disk full", "ENOSPC")


def test_exceptions_pass_as_they_are() -> None:
    # abi.md 4.29
    with pytest.raises(FileNotFoundError):
        run(Answering(failing), {}, MemoryRuntime())
    runtime = MemoryRuntime()
    with pytest.raises(ExecutionFailed, match="execution failed: disk full"):
        run(Answering(failing_late), {}, runtime)
    assert runtime.text == "a"


def test_cancel_stops_a_generator_between_two_pieces_and_runs_its_finally() -> None:
    runtime = MemoryRuntime()
    ended: list[str] = []

    @tool
    def endless(stop: ToolRuntime) -> Iterator[str]:
        """Never ends by itself."""
        try:
            yield "a"
            runtime.cancel()
            while True:
                yield "b"
        finally:
            ended.append("finally")

    with pytest.raises(ExecutionFailed, match="cancelled") as raised:
        run(endless, {}, runtime)
    assert raised.value.code == "ECANCELED"
    assert (runtime.text, ended) == ("ab", ["finally"])


def test_a_host_that_cannot_send_ends_the_generator() -> None:
    class Gone(MemoryRuntime):
        def emit(self, text: str) -> None:
            raise BrokenPipeError

    ended: list[str] = []

    def talking() -> Iterator[str]:
        try:
            yield "a"
        finally:
            ended.append("finally")

    with pytest.raises(BrokenPipeError):
        run(Answering(talking), {}, Gone())
    assert ended == ["finally"]


def test_cancel_from_another_thread_wakes_an_async_tool() -> None:
    runtime = MemoryRuntime()
    ended: list[str] = []

    async def waiting() -> AsyncIterator[str]:
        canceller = threading.Thread(target=runtime.cancel)
        canceller.start()
        try:
            yield "a"
            await asyncio.Event().wait()
        finally:
            canceller.join()
            ended.append("finally")

    with pytest.raises(ExecutionFailed, match="cancelled") as raised:
        run(Answering(waiting), {}, runtime)
    assert raised.value.code == "ECANCELED"
    assert ended == ["finally"]


def test_cancel_after_an_async_tool_has_ended_disturbs_nobody() -> None:
    runtime = MemoryRuntime()
    run(Answering(coroutine), {}, runtime)
    runtime.cancel()
    assert runtime.cancelled
