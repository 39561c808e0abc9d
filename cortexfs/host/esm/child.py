"""One Deno process of an ESM plugin: requests and answers in lines, told apart by ids, over two pipes.

Main path: `DenoProcess.ask` writes a request and waits for the lines of its id, which
host/process/persistent.py sorts. js/bootstrap.js is the other side and lists the lines.

Rules: a line counts only with the secret that the process received before any of the plugin's code ran. A
plugin that writes to the channel itself ends its process. If it does not end a cancelled call in time, its
one thread may be stuck: the calls that it has not read get EAGAIN.
This file must never know what tools or hooks are, nor what a plugin may do.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault, bare
from cortexfs.core.jsontext import why_unread
from cortexfs.host.call.runtime import apart, sentence, shielded
from cortexfs.host.esm.sayings import in_our_words
from cortexfs.host.esm.state import StateRefusal
from cortexfs.host.process import persistent
from cortexfs.host.process.pipe_reader import Leading
from cortexfs.host.process.wake_affinity import OneCore
from cortexfs.linux import syscalls

OUTPUT_BYTES = 16 << 20  # of one call, in all its lines; more is dropped
_LINE = OUTPUT_BYTES + persistent.ROOM
_LOOK_SECONDS = 0.1  # between two checks that the waiter for a start was not cancelled

Answer: TypeAlias = Callable[[str, tuple[Any, ...]], Any]


class EsmMessage(msgspec.Struct, frozen=True):
    id: int = 0
    result: Any = msgspec.UNSET
    error: str | None = None
    stack: str = ""
    delta: str | None = None
    progress: str | None = None
    ack: int = 0
    ask: int = 0
    what: str = ""
    args: tuple[Any, ...] = ()
    fatal: str | None = None

    @property
    def is_last(self) -> bool:
        return self.result is not msgspec.UNSET or self.error is not None


_decode = msgspec.json.Decoder(EsmMessage).decode


class EsmError(Exception):
    """The plugin's code threw this; the stack is Deno's."""

    def __init__(self, message: str, stack: str) -> None:
        super().__init__(message)
        self.stack = stack


class EsmCall(persistent.ChildCall[EsmMessage]):
    def __init__(self, nudge: Callable[[], None], granted: Sequence[str]) -> None:
        self._granted = granted
        over = f"its output for one call is over {OUTPUT_BYTES >> 20} MiB"
        super().__init__(OUTPUT_BYTES, over, "timed out", nudge)

    def follow(self, runtime: sdk.ToolRuntime | None, until: float, leading: Leading) -> Any:
        while True:
            if runtime is not None and self.waits():
                with shielded(runtime):
                    leading.lead(self.waits, until)
            message = self.next(until)
            if runtime is not None and message.progress is not None:
                runtime.emit_progress(message.progress)
            if runtime is not None and message.delta is not None:
                runtime.emit(message.delta)
            if message.error is not None:
                raise EsmError(in_our_words(message.error, self._granted), message.stack)
            if message.is_last:
                return message.result


class DenoStart(NamedTuple):
    """The start of the process. `confine` gives up the powers of the starting thread."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    umask: int
    confine: Callable[[], None]
    granted: Sequence[str] = ()  # the permissions of Deno that it has, perhaps not for all places


