"""Process JSON: a tool that is a program, one child for each call.

The child reads `{"tool":...,"input":...}` and a newline on standard input, and writes its answer to standard
output. Main path: `ProcessTool.execute_with_runtime`; `result_of` makes a result of an ended child.

Rules: both pipes are read while the request is written, so no size deadlocks. A child that does not read its
request is a normal one. The limit on output holds while reading. The answer is the output until the child
itself ended: processes that it left are killed, not awaited.
This file must never know how a call arrives, nor what a manifest looks like.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from io import FileIO
from typing import Any, NamedTuple

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.errors import code_of, timed_out
from cortexfs.core.jsontext import shown, why_unread
from cortexfs.core.manifest.targets import NOT_STARTED, ProgramTarget
from cortexfs.core.safe_text import last_words
from cortexfs.host.call.effects import effects_of
from cortexfs.host.call.runtime import EARLY_SECONDS, sentence
from cortexfs.host.process import children
from cortexfs.host.process.pipe_reader import CHUNK
from cortexfs.state import startable
from cortexfs.tools.support.process_groups import Waker

_LOGGED = 900  # bytes of standard error, for one line of the daemon's log

# For errors that the author of such a program reads.
_SHOWN = 200  # characters of an answer, before they are clipped
_WANTED = 'it must print one line of JSON, such as {"output": "done"}'

_encode = msgspec.json.Encoder().encode


class ProcessTool(sdk.Tool):
    def __init__(self, program: ProgramTarget) -> None:
        self._program = program
        self.name = program.name
        self.description = program.description
        self.input_schema = program.input_schema
        self.timeout_secs = program.timeout
        self.dry_run_flag = program.dry_run_flag
        self.capabilities = sdk.ToolCapabilities(effects=effects_of(program.effects))

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        program = self._program
        request = {"tool": program.name, "input": input} | dry_run(runtime)
        variables = environment(program, runtime.environ)
        end = exchange(program, _encode(request) + b"\n", variables, runtime)
        if errors := end.errors.strip():
            print(f"{program.name}: {errors[-_LOGGED:].decode(errors='replace')}", file=sys.stderr)
        return result_of(program, end)


def exchange(
    program: ProgramTarget, request: bytes, environment: dict[str, str], runtime: sdk.ToolRuntime
) -> ProcessEnd:
    """Runs one child with this request. Returns how it ended."""
    exchange = _Exchange(request, program.output_bytes)
    runtime.on_cancel(exchange.wake)
    try:
        exchange.start(program, environment)
        exchange.follow(deadline(program))
    finally:
        try:
            exchange.end()
        finally:
            exchange.end()
    return exchange.ended()


def dry_run(runtime: sdk.ToolRuntime) -> dict[str, bool]:
    """Returns the field that marks a dry run; empty if this is none, as for a program that did not opt in."""
    return {"dry_run": True} if runtime.invocation.dry_run else {}


def deadline(program: ProgramTarget) -> float | None:
    return None if program.timeout is None else time.monotonic() + program.timeout - EARLY_SECONDS


def environment(program: ProgramTarget, caller: Mapping[str, str]) -> dict[str, str]:
    """Returns only the variables that the manifest inherits or sets."""
    inherited = {name: caller[name] for name in program.inherited if name in caller}
    if hostcalls.CALLER_DIRECTORY in program.inherited:
        inherited[hostcalls.CALLER_DIRECTORY] = os.getcwd()
    return inherited | program.environment


# -- the result of an ended child


class ProcessEnd(NamedTuple):
    """A child that has ended, or was killed."""

    status: int  # negative for a signal
    output: bytes
    errors: bytes
    timed_out: bool = False


def result_of(program: ProgramTarget, end: ProcessEnd) -> sdk.ToolResult:
    """Returns the result. Checks in the order of upstream."""
    subject = f"process-isolated tool '{program.name}'"
    errors = end.errors.decode(errors="replace").strip() if end.status > 0 else ""
    how = f"{subject} ended with {status_text(end.status)}{last_words(end.errors)}"
    if fault := failure_of(subject, program, end, errors or how):
        return fault
    text = end.output.decode(errors="replace").strip()
    return _answer(subject, text) if text else sdk.ToolResult.success("")


def failure_of(subject: str, program: ProgramTarget, end: ProcessEnd, message: str) -> sdk.ToolResult | None:
    """Returns or raises the fault in how the child ended, if any. `message` is for a status other than 0."""
    if end.timed_out:
        raise sdk.ExecutionFailed(timed_out(program.name, program.timeout or 0), "ETIMEDOUT")
    if len(end.output) + len(end.errors) > program.output_bytes:
        return sdk.ToolResult.error(f"{subject} exceeded output limit of {program.output_bytes} bytes")
    if end.status < 0:  # abi.md 4.30: a crash is EPROTO
        raise sdk.ExecutionFailed(message, "EPROTO")
    return sdk.ToolResult.error(message) if end.status else None


def _answer(subject: str, text: str) -> sdk.ToolResult:
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:  # msgspec's and those of long numbers are ValueErrors
        message = (
            f"{subject} returned {shown(text[:_SHOWN])}, which is not JSON ({why_unread(error)}); {_WANTED}"
        )
        raise sdk.ExecutionFailed(message, "EPROTO") from None
    if isinstance(value, str):
        return sdk.ToolResult.success(value)
    if isinstance(value, dict) and isinstance(output := value.get("output"), str):
        return sdk.ToolResult(output, is_error=value.get("is_error") is True)
    message = f"{subject} must return a JSON string or object with string field 'output'; {_WANTED}"
    raise sdk.ExecutionFailed(message, "EPROTO")


def status_text(status: int) -> str:
    if status >= 0:
        return f"exit status: {status}"
    known = {number.value: number.name for number in signal.Signals}
    return f"signal: {-status}" + (f" ({known[-status]})" if -status in known else "")


def failed_to_spawn(program: ProgramTarget, error: OSError) -> sdk.ExecutionFailed:
    why = startable.of_file(program.argv[0])  # the kernel reports a missing interpreter as a missing program
    message = f"{NOT_STARTED} '{program.name}': {why or sentence(error)}"
    return sdk.ExecutionFailed(message, code_of(error.errno))


# -- the child


class _Exchange:
    """One child, its request and its output."""

    def __init__(self, request: bytes, limit: int) -> None:
        self._waker = Waker()
        self.wake = self._waker.wake  # called on cancel
        self._child = children.ChildProcess()
        self._rest = memoryview(request)
        self._limit = limit
        self._output, self._errors = bytearray(), bytearray()
        self._poller = select.poll()
        self._steps: dict[int, Callable[[], None]] = {}
        self._over = self._timed_out = False

    def start(self, program: ProgramTarget, environment: dict[str, str]) -> None:
        argv = children.limited(program.argv, program.memory_bytes, program.cpu_seconds)
        try:
            if program.working_dir:
                os.chdir(program.working_dir)  # of this thread alone
            process = self._child.start(argv, environment)
        except OSError as error:
            raise failed_to_spawn(program, error) from None
        errors = self._child.stderr
        self._expect(self._waker.file, select.POLLIN, self._cancel)
        self._expect(process, select.POLLIN, self._finish)
        self._expect(self._child.stdin, select.POLLOUT, self._write)
        self._expect(self._child.stdout, select.POLLIN, partial(self._read, self._child.stdout, self._output))
        self._expect(errors, select.POLLIN, partial(self._read, errors, self._errors))

    def _expect(self, file: FileIO, events: int, step: Callable[[], None]) -> None:
        self._poller.register(file, events)
        self._steps[file.fileno()] = step

    def _forget(self, file: FileIO) -> None:
        self._poller.unregister(file)
        del self._steps[file.fileno()]
        file.close()

    def follow(self, deadline: float | None) -> None:
        """Wait until the child has ended, has written too much, or has used up its time."""
        while not self._over:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            for fd, _ in self._poller.poll(None if timeout is None else timeout * 1000):
                if not self._over and fd in self._steps:
                    self._steps[fd]()
            if not self._over and deadline is not None and time.monotonic() >= deadline:
                self._timed_out = self._over = True

    def _cancel(self) -> None:
        raise sdk.ExecutionFailed("cancelled", "ECANCELED")

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._child.stdin.fileno(), self._rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the child does not read its request
            self._rest = self._rest[:0]
        if not self._rest:
            self._forget(self._child.stdin)

    def _read(self, file: FileIO, buffer: bytearray) -> None:
        if (data := file.read(CHUNK)) is None:
            return
        buffer += data
        if len(self._output) + len(self._errors) > self._limit:
            self._over = True
        if not data:
            self._forget(file)

    def _finish(self) -> None:
        """The child has ended: read the rest of its output from the pipes. Await no other process."""
        self._child.kill()
        for file, buffer in ((self._child.stdout, self._output), (self._child.stderr, self._errors)):
            before = -1
            while not self._over and file is not None and not file.closed and len(buffer) != before:
                before = len(buffer)
                self._read(file, buffer)
        self._over = True

    def end(self) -> None:
        """Leave nothing. May be called again after an interruption."""
        self._child.end()
        self._waker.close()

    def ended(self) -> ProcessEnd:
        return ProcessEnd(self._child.status, bytes(self._output), bytes(self._errors), self._timed_out)
