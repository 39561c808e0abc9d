"""Exec for programs that run Trio.

This file must never know sockets.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType

import trio

from cortexfs.client import execution, places
from cortexfs.core.frames import AnyFrame


class Run(AsyncIterator[AnyFrame]):
    """A run of an object as a process of ours, which begins when its first frame is asked for. Leaving its
    `async with`, or being cancelled while it is read, kills it."""

    def __init__(self, path: str, start: Callable[[], Awaitable[trio.Process]]) -> None:
        self._path = path
        self._start = start
        self._process: trio.Process | None = None
        self._frames = execution.Frames(path)
        self._heard: list[AnyFrame] = []  # in reverse
        self._is_over = False

    @property
    def status(self) -> int | None:
        return self._process.returncode if self._process else None

    @property
    def run(self) -> str | None:
        return self._frames.run

    async def __anext__(self) -> AnyFrame:
        while not self._heard:
            if self._is_over:
                raise StopAsyncIteration
            try:
                self._heard = (await self._read())[::-1]
            except BaseException:  # a cancellation, too, goes on; the process ends with its reader
                await self.close()
                raise
        return self._heard.pop()

    async def _read(self) -> list[AnyFrame]:
        if self._process is None:
            self._process = await self._start()
        assert self._process.stdout is not None
        data = await self._process.stdout.receive_some(execution.READ_BYTES)
        found = self._frames.receive(bytes(data))
        if not data:
            self._is_over = True
            self._frames.end(await self._process.wait())
            await self.close()
        return found

    async def close(self) -> None:
        """Kill the run if it still goes on."""
        self._is_over = True
        if self._process is not None and self._process.stdout is not None:
            with trio.CancelScope(shield=True):  # a killed process ends at once
                if self._process.returncode is None:
                    self._process.kill()
                await self._process.wait()
                await self._process.stdout.aclose()

    async def __aenter__(self) -> Run:
        return self

    async def __aexit__(
        self, type_: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def run(
    object: str | os.PathLike[str],
    *arguments: str,
    input: str | bytes | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Run:
    """Run an object; its frames, up to done. `input` is its standard input, which is empty without it."""
    path = places.object_path(object)

    async def start() -> trio.Process:
        stdin = execution.given(input)
        try:
            return await trio.lowlevel.open_process(
                [path, *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                cwd=cwd,
                env={**(os.environ if env is None else env), "CTX_OUTPUT": "jsonl"},
            )
        except OSError as problem:
            raise places.not_run(path, problem) from None
        finally:
            os.close(stdin)

    return Run(path, start)
