"""Objects run as any program of this user would run them, in an event loop.

Rules: input goes by standard input, as other users can see arguments. The end of a task kills its run, so a
cancellation needs no message. A runner whose reader has gone ends by itself, so a kill of this process ends
its runs too. Runs are spawned, as a fork would copy the page tables of the whole SDK. A run that has sent its
last frame is answered at once, while its process still ends.
This file must never know MCP.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from cortexfs.client import execution, places
from cortexfs.client.results import Failed
from cortexfs.core.frames import AnyFrame


async def run(
    path: str,
    input: bytes,
    hear: Callable[[AnyFrame], Awaitable[None]],
    variables: Mapping[str, str] = {},
    arguments: Sequence[str] = (),
) -> None:
    """Run an object to its end, and pass its frames on. Raises Failed if it cannot run, or breaks off."""
    frames = execution.Frames(path)
    with _Spawned([path, *arguments], input, variables) as spawned:
        while not frames.is_over and (data := await spawned.read()):
            for frame in frames.receive(data):
                await hear(frame)
        if frames.is_over:
            spawned.let_go()
        else:
            frames.end(await spawned.status())


async def printed(words: Sequence[str]) -> str:
    """Returns the output of a program of the mount. Raises Failed if it fails."""
    output = b""
    with _Spawned(words, b"", {"CTX_OUTPUT": "text"}) as spawned:
        while data := await spawned.read():
            output += data
        if await spawned.status():
            raise Failed("EHOSTDOWN", f"{words[-1]} failed; see: ctx status")
    return output.decode(errors="replace")


_ending: list[int] = []  # processes that end by themselves and are to be reaped


class _Spawned:
    """A process that the end of the block kills, unless it has ended or was let go."""

    def __init__(self, words: Sequence[str], input: bytes, variables: Mapping[str, str]) -> None:
        """Raises Failed if the process cannot be started."""
        stdin = execution.input_descriptor(input)
        self._output, stdout = os.pipe()
        self._is_over = False
        try:
            self._pid = os.posix_spawn(
                words[0],
                [*words],
                {**os.environ, "CTX_OUTPUT": "jsonl", **variables},
                file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)],
            )
        except OSError as problem:
            os.close(self._output)
            raise places.refused(words[0], problem, places.EXEC_REFUSALS) from None
        finally:
            os.close(stdin)
            os.close(stdout)
        _ending[:] = [pid for pid in _ending if not os.waitpid(pid, os.WNOHANG)[0]]

    def __enter__(self) -> _Spawned:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._output)
        if not self._is_over:
            os.kill(self._pid, signal.SIGKILL)  # the death of the runner cancels its run
            self._reaped()  # a killed process ends at once

    async def read(self) -> bytes:
        """Returns new output; nothing at the end."""
        await anyio.wait_readable(self._output)
        return os.read(self._output, execution.READ_BYTES)

    async def status(self) -> int:
        """Returns its exit status, once it has ended."""
        pidfd = os.pidfd_open(self._pid)
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)
        return self._reaped()

    def let_go(self) -> None:
        """Let the process end by itself, after its last frame. The next run reaps it."""
        _ending.append(self._pid)
        self._is_over = True

    def _reaped(self) -> int:
        self._is_over = True
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
