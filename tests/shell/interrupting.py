"""Run a tool again and again, and raise a host's cancellation at each possible place in turn.

    python -m tests.shell.interrupting process|cold|warm COMMAND, or native LIBRARY

CPython raises an exception set by PyThreadState_SetAsyncExc only at certain places: after calls, at jumps
back and at the start of functions. This is a program of its own, as cleaning up in a host kills every child.
"""

from __future__ import annotations

import contextlib
import dis
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from cortexfs import sdk
from cortexfs.host import loaders
from cortexfs.host.call.runtime import ToolCancelled
from cortexfs.host.native import library
from cortexfs.host.process import children, jsonl, one_shot
from cortexfs.linux import syscalls
from tests.shell import declaring

TRACED = {module.__file__ for module in (children, contextlib, jsonl, library, one_shot)}


def _is_place(code: CodeType, before: int, now: int) -> bool:
    """Returns True if an exception raised after `before` can surface at the next instruction, `now`. Both
    have to be in the same `try`."""
    name = dis.opname[code.co_code[before]]
    checked = name.startswith("CALL") or name in ("RESUME", "JUMP_BACKWARD")
    return checked and _handler(code, before) == _handler(code, now)


def _handler(code: CodeType, offset: int) -> int | None:
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((entry.target for entry in table if entry.start <= offset < entry.end), None)


class Interruption:
    """Raises `ToolCancelled` once at the `number`th place, after the callbacks, as a host does."""

    def __init__(self, number: int) -> None:
        self.left = number
        self._before: dict[FrameType, int] = {}
        self.runtime = sdk.MemoryRuntime("t", {"PATH": os.defpath})

    def trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in TRACED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self._before.get(frame)
            self._before[frame] = frame.f_lasti
            self.left -= before is not None and _is_place(frame.f_code, before, frame.f_lasti)
            if not self.left:
                sys.settrace(None)
                callbacks = threading.Thread(target=self.runtime.cancel)
                callbacks.start()
                callbacks.join(0.02)
                if not callbacks.is_alive():  # else it waits for our lock, and raises later
                    raise ToolCancelled
        return self.trace

    def run(self, tool: sdk.Tool, input: dict[str, Any]) -> str | None:
        """Returns the output of the tool, or None if it was interrupted."""
        sys.settrace(self.trace)
        try:
            return sdk.run(tool, input, self.runtime).output
        except (ToolCancelled, sdk.ExecutionFailed):
            return None
        finally:
            sys.settrace(None)
            self._before.clear()  # frames keep their objects alive


def everywhere(made: Callable[[], sdk.Tool], check: Callable[[sdk.Tool], None]) -> int:
    """Interrupt the tool at every place, and return the number of places."""
    number = 0
    while True:
        number += 1
        interruption = Interruption(number)
        tool = made()
        said = interruption.run(tool, {})
        check(tool)
        if interruption.left > 0:
            assert said is not None
            return number


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def nothing_is_left() -> Callable[[sdk.Tool], None]:
    before = descriptors()

    def check(tool: sdk.Tool) -> None:
        assert children._children() == set(), children._leaders
        assert children._leaders == set()
        assert descriptors() <= before, os.listdir("/proc/self/fd")

    return check


def no_buffer_is_kept(counters: sdk.Tool) -> Callable[[sdk.Tool], None]:
    def check(tool: sdk.Tool) -> None:
        assert sdk.run(counters, {}, sdk.MemoryRuntime()).output.split()[1] == "0"

    return check


def answers_still(tool: sdk.Tool) -> None:
    assert sdk.run(tool, {}, sdk.MemoryRuntime("t", {"PATH": os.defpath})).output == "done"


def answers_and_ends(tool: sdk.Tool) -> None:
    """Check that the tool answers and its children end. A child that is not known would not end."""
    answers_still(tool)
    assert isinstance(tool, jsonl.StreamingTool)
    for same in tool._companions._children.values():
        for companion in same.values():
            companion.close()
    while children._has_children():
        time.sleep(0.001)


def main(kind: str, what: str) -> int:
    signal.alarm(60)
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    if kind == "native":
        tools = loaders.loaded(declaring.library(what))
        return everywhere(lambda: tools["echo"][0], no_buffer_is_kept(tools["counters"][0]))

    def made() -> sdk.Tool:
        protocol: Any = "json" if kind == "process" else "jsonl"
        ((tool, _),) = loaders.loaded(declaring.plugin([declaring.program(what)], protocol)).values()
        return tool

    if kind == "process":
        return everywhere(made, nothing_is_left())
    if kind == "cold":
        return everywhere(made, answers_and_ends)
    warm = made()
    return everywhere(lambda: warm, answers_still)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)
