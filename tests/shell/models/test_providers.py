"""Models of providers, over real connections to a server that answers as the test says."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from tests.shell.asking import Turn, message, world
from tests.shell.provider_server import KEY, SSE, WHOLE, Wait, chat, chunks, ended, responses, status


def test_a_daemon_imports_no_client_before_it_is_needed() -> None:
    # issue: "Extras keep the core small; imports are lazy"
    wanted = "{'openai', 'anthropic', 'httpx', 'h11', 'xllamacpp'}"
    code = f"import sys, cortexfs.daemon.daemon, cortexfs.models.drivers; print({wanted} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-I", "-c", code], text=True) == "set()\n"


@pytest.mark.parametrize("format_", list(WHOLE))
async def test_an_answer_in_every_format(format_: str) -> None:
    # issue: "Drivers, one file per API format ... streaming is real (each provider delta is a frame at once)"
    async with world(WHOLE[format_]("Hel", "lo"), format_=format_) as (made, provider):
        turn, fault = await made.ask("hi")
        assert fault is None
        assert turn.frames == [
            frames.Delta(text="Hel"),
            frames.Delta(text="lo"),
            frames.Message(role="assistant", content=[frames.Text("Hello")]),
            frames.Usage(input_tokens=5, output_tokens=2),
        ]
        request = provider.requests[0]
        assert request.body["model"] == "native/m"
        assert request.body["stream"] is True
        assert KEY in request.headers.get("x-api-key", "") + request.headers.get("authorization", "")


# -- sessions


async def test_history_is_sent_before_what_is_said_now() -> None:
    # issue: "sessions with history sent as real messages"
    before = [message("user", "one", 2), message("assistant", "two", 5)]
    async with world(chat("x"), limit="8192") as (made, provider):
        turn, _ = await made.ask("three", history=before)
        whole = {"messages": [{"role": role, "content": "c"} for role in ("user", "assistant", "user")]}
        await made.ask(whole, history=before)
    assert provider.requests[0].body["messages"] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    assert turn.rooms == [(8192 - 4096) * 3 - len("three")]
    assert [each["content"] for each in provider.requests[1].body["messages"]] == ["c", "c", "c"]


async def test_a_history_that_is_too_long_is_halved_until_it_fits() -> None:
    # issue: "windowed to the model's limit"
    before = [message("assistant" if n % 2 else "user", "x" * 1000, 3 * n + 2) for n in range(60)]
    overflow = {"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 4096}}
    async with world(status(400, overflow), status(400, overflow), chat("ok")) as (made, provider):
        turn, fault = await made.ask("hi", history=before)
    assert fault is None
    assert turn.output == "ok"
    sizes = [len(request.body["messages"]) for request in provider.requests]
    assert sizes[0] > sizes[1] > sizes[2] > 1
    assert turn.rooms == sorted(turn.rooms, reverse=True)
    async with world(status(400, overflow)) as (made, provider):
        _, fault = await made.ask("hi", history=before)
        assert fault is not None
        assert fault.code == "EMSGSIZE"
        assert "9000 tokens and p takes 4096" in fault.message
        assert len(provider.requests) <= 5


# -- tools and structured output


async def test_a_tool_call_is_said_and_not_run() -> None:
    # issue: "A model never executes a tool"
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a":1}'}}
    moves = [SSE, *chunks({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}, ended("tool_calls"))]
    async with world(moves) as (made, provider):
        turn, fault = await made.ask({"input": "x", "tools": [{"name": "f"}]})
    assert fault is None
    assert turn.frames == [frames.ToolCall(call="c1", name="f", input={"a": 1})]
    assert len(provider.requests) == 1


@pytest.mark.parametrize("format_", list(WHOLE))
async def test_structured_output_is_checked(format_: str) -> None:
    # issue: "schema (structured output, validated)"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = {"input": "x", "schema": schema}
    async with world(WHOLE[format_]('{"a":', "1}"), format_=format_) as (made, _):
        turn, fault = await made.ask(asked)
        assert fault is None
        assert turn.output == '{"a":1}'
    async with world(WHOLE[format_]('{"a":', '"x"}'), format_=format_) as (made, _):
        turn, fault = await made.ask(asked)
        assert fault is not None
        assert fault.code == "EBADMSG"
        assert turn.types == ["delta", "delta", "usage"]
    async with world(WHOLE[format_]("x"), format_=format_) as (made, provider):
        _, fault = await made.ask({"input": "x", "schema": {"type": "nothing"}})
        assert fault is not None
        assert fault.code == "EINVAL"
        assert not provider.requests


async def test_every_piece_is_a_frame_at_once() -> None:
    # issue: "streaming is real (each provider delta is a frame at once)"
    more = trio.Event()
    head, first, *rest = chat("a", "b")
    async with world([head, first, Wait(more), *rest]) as (made, _), trio.open_nursery() as nursery:
        turn = Turn("hi")
        nursery.start_soon(made.drivers.chosen(made.objects["p/m"], "exec"), turn)
        await turn.spoken.wait()
        assert turn.output == "a"
        more.set()


async def test_many_large_frames_in_pieces() -> None:
    words = [f"{n} " * 2000 for n in range(50)]
    async with world(chat(*words)) as (made, _):
        turn, fault = await made.ask("hi")
    assert fault is None
    assert turn.output == "".join(words)


async def test_the_driver_may_be_another_format_of_the_same_server() -> None:
    async with world(responses("x"), driver="exec=openai.responses\ndefault=openai.chat") as (made, provider):
        _, fault = await made.ask("hi")
    assert fault is None
    assert provider.requests[0].path == "/v1/responses"


async def test_a_reload_leaves_an_answer_on_its_way_alone() -> None:
    more = trio.Event()
    head, first, *rest = chat("a", "b")
    async with world([head, first, Wait(more), *rest]) as (made, _), trio.open_nursery() as nursery:
        turn = Turn("hi")
        nursery.start_soon(made.drivers.chosen(made.objects["p/m"], "exec"), turn)
        await turn.spoken.wait()
        await made.drivers.apply({})
        more.set()
    assert turn.output == "ab"
    with pytest.raises(Fault, match=r"EHOSTDOWN: .*no provider serves it"):
        await made.ask("hi")
