"""Run objects from Python, as a shell would run them, and read their frames.

This file must never know sockets.
"""

from __future__ import annotations

import os
import subprocess
import weakref
from collections.abc import Iterator, Mapping

from cortexfs.client import places
from cortexfs.client.results import Failed
from cortexfs.core.errors import Fault, code_of
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk.protocol import ClientSide

READ_BYTES = 1 << 16  # the size of a pipe
# The error where the runner exits without a done frame. The shell's 126 and 127 are refusals of execve.
LAST_STATUS = "{path} ended with exit status {status} and without a done frame; see: ctx doctor"


class Frames:
    """Decodes a program's output into frames as it arrives."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._client = ClientSide()
        self.run: str | None = None
        self.is_over = False

    def receive(self, data: bytes) -> list[AnyFrame]:
        try:
            heard = self._client.receive(data)
        except Fault as fault:
            raise Failed(fault.code, f"{self._path}: a frame is invalid; see: ctx doctor", self.run) from None
        for frame in heard:
            self.run = frame.run or self.run
            self.is_over = self.is_over or frame.FINAL
        return heard

    def end(self, status: int) -> None:
        """Note that the program has ended. Raises Failed unless a final frame has ended its run."""
        if not self.is_over:
            raise Failed("EPROTO", LAST_STATUS.format(path=self._path, status=status), self.run)


class Run(Iterator[AnyFrame]):
    """A run of an object, as a child process. Closing the Run, or dropping the last reference to it, kills
    the run. `status` is its exit status once it has ended."""

    def __init__(self, process: subprocess.Popen[bytes], path: str) -> None:
        self._process = process
        self._frames = Frames(path)
        self._heard: list[AnyFrame] = []  # frames not yet returned, in reverse
        # Not __del__: a failure's traceback may delay that until the process object is gone.
        self._end = weakref.finalize(self, kill, process)

    @property
    def status(self) -> int | None:
        return self._process.returncode

    @property
    def run(self) -> str | None:
        return self._frames.run

    def __next__(self) -> AnyFrame:
        while not self._heard:
            self._heard = self._read()[::-1]
        return self._heard.pop()

    def _read(self) -> list[AnyFrame]:
        assert self._process.stdout is not None
        if self._process.stdout.closed:
            raise StopIteration
        try:
            data = os.read(self._process.stdout.fileno(), READ_BYTES)
            found = self._frames.receive(data)
        except Failed:
            self.close()
            raise
        if not data and not found:
            self._process.stdout.close()
            self._frames.end(self._process.wait())
            raise StopIteration
        return found

    def close(self) -> None:
        """Kill the run if it still goes on."""
        self._end()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        process.kill()  # killing the runner cancels its run
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def run(
    object: str | os.PathLike[str],
    *arguments: str,
    input: str | bytes | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Run:
    """Run an object. Returns its frames, up to done. `input` is its standard input (empty by default)."""
    path = places.object_path(object)
    try:
        stdin = input_descriptor(input)
    except OSError as problem:
        raise places.refused(path, problem) from None
    try:
        process = subprocess.Popen(
            [path, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env={**(os.environ if env is None else env), "CTX_OUTPUT": "jsonl"},
            bufsize=0,
        )
    except OSError as problem:
        if cwd is not None and problem.filename == cwd:
            raise Failed(code_of(problem.errno), f"cwd: {cwd}: {problem.strerror}") from None
        raise places.refused(path, problem, places.EXEC_REFUSALS) from None
    finally:
        os.close(stdin)
    return Run(process, path)


def input_descriptor(input: str | bytes | None) -> int:
    """Returns a descriptor to read the input from. It is a file in memory, so no thread has to write."""
    if input is None:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    file = os.memfd_create("input", os.MFD_CLOEXEC)
    with open(file, "wb", closefd=False) as writing:
        writing.write(input.encode() if isinstance(input, str) else input)
    os.lseek(file, 0, os.SEEK_SET)
    return file
