"""Scripts that are tools: an input becomes words, standard output is text, an exit status is an error.

Main path: `ScriptTool.execute_with_runtime` runs the script in the caller's directory, with the caller's
variables. `has_changed` looks at the files before each call: the file as it is now counts (abi.md 12.11).

Rules: the comment in the file now decides how an input is read, even if the daemon knows an older one. A file
that is no script any more fails each call, with the reason.
This file must never know how a call arrives, nor where a script may lie.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from cortexfs import sdk
from cortexfs.core.manifest import script
from cortexfs.core.manifest.targets import ProgramTarget
from cortexfs.host.call.effects import effects_of
from cortexfs.host.process import one_shot
from cortexfs.state import script_files

ERROR_LINES = 10  # of standard error or output, in the message of a failed call
ERROR_BYTES = 2000

_comments: dict[str, str] = {}  # the comment of each script of this host, by path


def tools(programs: Iterable[ProgramTarget]) -> list[sdk.Tool]:
    for program in programs:
        _comments[program.argv[0]] = script_files.header(program.argv[0])
    return [ScriptTool(program, script.parsed(_comments[program.argv[0]])) for program in programs]


def has_changed() -> bool:
    """Returns True if the comment of a script has changed. Raises Fault if a script is no tool any more."""
    return any(script_files.header(path) != text for path, text in _comments.items())


class ScriptTool(sdk.Tool):
    def __init__(self, program: ProgramTarget, header: script.Script) -> None:
        self._program = program
        self._header = header
        known = (program.description, program.input_schema, program.timeout, program.effects)
        is_known = known == (header.description, header.schema, header.timeout, header.effects)
        self.news = "" if is_known else _comments[program.argv[0]]  # the daemon reads it
        self.name = program.name
        self.description = header.description
        self.input_schema = header.schema
        self.timeout_secs = header.timeout
        self.capabilities = sdk.ToolCapabilities(effects=effects_of(header.effects))

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        argv = (*self._program.argv, *self._header.words(input))
        program = replace(self._program, argv=argv, timeout=self._header.timeout)
        environment = {"PATH": os.defpath} | dict(runtime.environ)
        end = one_shot.exchange(program, b"", environment, runtime)
        message = _last(end.errors) or (_last(end.output) if end.status else "")
        how = f"the script ended with {one_shot.status_text(end.status)}"
        if fault := one_shot.failure_of("the script", program, end, f"{how}: {message}" if message else how):
            return fault
        if message:
            runtime.emit_progress(message)
        return sdk.ToolResult.success(end.output.decode(errors="replace"))


def _last(printed: bytes) -> str:
    """Returns the last lines of what the script printed."""
    lines = printed[-ERROR_BYTES:].decode(errors="replace").strip().splitlines()
    return "\n".join(lines[-ERROR_LINES:])