class DenoProcess(persistent.Warm[EsmCall]):
    BACKLOG = 64 << 20  # for a process that does not read

    def __init__(self, start: DenoStart, answer: Answer, subject: str) -> None:
        self._core = OneCore(is_used="run" not in start.granted)  # else it may start programs
        self._has_message = False  # it got a first message
        super().__init__(_LINE, f"{OUTPUT_BYTES >> 20} MiB")
        self._deno_start = start
        self._answer = answer
        self._subject = subject
        self._secret = secrets.token_hex(32).encode()
        self._acks: set[int] = set()  # of the owed calls, those whose cancel was read
        self._fatal = ""

    # -- from threads of calls

    def start(self) -> None:
        error = self._start()
        if isinstance(error, Fault):
            raise error
        if error is not None:
            raise Fault("EHOSTDOWN", f"{self._subject}: Deno does not start: {sentence(error)}")

    def ask(self, request: dict[str, Any], seconds: float, runtime: sdk.ToolRuntime | None = None) -> Any:
        """Returns the result. Raises `EsmError` with what the plugin threw, or `Fault` if there is no answer.

        With EAGAIN nothing of the request was done.
        """
        until = time.monotonic() + seconds
        call = EsmCall(self._leading.nudge, self._deno_start.granted)
        if runtime is not None:
            runtime.on_cancel(call.cancel)
        try:
            if runtime is None:  # the thread may be another call's, which must not be shielded for this one
                self._ask(call, request)
            else:
                with shielded(runtime):
                    self._leading.lead(call.waits, until, partial(self._ask, call, request))
            return call.follow(runtime, until, self._leading)
        finally:
            try:
                self._leave(call)
            finally:
                self._leave(call)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message without an answer."""
        with self._lock:
            if self.is_open:
                self._put(message)

    def _ask(self, call: EsmCall, request: dict[str, Any]) -> None:
        if not self._begin(call, request):
            raise Fault("EAGAIN", f"{self._subject} ends")

    def _put(self, message: dict[str, Any]) -> None:
        if self._has_message and len(self._calls) == 1:  # else it is awake: it starts, or has other calls
            self._core.wake(self._child.pid, partial(super()._put, message))
        else:
            super()._put(message)
        self._has_message = True

    # -- the process's thread

    def _spawn(self) -> None:
        apart(self._spawn_confined)  # powers given up are gone for good, and for its children, too
        self._outbox.put(self._secret + b"\n")

    def _spawn_confined(self) -> None:
        syscalls.unshare(syscalls.CLONE_FS)
        os.umask(self._deno_start.umask)
        os.chdir(self._deno_start.directory or "/")
        self._deno_start.confine()
        self._child.start(self._deno_start.argv, self._deno_start.environment)

    def _give_up(self, overdue: list[int]) -> None:
        """Lines are read in order: calls after one that the process has not read were not begun."""
        stuck = min((call for call in overdue if call not in self._acks), default=self._last)
        for call in self._calls.values():
            if call.id > stuck and not call.ended:
                call.ended = True
                call.put(Fault("EAGAIN", f"{self._subject} did not begin this call"))

    # -- called by the reader: the process's thread, or a call that leads

    def _hear(self, line: bytes) -> None:
        if not line.startswith(self._secret):
            raise Fault("EPROTO", "wrote to the channel of its host")
        try:
            message = _decode(line[len(self._secret) :])
        except (ValueError, RecursionError) as error:
            raise Fault("EPROTO", f"sent its host a wrong message: {why_unread(error)}") from None
        if message.ask:
            self._reply(message)
        elif message.fatal is not None:
            self._fatal = message.fatal
        else:
            with self._lock:
                self._handle(message, len(line))

    def _handle(self, message: EsmMessage, size: int) -> None:
        if message.ack:
            self._acks |= {message.ack} & self._owed.keys()
            return
        self._sort(message.id, message, size, message.is_last)
        if message.is_last:
            self._acks.discard(message.id)

    def _reply(self, message: EsmMessage) -> None:
        answer: dict[str, Any] = {"answer": message.ask}
        try:
            answer["value"] = self._answer(message.what, message.args)
        except StateRefusal as refused:
            answer["error"] = str(refused)
        with self._lock:
            self._put(answer)

    def _tell(self, why: str, ending: str, calls: list[EsmCall]) -> None:
        if self._fatal:
            why = f"{why}: {self._fatal}"
        for call in calls:
            call.put(Fault("EPROTO", f"{self._subject} {why}{ending}"))
        if calls or self._fatal:
            print(f"{self._subject} {why}", file=sys.stderr)


class ProcessPlace(NamedTuple):
    """The facts about a call that decide which process serves it."""

    directory: str
    umask: int


ANYWHERE = ProcessPlace("", 0o077)


class DenoChild(Future[DenoProcess]):
    """A process, as soon as there is one, or a Fault."""

    @property
    def is_open(self) -> bool:
        return not self.done() or (self.exception() is None and self.result().is_open)

    def process(self, runtime: sdk.ToolRuntime | None) -> DenoProcess:
        while not wait([self], _LOOK_SECONDS).done:
            if runtime is not None and runtime.cancelled:
                raise sdk.ExecutionFailed("cancelled", "ECANCELED")
        if isinstance(fault := self.exception(), Fault):
            raise bare(fault)
        return self.result()
