"""The persistent protocol: one warm child that answers many calls, told apart by their ids, in JSON lines.

    host  -> child   {"id":1,"tool":...,"input":{...},"cwd":"/..."}   {"cancel":1}
    child -> host    {"id":1,"delta":...}  {"id":1,"progress":...}  {"id":1,"media":{...}}
                     {"id":1,"observer":{"source":...,"content":...}}
                     and, to end the call,  {"id":1,"output":...,"is_error":false}

Main path: `StreamingTool.execute_with_runtime` sends a request and takes the lines of its id, which
persistent.py has sorted. A call piles up no more than its limit.

Rules: a child that breaks the protocol or dies ends its calls with EPROTO; the next call starts another.
This file must never know how a call arrives, nor what a manifest looks like.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault, is_code, timed_out
from cortexfs.core.jsontext import shown, why_unread
from cortexfs.core.manifest.targets import ProgramTarget
from cortexfs.host.call.wear import Wear
from cortexfs.host.process import children, one_shot, persistent
from cortexfs.linux import syscalls
from cortexfs.tools.support.locked import locked

_TRIES = 3  # to find a child that has not just ended
_SETTLES_SECONDS = 0.01  # between two looks at a child with cancelled calls
_LATE_SECONDS = 0.2  # for the child's thread to give it up
_SHOWN = 200  # bytes of a line, before it is clipped as text
MAX_CHILDREN = 4  # of one command line; callers may bring endless sets of variables
_Command: TypeAlias = tuple[tuple[str, ...], str]
_Variables: TypeAlias = frozenset[tuple[str, str]]


class _Note(msgspec.Struct, frozen=True):
    content: str
    source: str | None = None


class _Said(msgspec.Struct, frozen=True):
    """One line of the child. The child may add unknown fields, which are ignored."""

    id: int
    delta: str | None = None
    progress: str | None = None
    observer: _Note | None = None
    media: hostcalls.Medium | None = None
    output: str | None = None
    is_error: bool = False
    code: str | None = None  # of an error: an errno name


_decode = msgspec.json.Decoder(_Said).decode


class StreamingTool(one_shot.ProcessTool):
    def __init__(self, program: ProgramTarget, companions: Companions) -> None:
        super().__init__(program)
        self._companions = companions
        self.capabilities = self.capabilities._replace(emits_progress=True, emits_observer_text=True)

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        call = _Call(self._program)
        runtime.on_cancel(call.cancel)
        deadline = one_shot.deadline(self._program)
        for _ in range(_TRIES):
            child = self._companions.child(self._program, runtime.environ)
            child.settle()
            try:
                fields = {"input": input, "cwd": os.getcwd()} | one_shot.dry_run(runtime)
                if child.begin(call, fields):
                    return call.follow(runtime, deadline)
            finally:
                try:
                    child.leave(call)
                finally:
                    child.leave(call)
        raise Fault("EPROTO", f"the program of the tool {self.name} ends as soon as it is started")


class _Call(persistent.ChildCall[_Said]):
    def __init__(self, program: ProgramTarget) -> None:
        subject, limit = f"process-isolated tool '{program.name}'", program.output_bytes
        over, late = f"exceeded output limit of {limit} bytes", timed_out(program.name, program.timeout or 0)
        super().__init__(limit, f"{subject} {over}", late)
        self.program = program

    def follow(self, runtime: sdk.ToolRuntime, deadline: float | None) -> sdk.ToolResult:
        media: list[sdk.Attachment] = []
        while True:
            answer = self.next(deadline)
            if answer.progress is not None:
                runtime.emit_progress(answer.progress)
            if answer.observer is not None:
                runtime.emit_observer(answer.observer.source, answer.observer.content)
            if answer.media is not None:
                media.append(sdk.Attachment(*msgspec.structs.astuple(answer.media)))
            if answer.delta is not None:
                runtime.emit(answer.delta)
            if answer.output is not None:
                if answer.is_error and answer.code is not None and is_code(answer.code):
                    raise sdk.ExecutionFailed(answer.output, answer.code)
                return sdk.ToolResult(answer.output, tuple(media), answer.is_error)


class Companions:
    """The warm children of one host, by command line and by environment, which a child cannot change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[_Command, dict[_Variables, Companion]] = {}  # the oldest first

    def child(self, program: ProgramTarget, caller: Mapping[str, str]) -> Companion:
        """Returns the child for this tool and these variables. Starts it if there is none."""
        environment = one_shot.environment(program, caller)
        # Each request has its caller's directory, so another directory needs no other child.
        variables = frozenset(pair for pair in environment.items() if pair[0] != hostcalls.CALLER_DIRECTORY)
        return locked(self._lock, partial(self._child, program, environment, variables))

    def _child(self, program: ProgramTarget, environment: dict[str, str], variables: _Variables) -> Companion:
        same = self._children.setdefault((tuple(program.argv), program.working_dir), {})
        found = same.get(variables)
        if found is None or not found.is_open:
            found = same[variables] = Companion(program, environment)
            try:
                found.start()
            except BaseException:  # such as a cancelled call: it must leave no child
                found.close()
                raise
        for each in [*same][:-MAX_CHILDREN]:
            same[each].close()
            del same[each]
        return found


