"""shell.exec: a command line in a shell of its own, of which no process is left behind.

Rules: the shell leads a session of its own, so it has no terminal. tools/support/process_groups.py ends it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from typing import Annotated

from cortexfs.sdk import (
    ExecutionFailed,
    InvalidInput,
    ToolEffect,
    ToolEffectKind,
    ToolResult,
    ToolRuntime,
    tool,
)
from cortexfs.tools.support.paths import checked, shown
from cortexfs.tools.support.process_groups import Job

SHELL = "/bin/sh"
MAX_CMD = (128 << 10) - 1  # MAX_ARG_STRLEN of execve(2), with the NUL
_LIMITS = {resource.RLIMIT_DATA: "-d", resource.RLIMIT_AS: "-v"}


@tool(
    name="shell.exec",
    effects=[ToolEffect(ToolEffectKind.RUN_PROCESS)],
    description="""\
Run a command line with /bin/sh -c and return what it prints, standard output and error together in the \
order of writing (2>&1 is not needed). Exit status 0 is success; any other is an error that says \
"exit status N" or "killed by signal N". Bytes that are not UTF-8 are replaced.
Each call is a new shell: directory and variables do not carry over; join steps with && or use cwd. \
There is no terminal, so start no editors, pagers or prompts; standard input is empty unless stdin is given. \
Background processes are killed when the shell ends, and so is everything when timeout_secs are over or the \
call is cancelled.
Use it to build, test and run programs, and for what no other tool does. Prefer fs. tools for files, \
if you have any: their output is bounded, their changes atomic.""",
)
def exec_(
    runtime: ToolRuntime,
    cmd: Annotated[str, "The command line, for /bin/sh."],
    cwd: Annotated[str | None, "The directory to run it in, in place of the caller's."] = None,
    timeout_secs: Annotated[float | None, "End it after so many seconds."] = None,
    stdin: Annotated[str | None, "What it reads as standard input."] = None,
    env: Annotated[dict[str, str] | None, "Environment variables to add or replace."] = None,
) -> ToolResult:
    if timeout_secs is not None and not timeout_secs > 0:
        raise InvalidInput(f"timeout_secs: it is {timeout_secs}, and must be more than 0")
    arguments = _arguments(cmd, cwd)
    environment = _environment(runtime.environ, env or {})
    job = Job()
    runtime.on_cancel(job.wake)
    deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
    job.run(arguments, environment, runtime.emit, stdin, deadline=deadline)
    if not job.finished:
        raise ExecutionFailed(f"the command took longer than {timeout_secs:g} s and was ended", "ETIMEDOUT")
    if job.status < 0:
        return ToolResult.error(f"killed by signal {-job.status}")
    return ToolResult.error(f"exit status {job.status}") if job.status else ToolResult.success("")


def _arguments(cmd: str, cwd: str | None) -> list[str]:
    """Returns the arguments of the shell. First steps change the directory and lift the host's own limits."""
    size = len(_encoded(cmd, "cmd"))
    if size > MAX_CMD:
        raise InvalidInput(f"cmd: it has {size} bytes, over {MAX_CMD}; write it to a file and run that")
    steps = []
    for limit, flag in _LIMITS.items():
        soft, hard = resource.getrlimit(limit)
        if soft != hard:
            steps.append(f"ulimit -S {flag} {'unlimited' if hard == resource.RLIM_INFINITY else hard >> 10}")
    if cwd is not None:
        os.stat(os.path.join(checked(cwd, "cwd"), "."))  # raises the error of an unusable directory
        steps.append('cd -P -- "$2" || exit')
    if not steps:
        return [SHELL, "-c", cmd]
    # "./" keeps CDPATH and the meaning of "cd -" out
    place = os.path.join(".", cwd or "")
    return [SHELL, "-c", "; ".join([*steps, 'exec "$0" -c "$1"']), SHELL, cmd, place]


def _environment(caller: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not name or "=" in name:
            raise InvalidInput(f"env: {shown(name)!r} is no name for a variable")
        _encoded(name + value, "env")
    return {**caller, **variables}


def _encoded(text: str, name: str) -> bytes:
    if "\0" in text:
        raise InvalidInput(f"{name}: it holds a NUL character, which no program can be given")
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidInput(f"{name}: it has a character that is not valid Unicode") from None
