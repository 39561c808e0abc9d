"""The persistent protocol: one warm child that answers many calls, told apart by their ids, in JSON lines.

    host  -> child   {"id":1,"tool":...,"input":{...},"cwd":"/..."}   {"cancel":1}
    child -> host    {"id":1,"delta":...}  {"id":1,"progress":...}  {"id":1,"media":{...}}
                     {"id":1,"observer":{"source":...,"content":...}}
                     and, to end the call,  {"id":1,"output":...,"is_error":false}

Main path: `StreamingTool.execute_with_runtime` puts a request in and takes what the child's own thread
(`Companion._serve`) sorts by ids. So no reader waits for another, and a call piles up no more than its limit.

Rules: a child that breaks the protocol or dies ends its calls with EPROTO; the next call starts another. One
that does not end a call that nobody wants any more within LET_GO_SECONDS gets no new calls, and is killed
when the others have ended. Ids are never used again, so late words for an ended call are known as such.
This file must never know how a call arrives, nor what a manifest looks like.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault, is_code
from cortexfs.host import children, linux, process
from cortexfs.host.programs import Program
from cortexfs.host.runtime import sentence
from cortexfs.tools.paths import owned

LET_GO_SECONDS = 0.5  # a cancelled run must end within one
# Of JSON around a text, and of characters that it writes as six.
_ROOM = 64 << 10
_END_SECONDS = 0.1  # from the end of its output to its own, for one that exits
_TRIES = 3  # to meet a child that has not just ended
_LAST_READS = 16  # what a pipe of 1 MiB holds, the largest that a user may have
_CLONE_FS = 0x200  # unshare(2)
_Command: TypeAlias = tuple[tuple[str, ...], str, tuple[tuple[str, str], ...]]


class _Note(msgspec.Struct, frozen=True):
    content: str
    source: str | None = None


class _Medium(msgspec.Struct, frozen=True):
    media_type: str
    mime_type: str
    url: str
    caption: str | None = None
    size: int | None = None


class _Said(msgspec.Struct, frozen=True):
    """One line of the child. What it does not know of, it may add: unknown fields are ignored."""

    id: int
    delta: str | None = None
    progress: str | None = None
    observer: _Note | None = None
    media: _Medium | None = None
    output: str | None = None
    is_error: bool = False
    code: str | None = None  # of an error: an errno name


class _Cancelled(NamedTuple):
    pass


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Said).decode
_Item: TypeAlias = _Said | Fault | _Cancelled


class StreamingTool(process.ProcessTool):
    def __init__(self, program: Program, companions: Companions) -> None:
        super().__init__(program)
        self._companions = companions
        self.capabilities = self.capabilities._replace(emits_progress=True, emits_observer_text=True)

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        call = _Call(self._program)
        runtime.on_cancel(call.cancel)
        deadline = process.deadline(self._program)
        for _ in range(_TRIES):
            child = self._companions.child(self._program, runtime.environ)
            try:
                asked = {"input": input, "cwd": os.getcwd()} | process.dry_run(runtime)
                if child.begin(call, asked):
                    return call.follow(runtime, deadline)
            finally:
                try:
                    child.leave(call)
                finally:
                    child.leave(call)
        raise Fault("EPROTO", f"the child of the tool {self.name} ends as soon as it is started")


class _Call:
    """One call, and what the child has said to it that was not yet passed on."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.id = 0
        self.is_sent = False
        self.ended = False  # the child has said its last word to it
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._heard = 0

    def cancel(self) -> None:
        """Called from another thread, at any time."""
        self._items.put(_Cancelled())

    def put(self, item: _Said | Fault, size: int = 0) -> None:
        """From the child's thread. What is over the limit is not kept."""
        limit = self.program.output_bytes
        if self._heard > limit:
            return
        self._heard += size
        if self._heard > limit:
            told = f"process-isolated tool '{self.program.name}' exceeded output limit of {limit} bytes"
            item = Fault("EIO", told)
        self._items.put(item)

    def follow(self, runtime: sdk.ToolRuntime, deadline: float | None) -> sdk.ToolResult:
        media: list[sdk.Attachment] = []
        while True:
            said = self._next(deadline)
            if said.progress is not None:
                runtime.emit_progress(said.progress)
            if said.observer is not None:
                runtime.emit_observer(said.observer.source, said.observer.content)
            if said.media is not None:
                media.append(sdk.Attachment(*msgspec.structs.astuple(said.media)))
            if said.delta is not None:
                runtime.emit(said.delta)
            if said.output is not None:
                if said.is_error and said.code is not None and is_code(said.code):
                    raise sdk.ExecutionFailed(said.output, said.code)
                return sdk.ToolResult(said.output, tuple(media), said.is_error)

    def _next(self, deadline: float | None) -> _Said:
        try:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            item = self._items.get(timeout=left)
        except queue.Empty:
            told = f"process-isolated tool '{self.program.name}' timed out after {self.program.timeout}s"
            raise sdk.ExecutionFailed(told, "ETIMEDOUT") from None
        if isinstance(item, Fault):
            raise item
        if isinstance(item, _Cancelled):
            raise sdk.ExecutionFailed("cancelled", "ECANCELED")
        return item


