"""ripgrep as an engine that finds lines: one process for each piece of text, and none for plain text.

Rules: time grows with the text and with the pattern, never with powers of either. What the engine may keep
of a pattern is bounded, and a pattern over it is refused. It gets text that was decoded, and never a path.
A process and not a library: a call that is cancelled ends it at once, whatever it is doing, and while it
works it holds no lock of the host's.
This file must never know a file, or how a hit is shown.
"""

from __future__ import annotations

import os
import sysconfig
from io import FileIO

from cortexfs.sdk import ExecutionFailed, InvalidInput, ToolRuntime
from cortexfs.tools.support.linear_pattern import Pattern
from cortexfs.tools.support.paths import owned
from cortexfs.tools.support.process_groups import Job

PROGRAM = os.path.join(sysconfig.get_path("scripts"), "rg")
MAX_TOLD = 100 << 10  # bytes; an argument of execve(2) may have 128 KiB
_OPTIONS = (
    "--no-config",
    "--text",
    "--encoding=none",
    "--color=never",
    "--no-heading",
    "--no-filename",
    "--threads=1",
    "--line-number",
    "--regex-size-limit=10M",
    "--dfa-size-limit=10M",
)
# All lines are left out of what it says but their numbers. Never --column, which counts all matches of a
# line, and takes quadratic time for some patterns.
_NUMBERS = ("--max-columns=1",)
_LEADS = ("--only-matching", "--replace=$1")
_MAX_ERROR = 4096

_programs: list[FileIO] = []


def hold() -> None:
    """Keep the program at hand where its path will lead to nothing: before this process goes into the
    mount namespace of a container."""
    try:
        _programs.append(owned(os.open, PROGRAM, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:  # a search will say it
        _programs.clear()


class Ripgrep:
    """One pattern. Text consists of lines with their breaks."""

    def __init__(self, runtime: ToolRuntime, pattern: Pattern) -> None:
        self._runtime = runtime
        self._pattern = pattern
        self.has_run = False
        self._job: Job | None = None
        if len(os.fsencode(pattern.text)) > MAX_TOLD:
            raise InvalidInput("pattern: it is too large; search for its parts one by one")
        runtime.on_cancel(self._wake)

    def hits(self, text: str) -> list[int]:
        """Returns the numbers of matching lines, from 0."""
        self.has_run = True
        output = self._output(_NUMBERS, self._pattern.text, text)
        return [int(line.partition(":")[0]) - 1 for line in output.split("\n") if line]

    def leads(self, lines: list[str]) -> list[int]:
        """Returns the number of characters before the match, for lines with one match each."""
        if self._pattern.plain is not None:
            return [line.find(self._pattern.plain) for line in lines]
        text = "".join([line + "\n" for line in lines])
        output = self._output(_LEADS, f"^(.*?)(?:{self._pattern.text}).*", text)
        return [len(line.partition(":")[2]) for line in output.split("\n")[:-1]]

    def _output(self, options: tuple[str, ...], pattern: str, text: str) -> str:
        output: list[str] = []
        job = self._job = Job()
        if self._runtime.cancelled:  # perhaps before there was a job to wake
            job.wake()
        program = f"/proc/self/fd/{_programs[0].fileno()}" if _programs else PROGRAM
        words = [program, *_OPTIONS, *options, "-e", pattern, "-"]
        with owned(os.memfd_create, "errors") as errors:
            try:
                job.run(words, {}, output.append, text, errors=errors)
            except FileNotFoundError:
                why = "ripgrep is missing here; install CortexFS again"
                raise ExecutionFailed(why, "ENOENT") from None
            if job.status not in (0, 1):
                raise _refusal(job.status, os.pread(errors.fileno(), _MAX_ERROR, 0))
        return "".join(output)

    def _wake(self) -> None:
        if self._job is not None:
            self._job.wake()


def _refusal(status: int, errors: bytes) -> InvalidInput | ExecutionFailed:
    if b"size limit" in errors:
        mend = "write smaller counts, or search for its parts one by one"
        return InvalidInput(f"pattern: it is too large; {mend}")
    if b"nested" in errors:
        return InvalidInput("pattern: its groups are nested too deep; write fewer")
    last = errors.decode(errors="replace").strip().rpartition("\n")[2]
    return ExecutionFailed(f"ripgrep ended with status {status}: {last}", "EIO")
