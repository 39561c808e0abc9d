"""A program that is an MCP server: its lines as messages for the SDK, and as answers to calls.

Main path: the SDK's client greets and listens by streams, as with every transport. A call goes by `ask`: its
own thread writes the request, and reads the answer unless another call reads (host/process/pipe_reader.py).
While no call reads, the loop does.

Rules: the length of lines and the number of lines that are no messages are bounded; limits.py judges the
messages. Nothing of a server is left when it is closed (process.py).
This file must never know tools.
"""

from __future__ import annotations

import asyncio
import math
import re
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.core.mcp_session import ServerMessage
from cortexfs.core.safe_text import one_line
from cortexfs.host.call.runtime import shielded
from cortexfs.host.mcp import process
from cortexfs.host.mcp.answers import NOTE, PROGRESS
from cortexfs.host.mcp.home import ServerHome
from cortexfs.host.mcp.limits import Judge, McpViolation
from cortexfs.host.mcp.starting import ServerStart
from cortexfs.host.mcp.waiting import ProgressSaid, WaitingCall, decoded, encoded
from cortexfs.host.process.pipe_reader import CHUNK, ChildLines, Leading, Outbox

MAX_LINE = 32 << 20  # an answer with some pictures in it
MAX_NOISE = 200  # lines in a row that are no messages: a stray print must not end the server
MAX_QUOTED = 200  # characters of such a line
MAX_PROGRESS = 1000  # messages that wait for a caller who reads slowly
LEAVE_SECONDS = 0.3  # to end by itself after the end of its input
_FIRST = 1 << 24  # numbers of calls; those of the SDK's client begin at 1, and it asks little
_LONG = 1e6  # seconds: a call has its own limit
_ID = re.compile(rb'"id"\s*:\s*(\d{8,18})')  # a call's number in a line that is no message
_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


