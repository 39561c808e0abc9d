"""The process of a program that is an MCP server.

Rules: it leads a session and so a process group, which is killed whole. It is the user's program, in the
user's home, with no more of the environment than its file says.
This file must never know what is said.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

import anyio

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.host.mcp.home import ServerHome
from cortexfs.host.mcp.starting import as_whom
from cortexfs.host.process.children import variables_of_user
from cortexfs.host.process.pipe_reader import Errors
from cortexfs.tools.support.paths import pipe


async def start(
    target: McpTarget, own: ServerHome, hear: Callable[[bytes], object]
) -> tuple[Process, FileIO, FileIO, Errors]:
    """Returns the started server, with its standard input and output. `hear` gets its standard error."""
    (hears, stdin), (stdout, says), (errors, prints) = pipe(), pipe(), pipe()
    for end in (stdin, stdout, errors):
        os.set_blocking(end.fileno(), False)
    user = variables_of_user()
    home = next((path for path in (user.get("HOME"), own.path) if path and is_open(path)), "/")
    try:
        # If cancelled meanwhile, it would have no owner to end it.
        with anyio.CancelScope(shield=True):
            process = await asyncio.create_subprocess_exec(
                *target.command,
                stdin=hears,
                stdout=says,
                stderr=prints,
                cwd=target.cwd or home,
                env=own.variables(user) | target.environment,
                start_new_session=True,
            )
    except BaseException as error:
        for end in (stdin, stdout, errors):
            end.close()
        if not isinstance(error, OSError):
            raise
        clause = as_whom() if error.errno == errno.EACCES else ""
        raise Fault("EHOSTDOWN", f"it cannot be started{clause}: {_why(error, target)}") from None
    finally:
        for server_end in (hears, says, prints):
            server_end.close()
    return process, stdin, stdout, Errors(errors, hear)


def _why(error: OSError, target: McpTarget) -> str:
    """Returns why it does not start. A program may be closed by a view, which does not close stat(2)."""
    first = target.command[0]
    folders = [""] if "/" in first else target.environment.get("PATH", "").split(":")
    program = next((path for folder in folders if os.path.isfile(path := os.path.join(folder, first))), "")
    if not program and "/" not in first:  # a closed folder of PATH has the kernel say Permission denied
        return f"{first} is not in a folder of PATH that this user can read"
    if not program:
        return f"{error.filename or first}: {error.strerror}"
    if error.errno == errno.ENOENT:  # its interpreter is missing, or is closed to this process
        is_closed = not _opens(program, os.O_RDONLY)
        return f"{program}: Permission denied" if is_closed else f"{program}: its interpreter is missing"
    return f"{program}: {error.strerror}"


def _opens(path: str, flags: int) -> bool:
    try:
        os.close(os.open(path, flags | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def is_open(folder: str) -> bool:
    """Returns True if a process of ours can enter it."""
    return _opens(folder, os.O_RDONLY | os.O_DIRECTORY) and os.access(folder, os.X_OK)


async def ended(process: Process) -> None:
    """Wait for the end. `wait` would also wait for other holders of its pipes."""
    while process.returncode is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def end_of(process: Process) -> str:
    status = process.returncode
    if status is None:
        return "closed its output"
    if status >= 0:
        return f"exited with status {status}"
    known = {each.value: each.name for each in signal.Signals}
    return f"was killed by {known.get(-status, 'a signal')}"


def kill(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def close(process: Process) -> None:
    """Close asyncio's part of the process."""
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
    transport.close()
