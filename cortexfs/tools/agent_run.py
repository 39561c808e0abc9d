"""agent.run: have another agent do a task, by running its file.

So the daemon decides about it as about every call from inside a run: the helper may do what both its own
policy and the caller's allow, sees no more than the caller, and is one level deeper (docs/agents.md).
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import msgspec

from cortexfs.sdk import ExecutionFailed, InvalidInput, ToolEffect, ToolEffectKind, ToolRuntime, tool
from cortexfs.tools.support.process_groups import Job

MAX_RESULT = 64 << 10  # characters of a helper's report
MAX_LINE = 2 << 20  # a frame has 1 MiB at most
DEFAULT_ROOT = "/ctx"
DENIED = "This call is not allowed: "
NOTE = "denied"  # the source of a note about a denied call, below the path of this tool


@tool(
    name="agent.run",
    effects=[ToolEffect(ToolEffectKind.DELEGATE_WORK)],
    emits_observer_text=True,
    description="""\
Have another agent do a task, and return its report. The helper does not see this conversation: put all \
that it has to know into the task (files, goal, what to report). It works in the same directory, with at \
most your permissions, and its calls that need an approval are denied.
Use it for work that needs much reading and a short answer, or other tools than yours. Do not use it for \
what one call of a tool does.""",
)
def run(
    runtime: ToolRuntime,
    name: Annotated[str, "The agent's name, as in ctx ls agent."],
    task: Annotated[str, "The task, with all that the helper has to know."],
) -> str:
    if not name or "/" in name or name.startswith("."):
        raise InvalidInput(f"name: {name!r} is no name of an agent")
    if not task.strip() or "\0" in task:
        raise InvalidInput("task: it is empty, or holds a NUL character")
    root = runtime.environ.get("CTX_ROOT") or DEFAULT_ROOT
    places = (f"{root}/home/{os.getuid()}/agent/{name}", f"{root}/agent/{name}")
    path = next((place for place in places if os.path.exists(place)), None)
    if path is None:
        raise ExecutionFailed(f"there is no agent {name}", "ENOENT")
    report = _Report(runtime)
    job = Job()
    runtime.on_cancel(job.wake)
    environment = {**runtime.environ, "CTX_OUTPUT": "jsonl"}
    job.run([path], environment, report.hear, msgspec.json.encode({"task": task}).decode())
    return report.end(job.status)


class _Report:
    """The frames of the helper so far."""

    def __init__(self, runtime: ToolRuntime) -> None:
        self._runtime = runtime
        self._rest = ""
        self._message = ""
        self._denied = ""
        self._fault = ("", "")

    def hear(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > MAX_LINE:
            raise ExecutionFailed("the helper sent a line that is not a frame", "EPROTO")
        for line in lines:
            try:
                frame = msgspec.json.decode(line)
            except (ValueError, RecursionError):
                continue  # not a frame
            if isinstance(frame, dict):
                self._take(frame)

    def _take(self, frame: dict[str, Any]) -> None:
        kind = frame.get("type")
        if kind == "message" and frame.get("role") == "assistant":
            parts = frame.get("content") or []
            self._message = "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
        elif kind == "tool_call":
            self._runtime.emit_progress(f"{frame.get('name')}")
        elif kind == "tool_result" and frame.get("is_error") and str(frame.get("output")).startswith(DENIED):
            why = str(frame["output"]).removeprefix(DENIED).partition(" Do not try it again")[0]
            self._denied += f"\n[denied to the helper: {frame.get('name')}: {why}]"
            self._runtime.emit_observer(NOTE, f"{frame.get('name')}: {why}")
        elif kind == "observer" and frame.get("source") == f"tool/agent.run: {NOTE}":  # of its own helpers
            self._runtime.emit_observer(NOTE, str(frame.get("content")))
        elif kind == "error":
            self._fault = (str(frame.get("code")), str(frame.get("message")))

    def end(self, status: int) -> str:
        code, message = self._fault
        if code:
            raise ExecutionFailed(f"the helper failed: {message}", code)
        if status:
            raise ExecutionFailed(f"the helper ended with exit status {status}", "EIO")
        return self._message[:MAX_RESULT] + self._denied