class Pipe:
    """A transport of the SDK's, and a way past its streams.

    Its attributes are the process with its start and home, its calls, and its reader and writer.
    """

    def __init__(self, target: McpTarget, judge: Judge, start: ServerStart) -> None:
        self._target = target
        self._judge = judge
        self._start = start
        self.home = ServerHome(target.home)
        self.ended = asyncio.Event()
        self._output_end = asyncio.Event()  # nothing more comes, or is listened to
        self._noise = 0
        self._lines = ChildLines()
        self._lock = threading.Lock()
        self._is_open = False
        self._last = _FIRST
        self._calls: dict[int, WaitingCall] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_busy(self) -> bool:
        return bool(self._calls)

    # -- from the threads of calls, which a cancellation may strike at any instruction

    def ask(
        self,
        runtime: sdk.ToolRuntime,
        hear: Callable[[ServerMessage], object],
        method: str,
        params: dict[str, Any],
    ) -> dict[str, Any]:
        """Returns the result. Raises MCPError if it is an error, or if there is none."""
        call = WaitingCall(self._leading.nudge)
        runtime.on_cancel(call.cancel)
        begin: Callable[[], object] = partial(self._begin, call, method, params)
        try:
            while True:
                if call.waits():
                    with shielded(runtime):
                        self._leading.lead(call.waits, time.monotonic() + _LONG, begin)
                    begin = object  # it has begun
                item = call.items.get()
                if isinstance(item, ServerMessage):
                    hear(item)
                elif isinstance(item, ErrorData):
                    raise MCPError(code=item.code, message=item.message, data=item.data)
                elif isinstance(item, sdk.ExecutionFailed):
                    raise item
                else:
                    return item
        finally:
            try:
                self._leave(call)
            finally:
                self._leave(call)

    def _begin(self, call: WaitingCall, method: str, params: dict[str, Any]) -> None:
        with self._lock:
            if not self._is_open:
                return call.items.put(_CLOSED)
            self._last += 1
            call.id = self._last
            self._calls[call.id] = call
        meta = params.get("_meta", {}) | {"progressToken": call.id}
        self._request(method, params | {"_meta": meta}, id=call.id)

    def _leave(self, call: WaitingCall) -> None:
        """The call does not wait for its answer any more. May be repeated."""
        with self._lock:
            if call.id not in self._calls:
                return
            self._judge.gave_up(call.id)
            del self._calls[call.id]
        self._request("notifications/cancelled", {"requestId": call.id, "reason": "caller cancelled"})

    def _request(self, method: str, params: dict[str, Any], **more: int) -> None:
        self._say(encoded({"jsonrpc": "2.0", "method": method, "params": params, **more}))

    def _say(self, message: bytes) -> None:
        with self._lock:
            if self._outbox.put(message + b"\n"):
                return
        self._soon(self._write)

    def _soon(self, work: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # its loop has ended just now
            self._loop.call_soon_threadsafe(work, *args)

    # -- called by the reader: a call, or the loop

    def _read_safely(self) -> bool:
        try:
            return not self._output_end.is_set() and self._read()
        except McpViolation as broken:
            self._judge.why = str(broken)
        self._soon(self._output_end.set)
        return False

    def _read(self) -> bool:
        if (data := self._stdout.read(CHUNK)) is None:
            return False
        for line in self._lines.ended_by(data):
            self._hear(line)
        if self._lines.held > MAX_LINE:
            raise McpViolation(f"wrote a line of over {MAX_LINE >> 20} MiB")
        if not data:
            self._soon(self._output_end.set)
        return bool(data)

    def _hear(self, line: bytes) -> None:
        try:
            answer = decoded(line)
        except (ValueError, RecursionError):
            self._understand(line)
        else:
            if not self._answer(answer.id, answer.result):
                self._understand(line)

    def _understand(self, line: bytes) -> None:
        if not line.strip():
            return
        try:  # bytes that are no UTF-8 cost those bytes alone
            message = jsonrpc_message_adapter.validate_json(line.decode(errors="replace"), by_name=False)
        except ValueError:
            return self._miss(line)
        self._noise = 0
        if not self._is_for_a_call(message) and self._judge.is_wanted(message):
            self._soon(self._pass, message)

    def _miss(self, line: bytes) -> None:
        """Handle a line that is not a message. If it has the id of a call, that call fails, as it would wait
        for ever otherwise."""
        self._start.missed(line)
        quote = one_line(line.decode(errors="replace")[:MAX_QUOTED])
        why = f"the MCP server {self._target.name} sent an answer outside of the protocol: {quote}"
        for number in {int(found[1]) for found in _ID.finditer(line)}:
            if self._answer(number, sdk.ExecutionFailed(why, "EPROTO")):
                return
        self._noise += 1
        if self._noise > MAX_NOISE:
            raise McpViolation(f"sends lines that are not messages, such as: {quote}")

    def _is_for_a_call(self, message: JSONRPCMessage) -> bool:
        match message:
            case JSONRPCResponse(id=int() as number, result=result):
                return self._answer(number, result)
            case JSONRPCError(id=int() as number, error=error):
                return self._answer(number, error)
            case JSONRPCNotification(method="notifications/progress", params=dict(params)):
                return self._progress(message, params)
            case JSONRPCNotification(method="notifications/message", params=dict(params)):
                is_wanted = bool(self._calls) and self._judge.is_wanted(message)
                return is_wanted and self.tell(ServerMessage(NOTE, params))
        return False

    def _answer(self, number: int, outcome: dict[str, Any] | ErrorData | sdk.ExecutionFailed) -> bool:
        """Returns True if a call was waiting for it."""
        with self._lock:
            call = self._calls.pop(number, None)
        if call is None:
            return False
        self._noise = 0
        call.items.put(outcome)
        return True

    def _progress(self, message: JSONRPCNotification, params: dict[str, Any]) -> bool:
        try:
            progress = msgspec.convert(params, ProgressSaid)
        except msgspec.ValidationError:
            return False
        call = self._calls.get(progress.progressToken)
        if call is not None and self._judge.is_wanted(message) and call.items.qsize() < MAX_PROGRESS:
            del params["progressToken"]
            call.items.put(ServerMessage(PROGRESS, params))
        return call is not None

    def tell(self, message: ServerMessage) -> bool:
        """Pass a message to the call that began last, as a program does not say to which call it belongs.
        Returns False if there is none. A line of the server's log comes before the answer."""
        with self._lock:
            call = next(reversed(self._calls.values()), None)
        if call is None:
            return False
        if message.id or call.items.qsize() < MAX_PROGRESS:
            call.tell(message)
        return True

    # -- in the loop

    async def __aenter__(self) -> Streams:
        self._loop = asyncio.get_running_loop()
        await self._start_server()
        # Without a bound, as the pipe's reader must not wait; the judge bounds unasked messages.
        self._out, read = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        write, self._in = anyio.create_memory_object_stream[SessionMessage](0)
        self._streams = (read, write)
        self._look = select.epoll()
        self._look.register(self._stdout, select.EPOLLIN)
        self._leading = Leading(self._stdout, self._look, self._read_safely)
        self._loop.add_reader(self._look, self._leading.turn)
        self._loop.add_reader(self._errors.file, self._pass_errors_on)
        self._is_open = True
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._carry())]
        return read, write

    async def _start_server(self) -> None:
        """Start the process, as soon as no other server of its home starts."""
        self._start.waits = True
        try:
            await self.home.claim()
            self._start.waits = False
            server = await process.start(self._target, self.home, self._pass_output)
        except BaseException as error:
            if isinstance(error, Fault):  # nothing of it has run
                self.home.note_failure()
            self.home.leave()
            raise
        self._process, self._stdin, self._stdout, self._errors = server
        self._outbox = Outbox(self._stdin)
        self._start.leader = self._process.pid

    def _pass_output(self, output: bytes) -> None:
        self._start.note_output(output)
        self.home.keep_output(output)

    async def __aexit__(
        self, type_: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            self._end_calls()
            self._loop.remove_writer(self._stdin)
            with self._lock:
                self._stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.ended(self._process), LEAVE_SECONDS)
            process.kill(self._process)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._listen_no_more()
            self._loop.remove_reader(self._errors.file)
            for file in (*self._streams, self._out, self._in, self._look, self._stdout, self._errors.file):
                file.close()
            await process.ended(self._process)
            process.close(self._process)
            self.home.leave()

    def _end_calls(self) -> None:
        """End the calls, and refuse new ones: the server does not answer any more."""
        with self._lock:
            self._is_open = False
            calls = [*self._calls.values()]
            self._calls.clear()
        for call in calls:
            call.items.put(_CLOSED)
        self._leading.nudge()

    def _pass_errors_on(self) -> None:
        if not self._errors.pass_on():
            self._loop.remove_reader(self._errors.file)

    def _listen_no_more(self) -> None:
        self._loop.remove_reader(self._look)
        self._leading.stop()

    async def _follow(self) -> None:
        """Wait until the server ends, and kill a server that broke a rule. A server that ends because its
        input was closed broke none."""
        await self._output_end.wait()
        was_open = self._is_open
        self._listen_no_more()
        if not self._judge.why:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.ended(self._process), LEAVE_SECONDS)
            has_exited = self._process.returncode is not None
            if was_open:
                self._judge.why = process.end_of(self._process) + self._errors.end() + self._start.misses()
                self._judge.has_exited = has_exited
            if has_exited:
                self.home.note_failure()
        process.kill(self._process)
        self.ended.set()
        self._out.close()
        self._end_calls()

    def _pass(self, message: JSONRPCMessage) -> None:
        if refusal := self._judge.refusal(message):
            self._send(refusal)
        else:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._out.send_nowait(SessionMessage(message))

    def _send(self, message: JSONRPCMessage) -> None:
        self._say(message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def _carry(self) -> None:
        async for each in self._in:
            self._judge.sent(each.message)
            self._send(each.message)

    def _write(self) -> None:
        with self._lock:
            if self._stdin.closed:
                return
            if self._outbox.write():
                self._loop.remove_writer(self._stdin)
            else:
                self._loop.add_writer(self._stdin, self._write)
