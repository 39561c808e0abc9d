"""A program that is an MCP server: its process, and its lines as messages for the SDK.

Rules: lines, and how much is no message, are bounded; what they say is judged (mcpjudge.py). Nothing of a
server is left when it is closed: it leads a process group, which is killed.
This file must never know tools or calls.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from types import TracebackType

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

from cortexfs.core.errors import Fault
from cortexfs.core.mcpserver import Told
from cortexfs.host.mcpjudge import Broken, Judge

CHUNK = 64 << 10
MAX_LINE = 32 << 20  # an answer with some pictures in it
MAX_NOISE = 200  # lines in a row that are no messages: a stray print is no reason to end it
LEAVE_SECONDS = 0.3  # to end by itself when its input has ended
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class Pipe:
    """A transport of the SDK's."""

    def __init__(self, told: Told, judge: Judge) -> None:
        self._told = told
        self._judge = judge
        self.ended = asyncio.Event()
        self._noise = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Streams:
        self._process = await self._started()
        self._out, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, self._in = anyio.create_memory_object_stream[SessionMessage](0)
        self._ours = (read, write)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        return read, write

    async def __aexit__(
        self, type_: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            assert self._process.stdin is not None
            self._process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(_ended(self._process), LEAVE_SECONDS)
            self._kill()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for stream in (*self._ours, self._out, self._in):
                stream.close()
            await _ended(self._process)
            _transport(self._process).close()

    async def _started(self) -> Process:
        told = self._told
        try:
            return await asyncio.create_subprocess_exec(
                *told.command,
                stdin=PIPE,
                stdout=PIPE,
                cwd=_directory(told.cwd),
                env=_environment(told.environment),
                start_new_session=True,
            )
        except OSError as error:
            where = error.filename or told.command[0]
            raise Fault("EHOSTDOWN", f"it cannot be started: {where}: {error.strerror}") from None

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        held = bytearray()
        try:
            while data := await self._process.stdout.read(CHUNK):
                *lines, rest = data.split(b"\n")
                for line in lines:
                    held += line
                    if message := self._message(bytes(held)):
                        await self._pass(message)
                    held.clear()
                held += rest
                if len(held) > MAX_LINE:
                    raise Broken(f"said a line of over {MAX_LINE >> 20} MiB")
            with suppress(TimeoutError):
                await asyncio.wait_for(_ended(self._process), LEAVE_SECONDS)
            self._judge.why = _end_of(self._process)
        except Broken as broken:
            self._judge.why = str(broken)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            self._judge.why = "was not wanted any more"
        finally:
            self._kill()
            self.ended.set()
            self._out.close()

    async def _pass(self, message: JSONRPCMessage) -> None:
        if refusal := self._judge.refusal(message):
            with suppress(OSError):  # it asks, and hears no answer
                await self._say(refusal)
        else:
            await self._out.send(SessionMessage(message))

    async def _say(self, message: JSONRPCMessage) -> None:
        assert self._process.stdin is not None
        data = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        self._process.stdin.write(data + b"\n")
        await self._process.stdin.drain()

    def _message(self, line: bytes) -> JSONRPCMessage | None:
        """The message that this line is, if somebody is to hear it."""
        if not line.strip():
            return None
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            self._noise += 1
            if self._noise > MAX_NOISE:
                raise Broken("says what is no protocol") from None
            return None
        self._noise = 0
        return message if self._judge.is_wanted(message) else None

    async def _write(self) -> None:
        with suppress(OSError, anyio.ClosedResourceError, anyio.EndOfStream):
            async for each in self._in:
                self._judge.sent(each.message)
                await self._say(each.message)


async def _ended(process: Process) -> None:
    """Not `wait`, which also waits for whoever holds its pipes."""
    while process.returncode is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def _end_of(process: Process) -> str:
    status = process.returncode
    if status is None:
        return "closed its output"
    if status >= 0:
        return f"exited with status {status}"
    known = {each.value: each.name for each in signal.Signals}
    return f"was killed by {known.get(-status, 'a signal')}"


def _transport(process: Process) -> asyncio.SubprocessTransport:
    found: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]
    return found


def _user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:
        return None


def _environment(told: dict[str, str]) -> dict[str, str]:
    """Whose program it is, and what its file says."""
    user = _user()
    own = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name} if user else {}
    return own | told


def _directory(wanted: str) -> str:
    user = _user()
    home = user.pw_dir if user else "/"
    return wanted or (home if os.access(home, os.R_OK | os.X_OK) else "/")
