"""Commands and objects, run as children of the page: whatever the page can do, a shell could do first.

    await command(place, ("ls",))            what `ctx ls --json` prints
    await frames_of(place, path, input, hear)    the frames of a run, each line as it comes

Rules: input goes by standard input, as others can read arguments. A child has nothing of the page's: no
descriptor, no token. Whatever ends the task of a child kills it.
This file must never know HTTP.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import trio

from cortexfs.client import execution, places
from cortexfs.core import jsontext
from cortexfs.core.errors import EXIT_STATUS, Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.jsontext import UNREADABLE

COMMAND_SECONDS = 60.0  # a plugin that is installed is loaded first
# The code of a failure whose sentence a command has said, by its exit status.
_CODES = {status: code for code, status in reversed(EXIT_STATUS.items())}


class WebPlace(NamedTuple):
    """The mount that the page shows, and the program that knows its commands."""

    root: str
    program: Sequence[str]
    objects: Callable[[], list[dict[str, str]]]  # what `ctx ls --json` prints, which every view needs

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "CTX_ROOT": self.root, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


class Said(NamedTuple):
    output: str
    notes: str


async def command(place: WebPlace, words: Sequence[str], input: str = "") -> Any:
    """Returns the JSON that a command prints; where it prints none, its sentence is the Fault."""
    try:
        return msgspec.json.decode((await said(place, words, input, is_json=True)).output)
    except UNREADABLE:
        raise Fault("EPROTO", f"ctx {words[0]} printed no JSON") from None


async def said(place: WebPlace, words: Sequence[str], input: str = "", *, is_json: bool = False) -> Said:
    """Returns what a command prints, and what it says of its work. Its status is part of an answer in JSON:
    a check that has failed, or a call that would be refused."""
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
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise Fault(_CODES.get(done.returncode, "EIO"), jsontext.clipped(lines[-1]))
        return Said(done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
    raise Fault("ETIMEDOUT", f"ctx {words[0]} took longer than {COMMAND_SECONDS:.0f} s and was ended")


async def follow(place: WebPlace, words: Sequence[str], hear: Callable[[str], Awaitable[None]]) -> None:
    """Pass on what a command says of its work, as it says it, to its end; a Fault where it fails."""
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
            raise Fault(_CODES.get(status, "EIO"), jsontext.clipped(last.strip() or "it said nothing"))
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
    stdin = execution.given(input)
    said = execution.Frames(object_)
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
                for frame in said.receive(bytes(data)):
                    await hear(frame)
        said.end(await process.wait())
    finally:
        await _ended(process)  # whoever kills the runner cancels its run


async def _ended(process: trio.Process) -> None:
    if process.returncode is None:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
