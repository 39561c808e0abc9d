"""Commands and objects, run as children of the page: a shell can do all that the page can do.

    await command(place, ("ls",))            the output of `ctx ls --json`, decoded
    await run_object(place, object, words, input, hear)    passes on each frame of a run as it comes

Rules: input goes by standard input, as others can read arguments. A child gets no descriptor and no token of
the page. The end of a child's task, for any reason, kills the child.
This file must never know HTTP.
"""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import trio

from cortexfs.client import execution, places
from cortexfs.core import frames as run_frames
from cortexfs.core import jsontext
from cortexfs.core.errors import EXIT_STATUS, Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.jsontext import UNREADABLE

COMMAND_SECONDS = 60.0  # an installation loads the plugin first
# The codes of commands' failures, by exit status.
_CODES = {status: code for code, status in reversed(EXIT_STATUS.items())}


class WebPlace(NamedTuple):
    """The mount that the page shows, and the `ctx` program for its commands."""

    root: str
    program: Sequence[str]
    objects: Callable[[], list[dict[str, str]]]  # the output of `ctx ls --json`, which every view needs

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "CTX_ROOT": self.root, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


class Said(NamedTuple):
    output: str
    notes: str


async def command(place: WebPlace, words: Sequence[str], input: str = "") -> Any:
    """Returns the JSON that a command prints. If it fails without JSON, the Fault has its error sentence."""
    try:
        return msgspec.json.decode((await output(place, words, input, is_json=True)).output)
    except UNREADABLE:
        raise Fault("EPROTO", f"ctx {words[0]} printed no JSON") from None


async def output(place: WebPlace, words: Sequence[str], input: str = "", *, is_json: bool = False) -> Said:
    """Returns a command's output and its notes on standard error. A failure that prints JSON is no Fault: it
    is a check that has failed, or a call that would be refused."""
    with trio.move_on_after(COMMAND_SECONDS):
        done = await trio.run_process(
            [*place.program, *words],
            stdin=input.encode(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=place.environ,
            cwd="/",
        )
        if done.returncode and not (is_json and done.stdout):
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["the command failed"]
            raise Fault(_CODES.get(done.returncode, "EIO"), jsontext.clipped(lines[-1]))
        return Said(done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    raise Fault("ETIMEDOUT", f"ctx {words[0]} took longer than {COMMAND_SECONDS:.0f} s and was ended")


async def follow(place: WebPlace, words: Sequence[str], hear: Callable[[str], Awaitable[None]]) -> None:
    """Run a command, and pass on its notes on standard error as they come. Raises a Fault if it fails."""
    process = await trio.lowlevel.open_process(
        [*place.program, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=place.environ,
        cwd="/",
    )
    last = ""
    try:
        assert process.stderr is not None
        async with process.stderr:
            async for data in process.stderr:
                last = bytes(data).decode(errors="replace")
                await hear(last)
        if status := await process.wait():
            raise Fault(_CODES.get(status, "EIO"), jsontext.clipped(last.strip() or "the command failed"))
    finally:
        await _ended(process)


async def run_object(
    place: WebPlace,
    object_: str,
    words: Sequence[str],
    input: str,
    hear: Callable[[AnyFrame], Awaitable[None]],
) -> None:
    """Run an object with this input to its end, and pass on its frames."""
    path = f"{place.root}/{object_}"
    stdin = execution.input_descriptor(input)
    frames = execution.Frames(object_)
    try:
        process = await trio.lowlevel.open_process(
            [path, *words], stdin=stdin, stdout=subprocess.PIPE, env={**place.environ, "CTX_OUTPUT": "jsonl"}
        )
    except OSError as problem:
        raise places.refused(object_, problem, places.EXEC_REFUSALS) from None
    finally:
        os.close(stdin)
    try:
        assert process.stdout is not None
        async with process.stdout:
            async for data in process.stdout:
                for frame in frames.receive(bytes(data)):
                    await hear(frame)
        frames.end(await process.wait())
    finally:
        await _ended(process)  # killing the runner cancels its run


async def answered(place: WebPlace, object_: str, input: object, most: int) -> tuple[str, Fault | None]:
    """Run an object with JSON. Returns the first `most` characters of its output, and its failure."""
    output, faults = io.StringIO(), list[Fault]()

    async def hear(frame: AnyFrame) -> None:
        if isinstance(frame, run_frames.Delta) and output.tell() < most:
            output.write(frame.text)
        elif isinstance(frame, run_frames.Error):
            faults.append(Fault("EIO", frame.message))

    try:
        await run_object(place, object_, (), msgspec.json.encode(input).decode(), hear)
    except Fault as fault:
        faults.append(fault)
    return output.getvalue()[:most], faults[0] if faults else None


async def _ended(process: trio.Process) -> None:
    if process.returncode is None:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
