"""Exec of models as a runner sees it: abi.md 4, and the ways in which an answer ends."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cortexfs.core import frames, wire
from cortexfs.core.registry import Object
from cortexfs.models import debug, drivers
from cortexfs.models.ask.driver import Turn
from cortexfs.peers import guests
from cortexfs.peers.streams import send
from tests.shell.calling import Answer, Runner, World, files_closed, hello, open_files, serving

ECHO, SCRIPT = debug.objects(0.0)
TEXT = ("CTX_OUTPUT=text",)


def model(world: World, object_: Object = ECHO, **changes: Any) -> int:
    return world.add(msgspec.structs.replace(object_, **changes))


def script(*steps: dict[str, Any]) -> str:
    return json.dumps(steps)


def types(answer: Answer) -> list[str]:
    return [str(frame.__struct_config__.tag) for frame in answer.frames]


async def heard(world: World, inode: int, *words: str, **greeting: Any) -> Runner:
    """Returns a runner that has received all output, as bytes."""
    async with world.begun(inode, *words, **greeting) as runner:
        while await runner.hear():
            pass
    return runner


# -- input


async def test_the_frames_of_an_answer(tmp_path: Path) -> None:
    # issue: "debug/echo (start, one delta per word, message, usage, done)"
    async with serving(tmp_path) as world:
        answer = await world.call(model(world), "hello", "big  world")
        run = answer.frames[0].run
        assert run is not None
        assert answer.frames == [
            frames.Start(run=run, model="debug/echo"),
            frames.Delta(run=run, text="hello "),
            frames.Delta(run=run, text="big  "),
            frames.Delta(run=run, text="world"),
            frames.Message(run=run, role="assistant", content=[frames.Text("hello big  world")]),
            frames.Usage(run=run, input_tokens=3, output_tokens=3),
            frames.Done(run=run, status="ok"),
        ]
        assert answer.status == 0
        assert (world.runs.total, world.runs.active) == (1, {})
        # abi.md 3.18
        line = json.loads(world.logs.read("model", "debug/echo", 0, 4096))
        assert (line["run"], line["status"], line["bytes_out"], line["output_tokens"]) == (run, "ok", 16, 3)
        assert "hello" not in json.dumps(line)  # "never holds inputs, outputs or secrets"


@pytest.mark.parametrize(
    ("words", "stdin", "output"),
    [
        ((), b"from\nstandard input\n", "from\nstandard input"),
        # "its text is appended to the prompt after a blank line"
        (("Look:", "-"), b"a\n", "Look:\n\na"),
        (("-",), b"a", "a"),
        # "one argument that is a JSON object with messages, input or task is taken as such"
        (('{"input":"hi"}',), b"", "hi"),
        (('{"task":"do it"}',), b"", "do it"),
        (('{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}',), b"", "b"),
        ((), b'{"messages":[{"role":"user","content":[{"type":"text","text":"b"}]}]}', "b"),
        (('{"messages":"no"}', "x"), b"", '{"messages":"no"} x'),
    ],
)
async def test_what_the_prompt_is(words: tuple[str, ...], stdin: bytes, output: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        answer = await world.call(model(world), *words, stdin=stdin)
        assert (answer.output, answer.status) == (output, 0)


@pytest.mark.parametrize(
    ("words", "stdin", "code", "said"),
    [
        ((), b"", "EINVAL", "the prompt is empty"),  # "An empty prompt is EINVAL"
        ((" ",), b"", "EINVAL", "the prompt is empty"),
        (("\udcff",), b"", "EINVAL", "argument 1 is not UTF-8"),  # "Invalid UTF-8 ... is EINVAL"
        ((), b"\xff", "EINVAL", "standard input is not UTF-8"),
        (("-", "-"), b"x", "EINVAL", "write - only once"),
        (('{"messages":5}',), b"", "EINVAL", "messages: expected array, got number"),
        (('{"messages":[{"role":"user"}]}',), b"", "EINVAL", "no text"),
        (('{"input":[' + "[]," * 300_000 + "[]]}",), b"", "EMSGSIZE", "over 250000 values"),
    ],
)
async def test_what_is_no_prompt(
    words: tuple[str, ...], stdin: bytes, code: str, said: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as world:
        answer = await world.call(model(world), *words, stdin=stdin)
        assert (answer.code, answer.status) == (code, 2)
        assert said in answer.message
        assert types(answer) == ["start", "error", "done"]


async def test_standard_input_is_left_alone(tmp_path: Path) -> None:
    # "With arguments, standard input is NOT read (a `while read` loop must keep its input)"
    async with serving(tmp_path) as world:
        assert (await heard(world, model(world), "hello")).wanted == 0
        # a mistake in the arguments is reported before any input is read
        assert (await heard(world, model(world), "-", "-")).wanted == 0


async def test_a_large_prompt_and_a_larger_one(tmp_path: Path) -> None:
    # "At most 16 MiB of input; more is EMSGSIZE"
    async with serving(tmp_path) as world:
        for size, status in ((16 << 20, 0), ((16 << 20) + 1, 2)):
            async with world.begun(model(world), environ=TEXT) as runner:
                assert await fed(runner, b"x" * size) == size * (not status)
            assert runner.status == status
        assert (b"EMSGSIZE" in runner.err) == bool(status)


async def fed(runner: Runner, stdin: bytes) -> int:
    """Send standard input as a runner does. Returns the number of bytes of output."""
    while not runner.wanted:
        assert await runner.hear()
    assert runner.wanted <= (16 << 20) + 1
    said = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed, runner, stdin[: runner.wanted])
        while await runner.hear():
            said, runner.out = said + len(runner.out), b""
        nursery.cancel_scope.cancel()
    return said


async def feed(runner: Runner, stdin: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the input was too large, and nobody reads any more
        for start in range(0, len(stdin), 1 << 16):
            await send(runner.stream, wire.message(wire.STDIN, stdin[start : start + (1 << 16)]))
        await send(runner.stream, wire.message(wire.STDIN))


async def test_lines_are_at_most_a_mebibyte(tmp_path: Path) -> None:
    # abi.md 5.23; docs: a frame is at most 1 MiB
    async with serving(tmp_path) as world:
        text = "\u00e9" * (3 << 20)
        async with world.begun(model(world)) as runner, trio.open_nursery() as nursery:
            while not runner.wanted:
                assert await runner.hear()
            nursery.start_soon(feed, runner, text.encode())
            while await runner.hear():
                pass
        assert max(map(len, runner.out.splitlines(keepends=True))) <= frames.MAX_LINE
        told = [frames.decode(line) for line in runner.out.splitlines()]
        assert "".join(frame.text for frame in told if isinstance(frame, frames.Delta)) == text
        messages = [frame.content[0].text for frame in told if isinstance(frame, frames.Message)]
        assert "".join(messages) == text


async def test_what_a_user_has_us_keep_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "MAX_HELD", 3 << 20)
    async with serving(tmp_path) as world:
        for size, status in ((4 << 20, 1), (2 << 20, 0)):  # EAGAIN, then there is room
            async with world.begun(model(world), environ=TEXT) as runner:
                await fed(runner, b"x" * size)
            assert runner.status == status
            await world.idle()
            assert not world.exec._guests._sizes


# -- without running


async def test_a_terminal_opens_a_chat(tmp_path: Path) -> None:
    # "No argument and a terminal: ... a model opens a small REPL"
    async with serving(tmp_path) as world:
        terminal = wire.TTY_STDIN | wire.TTY_STDOUT
        async with world.begun(model(world), flags=terminal) as runner:
            while await runner.hear():
                pass
            said = runner.others
            program, *words = said[0][1].removesuffix(b"\0").split(b"\0")
            assert (len(said), said[0][0]) == (1, wire.REPLACE)
            assert Path(program.decode()).name == "ctx"
            assert Path(program.decode()).is_absolute()
            assert words == [b"--root", b"/the/root", b"chat", b"model/debug/echo"]
        # "when stdout is not a terminal, both read stdin to EOF instead"
        answer = await world.call(model(world), stdin=b"typed\n", flags=wire.TTY_STDIN)
        assert answer.output == "typed"
        assert world.runs.total == 1


async def test_help_is_for_people(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        runner = await heard(world, model(world, SCRIPT), "--help")
        assert (runner.status, runner.err) == (0, b"")
        assert b"usage: debug/script PROMPT..." in runner.out
        assert world.runs.total == 0


# -- output


@pytest.mark.parametrize(
    ("steps", "out"),
    [
        ([{"delta": "a"}, {"delta": "b"}, {"message": "ab"}], "ab"),
        ([{"message": "only"}], "only"),  # text mode prints the message if there were no deltas
        ([{"message": "one\n"}, {"delta": "two"}, {"message": "two"}], "one\ntwo"),
        ([{"tool_call": {"name": "t"}}, {"delta": "x"}], "x"),
    ],
)
async def test_text_is_the_deltas(steps: list[dict[str, Any]], out: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        runner = await heard(world, model(world, SCRIPT), script(*steps), environ=TEXT)
        assert (runner.out.decode(), runner.err, runner.status) == (out, b"", 0)


async def test_what_a_driver_may_say(tmp_path: Path) -> None:
    async def says(turn: Turn) -> None:
        await turn.say(frames.ReasoningDelta(text="hm"), frames.Progress(message="half"))
        await turn.say(frames.Message(role="assistant", content=[frames.Text("m")]))

    async with serving(tmp_path) as world:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(drivers.DRIVERS, "debug.echo", says)
            answer = await world.call(model(world), "x")
            text = await heard(world, model(world), "x", flags=wire.TTY_STDOUT | wire.TTY_STDERR)
        assert types(answer) == ["start", "reasoning_delta", "progress", "message", "done"]
        assert text.out == b"m\n"  # a newline, so that a prompt does not stick to the last line
        assert text.err == b"debug/echo: half\n"


async def test_an_error_of_a_driver(tmp_path: Path) -> None:
    # "In text mode errors go to stderr as `<object>: <CODE>: <message>`"
    async with serving(tmp_path) as world:
        failing = script({"delta": "so far"}, {"error": {"code": "EHOSTDOWN", "message": "no provider"}})
        answer = await world.call(model(world, SCRIPT), failing)
        assert (answer.output, answer.code, answer.status) == ("so far", "EHOSTDOWN", 69)
        runner = await heard(world, model(world, SCRIPT), failing, environ=TEXT)
        assert runner.err == b"debug/script: EHOSTDOWN: no provider\n"


async def test_a_bug_of_a_driver(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(turn: Turn) -> None:
        await turn.say(frames.Delta(text="a"))
        raise ZeroDivisionError("a secret")

    async with serving(tmp_path) as world:
        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.CRITICAL, "cortexfs"):
            patch.setitem(drivers.DRIVERS, "debug.echo", broken)
            answer = await world.call(model(world), "x")
        assert (answer.output, answer.code, answer.status) == ("a", "EPROTO", 70)
        assert "secret" not in answer.message
        assert (await world.call(model(world), "x")).status == 0


async def test_an_approval_needs_a_conversation(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        answer = await world.call(model(world, SCRIPT), script({"approval": {"name": "shell.exec"}}))
        assert (answer.output, answer.status) == ("deny", 0)
        asked, told = answer.frames[1:3]
        assert (asked.name, told.source) == ("shell.exec", "approval")
        assert "ctx chat" in json.loads(told.content)["reason"]


async def test_the_driver_is_the_one_that_is_written(tmp_path: Path) -> None:
    # abi.md 3.17
    async with serving(tmp_path) as world:
        played = await world.call(
            model(world, extra={"driver": "default=debug.echo\nexec=not.there,debug.script\n"}),
            script({"message": "m"}),
        )
        assert types(played) == ["start", "message", "usage", "done"]
        lacking = await world.call(model(world, extra={"driver": "openai.chat\n"}), "x")
        assert (lacking.code, lacking.status) == ("EHOSTDOWN", 69)
        assert "write one of debug.echo" in lacking.message


# -- leaving


async def test_an_interrupt_cancels_and_is_answered(tmp_path: Path) -> None:
    # "130: cancelled by SIGINT"; "the first sends cancel and waits for the last frame"
    async with serving(tmp_path) as world:
        async with world.begun(model(world, SCRIPT), script({"delta": "a"}, {"hang": True})) as runner:
            await runner.until(b'"delta"')
            runner.stream.shutdown(socket.SHUT_WR)
            answer = await runner.answer()
        assert (answer.output, answer.status) == ("a", 130)
        assert answer.frames[-1] == frames.Done(
            run=answer.frames[0].run, status="cancelled", code="ECANCELED"
        )
        assert '"code":"ECANCELED"' in world.logs.read("model", "debug/script", 0, 4096).decode()


LEAVING = [
    script({"hang": True}),
    script({"sleep": 3600}),
    script({"burst": 1_000_000, "size": 200}),
    "-",
]


@pytest.mark.parametrize("prompt", LEAVING, ids=["hang", "sleep", "burst", "stdin"])
async def test_a_caller_who_leaves_ends_the_run(prompt: str, tmp_path: Path) -> None:
    # "SIGKILL of the runner cancels the run"; "When stdout closes (`| head -1`) the run is cancelled"
    async with serving(tmp_path) as world:
        inode = model(world, SCRIPT)
        await world.idle()  # the service runs, with all files that it opens
        before = open_files()
        for _ in range(20):
            async with world.begun(inode, prompt) as runner:
                await runner.until(b'"start"')
        await world.idle()
        assert not world.runs.active
        await files_closed(before)


async def test_who_says_what_nobody_wanted_is_cut_off(tmp_path: Path) -> None:
    hang = script({"hang": True})
    async with serving(tmp_path) as world, world.begun(model(world, SCRIPT), hang) as runner:
        await runner.until(b'"start"')
        await send(runner.stream, wire.message(wire.STDIN, b"unasked"))
        assert (await runner.answer()).status == 130


async def test_a_runner_that_never_reads_holds_nobody_else_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        burst = model(world, SCRIPT)
        async with world.begun(burst, script({"burst": 1_000_000, "size": 200})) as silent:
            await silent.until(b'"delta"')
            for _ in range(50):
                assert (await world.call(model(world), "x")).status == 0


async def test_the_limit_of_an_output(tmp_path: Path) -> None:
    async with serving(tmp_path, output_bytes=1 << 20) as world:
        answer = await world.call(model(world, SCRIPT), script({"burst": 100_000, "size": 100}))
        assert (answer.code, answer.status) == ("EFBIG", 1)
        assert len(answer.output) <= 1 << 20


@pytest.mark.parametrize("words", [[script({"hang": True})], []], ids=["answering", "reading"])
async def test_a_daemon_that_stops_says_so(words: list[str], tmp_path: Path) -> None:
    # "69: EHOSTDOWN (daemon lost during a call ...)"
    async with serving(tmp_path) as world:
        with world.connected() as runner:
            async with trio.open_nursery() as runs:
                world.scope.cancel()
                await world.stopped.wait()
                runs.start_soon(world.exec.serve, world.listener, runs)
                await send(runner.stream, hello(model(world, SCRIPT), *words))
                await runner.until(b'"start"')
                runs.cancel_scope.cancel()
            runner.wanted = 0
            answer = await runner.answer()
        assert (answer.code, answer.status) == ("EHOSTDOWN", 69)


async def test_a_daemon_that_stops_takes_no_new_runs(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        await world.runs.drained()
        answer = await world.call(model(world), "x")
        assert (answer.code, answer.status) == ("EHOSTDOWN", 69)
        assert types(answer) == ["error", "done"]  # "also one before start"