class Companion(persistent.Warm[_Call]):
    """One warm child."""

    BLAME = "broke the protocol: it "

    def __init__(self, program: ProgramTarget, environment: dict[str, str]) -> None:
        size = f"{program.output_bytes} bytes, which max_output_bytes of its manifest sets"
        super().__init__(program.output_bytes + persistent.ROOM, size)
        self._program = program
        self._environment = environment
        self._wear: Wear | None = None  # since its first call

    def start(self) -> None:
        error = self._start()
        if isinstance(error, OSError):
            raise one_shot.failed_to_spawn(self._program, error)
        if error is not None:
            raise error

    def settle(self) -> None:
        """Wait until the child has ended its cancelled calls, or is given up. If it hangs in such a call, it
        would never read another, which would wait in it until its own deadline."""
        end = time.monotonic() + persistent.LET_GO_SECONDS + _LATE_SECONDS
        while self.is_open and self._owed and time.monotonic() < end:
            time.sleep(_SETTLES_SECONDS)

    def begin(self, call: _Call, fields: dict[str, Any]) -> bool:
        return self._begin(call, {"tool": call.program.name} | fields)

    def leave(self, call: _Call) -> None:
        """Let a call go. A child worn by what its calls left behind ends once the others have ended."""
        self._leave(call)
        if self.is_open:
            self._wear = self._wear or Wear(self._child.pid)
            if self._wear.is_worn(len(self._calls)):
                self.close()

    def _spawn(self) -> None:
        program = self._program
        argv = children.limited(program.argv, program.memory_bytes, program.cpu_seconds)
        syscalls.unshare(syscalls.CLONE_FS)  # this thread shared its directory with the call's thread
        os.chdir(program.working_dir)
        self._child.start(argv, self._environment)
        os.chdir("/")

    def _hear(self, line: bytes) -> None:
        try:
            answer = _decode(line)
        except (ValueError, RecursionError) as error:
            text = shown(line[:_SHOWN].decode(errors="replace"))
            message = f"printed {text}, which is not an answer ({why_unread(error)})"
            raise Fault(
                "EPROTO", f'{message}; an answer is a line such as {{"id":1,"output":"done"}}'
            ) from None
        with self._lock:
            if not 0 < answer.id <= self._last:
                raise Fault("EPROTO", f"answered the call {answer.id}, which was never sent")
            self._sort(answer.id, answer, len(line), answer.output is not None)

    def _tell(self, why: str, ending: str, calls: list[_Call]) -> None:
        for call in calls:
            call.put(Fault("EPROTO", f"the program of the tool {call.program.name} {why}{ending}"))
        print(f"{self._program.argv[0]}: the warm child {why}", file=sys.stderr)
