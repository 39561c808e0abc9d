"""Objects run as any program of this user would run them, in asyncio.

Rules: input goes by standard input, as arguments can be seen by others. Whatever ends the task of a run kills
it, so a cancellation needs no message.
This file must never know MCP.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import anyio

from cortexfs.client import execution, places
from cortexfs.client.results import Failed
from cortexfs.core.frames import AnyFrame

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_prctl = ctypes.CDLL(None).prctl  # looked up before a fork, as nothing may be looked up behind it


async def run(
    path: str,
    input: bytes,
    hear: Callable[[AnyFrame], Awaitable[None]],
    variables: Mapping[str, str] = {},
    arguments: Sequence[str] = (),
) -> None:
    """Run an object to its end, and pass on its frames; Failed when it cannot be run, or breaks off."""
    process = await _started([path, *arguments], input, variables)
    said = execution.Frames(path)
    try:
        assert process.stdout is not None
        while data := await process.stdout.read(execution.READ_BYTES):
            for frame in said.receive(data):
                await hear(frame)
        said.end(await process.wait())
    finally:
        if process.returncode is None:
            process.kill()  # whoever kills the runner cancels its run
            with anyio.CancelScope(shield=True):  # a killed process ends at once
                await process.wait()


async def printed(words: Sequence[str]) -> str:
    """Returns the text that a program of the mount prints; Failed where it does not end well."""
    process = await _started(words, b"", {"CTX_OUTPUT": "text"})
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise Failed("EHOSTDOWN", f"{words[-1]} could not be asked; see: ctx status")
    return said.decode(errors="replace")


async def _started(words: Sequence[str], input: bytes, variables: Mapping[str, str]) -> Process:
    stdin = execution.given(input)
    try:
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=stdin,
            stdout=PIPE,
            env={**os.environ, "CTX_OUTPUT": "jsonl", **variables},
            # Clients kill servers: the runs are not to go on without anybody who asked for them.
            preexec_fn=partial(_prctl, PR_SET_PDEATHSIG, signal.SIGTERM),
        )
    except OSError as problem:
        raise places.refused(words[0], problem, places.EXEC_REFUSALS) from None
    finally:
        os.close(stdin)