class Companions:
    """The warm children of one host: one for each command line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[_Command, Companion] = {}

    def child(self, program: Program, caller: Mapping[str, str]) -> Companion:
        """The child for this tool, which is started where there is none. Its environment is that of the
        call that started it."""
        fixed = tuple(sorted(program.environment.items()))
        command = (tuple(program.argv), program.working_dir, fixed)
        with self._lock:
            found = self._children.get(command)
            if found is None or not found.is_open:
                found = self._children[command] = Companion(program, process.environment(program, caller))
                try:
                    found.start()
                except BaseException:  # a cancelled call, too: it goes on, and no child stays
                    found.close()
                    raise
        return found


class Companion:
    """One warm child, its thread, and the calls that it has yet to answer."""

    def __init__(self, program: Program, environment: dict[str, str]) -> None:
        self._program = program
        self._environment = environment
        self._lock = threading.Lock()
        self._running = self._closing = False
        self._calls: dict[int, _Call] = {}
        self._owed: dict[int, float] = {}  # calls that nobody wants any more, and when they must have ended
        self._last = 0
        self._outbox = bytearray()
        self._inbox = bytearray()
        self._ignored = 0
        self._waker = owned(os.eventfd, 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._child = children.Child(with_errors=False)

    # -- calls, from their own threads, which a cancellation may strike at any instruction

    @property
    def is_open(self) -> bool:
        return self._running and not self._closing

    def start(self) -> None:
        answer: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(answer,), daemon=True).start()
        if (error := answer.get()) is not None:
            raise process.failed_to_spawn(self._program.name, error)

    def close(self) -> None:
        """It ends when its calls have."""
        with self._lock:
            self._closing = True
            self._wake()

    def begin(self, call: _Call, asked: dict[str, Any]) -> bool:
        """Whether it takes the call; it may have ended since it was looked at."""
        with self._lock:
            if not self.is_open:
                return False
            self._last += 1
            call.id = self._last
            self._calls[call.id] = call
            request = {"id": call.id, "tool": call.program.name} | asked
            self._outbox += _encode(request) + b"\n"
            call.is_sent = True
            self._wake()
            return True

    def leave(self, call: _Call) -> None:
        """The call is over for its caller. May be repeated."""
        with self._lock:
            if call.id not in self._calls:
                return
            if call.is_sent and not call.ended:
                self._owed[call.id] = time.monotonic() + LET_GO_SECONDS
                self._outbox += _encode({"cancel": call.id}) + b"\n"
            if not call.ended or self._closing:
                self._wake()
            del self._calls[call.id]

    def _wake(self) -> None:
        if not self._waker.closed:
            os.eventfd_write(self._waker.fileno(), 1)

    # -- the child's thread

    def _run(self, answer: queue.SimpleQueue[OSError | None]) -> None:
        program = self._program
        argv = children.limited(program.argv, program.memory_bytes, program.cpu_seconds)
        try:
            linux.unshare(_CLONE_FS)  # the directory is that of the call's thread, too
            os.chdir(program.working_dir)
            self._child.start(argv, self._environment)
            os.chdir("/")
        except OSError as error:
            self._child.end()
            self._waker.close()
            answer.put(error)
            return
        self._running = True
        answer.put(None)
        why = "ended"
        try:
            why = self._serve()
        except Fault as fault:
            why = f"broke the protocol: {fault.message}"
        except Exception as error:  # the thread has nobody above it; the child's calls end with it
            why = f"could not be served: {sentence(error)}"
        finally:
            self._end(why)

    def _serve(self) -> str:
        """Sort what the child says, until it is no more use; why that is."""
        while True:
            readable, gone = self._wait()
            if readable and not self._read():
                return "ended" if gone or self._child.ends_within(_END_SECONDS) else "closed its output"
            if gone:
                self._child.kill()
                for _ in range(_LAST_READS):
                    if not self._read():
                        break
                return "ended"
            with self._lock:
                self._write()
                self._look_for_the_overdue()
                if self._closing and not self._calls:
                    return "was not wanted any more"

    def _write(self) -> None:
        """What the child takes now."""
        try:
            while self._outbox:
                with memoryview(self._outbox) as view, view[: children.CHUNK] as some:
                    taken = os.write(self._child.stdin.fileno(), some)
                del self._outbox[:taken]
        except BlockingIOError:
            return
        except OSError:  # it does not read any more; its end tells the calls
            self._outbox.clear()

    def _look_for_the_overdue(self) -> None:
        now = time.monotonic()
        if any(due <= now for due in self._owed.values()):
            self._closing = True
            self._owed.clear()

    def _wait(self) -> tuple[bool, bool]:
        process = self._child.process
        assert process is not None
        look = select.poll()
        look.register(self._waker, select.POLLIN)
        look.register(self._child.stdout, select.POLLIN)
        look.register(process, select.POLLIN)
        with self._lock:
            if self._outbox:
                look.register(self._child.stdin, select.POLLOUT)
            due = min(self._owed.values(), default=None)
        left = None if due is None else max(0.0, due - time.monotonic()) * 1000 + 1
        ready = {fd for fd, _ in look.poll(left)}
        with suppress(BlockingIOError):
            os.eventfd_read(self._waker.fileno())
        return self._child.stdout.fileno() in ready, process.fileno() in ready

    def _read(self) -> bool:
        try:
            data = os.read(self._child.stdout.fileno(), children.CHUNK)
        except BlockingIOError:
            return False
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._hear(bytes(self._inbox) + line)
            self._inbox.clear()
        self._inbox += rest
        if len(self._inbox) > self._program.output_bytes + _ROOM:
            raise Fault("EPROTO", "it said a line that is over the limit of its output")
        return bool(data)

    def _hear(self, line: bytes) -> None:
        try:
            said = _decode(line)
        except (ValueError, RecursionError) as error:
            raise Fault("EPROTO", f"it said a line that is none: {sentence(error)}") from None
        with self._lock:
            if not 0 < said.id <= self._last:
                raise Fault("EPROTO", f"it answered the call {said.id}, which there never was")
            call = self._calls.get(said.id)
            if call is None or call.ended:
                self._ignore(said, len(line))
            else:
                call.ended = said.output is not None
                call.put(said, len(line))

    def _ignore(self, said: _Said, size: int) -> None:
        """Words for a call that is over. While it has time to let go there may be any; later, no flood."""
        if said.id not in self._owed:
            self._ignored += size
        if said.output is not None:
            self._owed.pop(said.id, None)
            if not self._owed:
                self._ignored = 0
        if self._ignored > self._program.output_bytes + _ROOM:
            raise Fault("EPROTO", "it goes on about calls that were cancelled")

    def _end(self, why: str) -> None:
        self._child.kill()
        with self._lock:
            self._closing = True
            left, self._calls = [*self._calls.values()], {}
            self._child.end()
            self._waker.close()
        how = f" with {process.status_text(self._child.status)}" if why == "ended" else ""
        for call in left:
            if not call.ended:
                told = f"the child of the tool {call.program.name} {why}{how}"
                call.put(Fault("EPROTO", told))
        print(f"{self._program.argv[0]}: the warm child {why}{how}", file=sys.stderr)
