"""One call as its tool sees it, and the way back to the daemon.

Rules: every message is sent whole, under a lock, as a tool may speak from several threads; none is sent after
the last one. `ToolCancelled` is raised in the tool's thread at most once, between `begin` and `end`, and not
where the thread is `shielded`.
This file must never know how calls arrive or which thread serves them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls, wire
from cortexfs.core.arguments import parse
from cortexfs.core.errors import Fault, code_of, is_code
from cortexfs.tools.support.locked import locked

MAX_FAULT = 64 << 10
MAX_SOURCE = 1 << 10  # of an observer's note
MAX_REQUEST = wire.MAX_STRINGS + (1 << 20)  # the strings of a greeting, and what surrounds them
_RECEIVE = 64 << 10  # from 128 KiB on, malloc(3) would map and unmap it
# The daemon ends a call at its timeout, from when it passed it on. What runs it ends it a little before, so
# that it is its sentence that is said, unless the machine is very busy.
EARLY_SECONDS = 0.05
STEP = 0.2  # of a wait that may be cancelled

T = TypeVar("T")

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_clear = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
_requests: msgspec.msgpack.Decoder[hostcalls.Request] = msgspec.msgpack.Decoder(hostcalls.Request)
_answers = msgspec.msgpack.Decoder(tuple[str, bytes])
_tool_answers = msgspec.json.Decoder(hostcalls.ToolAnswer)
_pack = msgspec.msgpack.Encoder().encode


class ToolCancelled(BaseException):
    """Raised in a tool's thread when nobody waits for its answer any more."""


def raise_again(ignored: sys.UnraisableHookArgs) -> None:
    """For sys.unraisablehook: a cancellation that struck where nothing can be raised, as in a destructor or
    beside a fork, is raised where the thread goes on."""
    if ignored.exc_type is ToolCancelled:
        # Another one would strike in here. The profiler is asked before and after each call from now on.
        sys.setprofile(_strike)
    else:
        sys.__unraisablehook__(ignored)


def _strike(frame: FrameType, event: str, argument: object) -> None:
    if frame.f_code is not raise_again.__code__:
        sys.setprofile(None)
        raise ToolCancelled


class Runtime(sdk.ToolRuntime):
    """Made by the thread that will run the tool.

    Its attributes are the call's stream, and how far its end has come, which three threads may bring about.
    """

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(sdk.InvocationContext(""))
        self.stream = stream
        self._thread = threading.get_ident()
        self._splitter = wire.Splitter(MAX_REQUEST)
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._sending = threading.Lock()
        self._said_all = False
        # Called before the last message: who hears it closes the call, which is no leaving any more.
        self.unwatch: Callable[[], None] = nothing
        self.is_worn: Callable[[], bool] = unworn
        self._state = threading.Lock()
        self._ended = self._shielded = self._late = False
        self.answers: frozenset[str] = frozenset()  # the methods of questions that somebody takes

    # -- what the tool sees

    def emit(self, text: str) -> None:
        for piece in _pieces(text):
            self.send(wire.message(wire.DELTA, piece))

    def emit_event(self, event: tuple[Any, ...]) -> None:
        if isinstance(event, sdk.Attachment):
            return self.send(_medium(event))
        for data in _events(event):
            self.send(wire.message(wire.EVENT, data))

    def emit_progress(self, message: str) -> None:
        self.send(wire.message(wire.PROGRESS, _bounded(message).encode()))

    def emit_observer(self, source: str | None, content: str) -> None:
        source = source and _bounded(source, MAX_SOURCE)
        for piece in _pieces(content):
            self.send(wire.message(wire.OBSERVER, _pack((source, piece.decode()))))

    # -- what the host does with it

    def request(self) -> hostcalls.Request:
        kind, payload = self._receive()
        if kind != wire.REQUEST:
            raise Fault("EPROTO", "the daemon did not begin with a request")
        return _requests.decode(payload)

    def begin(self, call: hostcalls.CallRequest) -> None:
        seen = call.invocation
        scope = sdk.ExecutionScope.BACKGROUND if seen.background else sdk.ExecutionScope.FOREGROUND
        self.invocation = sdk.InvocationContext(
            seen.tool_name, seen.session_id, seen.actor, seen.source, scope
        )
        self.environ = {os.fsdecode(key): os.fsdecode(value) for key, value in call.environment.items()}
        self.answers = frozenset(call.answers)

    def read_input(self) -> bytes:
        """All of the caller's standard input."""
        self.send(wire.message(wire.WANT, wire.U32.pack(parse.MAX_INPUT + 1)))
        data = bytearray()
        while True:
            kind, chunk = self._receive()
            if kind != wire.STDIN:
                raise Fault("EPROTO", "the daemon sent something else than standard input")
            if not chunk:
                return bytes(data)
            data += chunk
            if len(data) > parse.MAX_INPUT:
                raise Fault("EMSGSIZE", "the input is over 16 MiB")

    def show(self, input_: dict[str, Any]) -> tuple[str, bytes] | None:
        """Let the daemon see it, and wait: who has changed it and into what, or None."""
        for piece in _pieces(_json(input_)):
            self.send(wire.message(wire.INPUT, piece))
        self.send(wire.message(wire.INPUT))
        kind, payload = self._receive()
        if kind != wire.INPUT:
            raise Fault("EPROTO", "the daemon did not say with which input to go on")
        return _answers.decode(payload) if payload else None

    def question(self, asked: hostcalls.ToolQuestion) -> hostcalls.ToolAnswer | None:
        """Ask the person for whom the tool runs, and wait; None where nobody can be asked that."""
        if asked.method not in self.answers:
            return None
        data = msgspec.json.encode(asked)
        if len(data) > wire.MAX_TEXT:
            raise Fault("EMSGSIZE", f"the question is over {wire.MAX_TEXT >> 10} KiB")
        self.send(wire.message(wire.QUESTION, data))
        kind, payload = self._receive()
        if kind != wire.QUESTION:
            raise Fault("EPROTO", "the daemon did not answer a question")
        return _tool_answers.decode(payload)

    def _receive(self) -> tuple[int, bytes]:
        while not self._inbox:
            data = self.stream.recv(_RECEIVE)
            if not data:
                raise ToolCancelled
            self._inbox.extend(self._splitter.feed(data))
        return self._inbox.popleft()

    def send(self, data: bytes, last: bool = False) -> None:
        locked(self._sending, partial(self._send, data, last))

    def _send(self, data: bytes, last: bool) -> None:
        if self._said_all:
            raise ValueError("this call has ended; nobody hears what a thread says that it left behind")
        if last:
            self.unwatch()
        self.stream.sendall(data)
        self._said_all = last

    def done(self, result: sdk.ToolResult | None = None) -> None:
        out = bytearray()
        if result is not None:
            for attachment in result.media:
                out += _medium(attachment)
            if result.is_error:
                out += wire.message(wire.FAULT, _pack(("EIO", _bounded(result.output))))
            else:
                *first, last = list(_pieces(result.output)) or [b""]
                for piece in first:
                    self.send(wire.message(wire.DELTA, piece))
                if last:
                    out += wire.message(wire.DELTA, last)
        self._end(bytes(out))

    def fail(self, error: BaseException, noted: Callable[[], str]) -> None:
        """`noted` is asked what to add where the error is no answer of the tool, but a bug in it."""
        if isinstance(error, ToolCancelled):
            return
        code, text = _blame(error, noted)
        self._end(wire.message(wire.FAULT, _pack((code, _bounded(text)))))

    def _end(self, out: bytes) -> None:
        self.send(out + wire.message(wire.DONE, wire.WORN if self.is_worn() else b""), last=True)

    # -- its end

    def interrupt(self) -> None:
        """Nobody waits for this call any more. Called by another thread, once."""
        try:
            self.cancel()
        except Exception as error:  # a plugin's callback; its tool is to end all the same
            print(f"on_cancel: {sentence(error)}", file=sys.stderr)
        with self._state:
            self._late = self._shielded
            if not self._ended and not self._shielded:
                _raise_in(self._thread, ToolCancelled)

    def shield(self) -> None:
        """Until `bare`, `ToolCancelled` is not raised; what was on its way is raised in here."""
        locked(self._state, partial(setattr, self, "_shielded", True))

    def bare(self) -> None:
        """Raises the cancellation that came meanwhile."""
        locked(self._state, partial(setattr, self, "_shielded", False))
        if self._late:
            self._late = False
            raise ToolCancelled

    def end(self) -> None:
        """Nothing is raised after this; what was on its way is taken back, or raised in here."""
        locked(self._state, self._taken_back)

    def _taken_back(self) -> None:
        self._ended = True
        _clear(self._thread, None)
        if sys.getprofile() is _strike:
            sys.setprofile(None)

    def close(self) -> None:
        """Close the stream, also when a thread that the tool left behind still sends on it."""
        if not self._sending.acquire(blocking=False):
            with contextlib.suppress(OSError):
                self.stream.shutdown(socket.SHUT_RDWR)
            self._sending.acquire()
        self._said_all = True
        self._sending.release()
        self.stream.close()


def apart(work: Callable[[], T]) -> T:
    """Returns what `work` does in a thread of its own, where no cancellation strikes: what is done by half
    could stay so. What that thread gives up is its own."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # the thread has nobody above it; whoever waits raises this
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result()


def aside(work: Callable[[], object]) -> None:
    """Do this in a thread and do not wait for it, unless there are no more threads."""
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:
        work()


@contextlib.contextmanager
def shielded(runtime: sdk.ToolRuntime) -> Iterator[None]:
    """Where a cancellation would leave something half done, and is heard of by `on_cancel`."""
    if not isinstance(runtime, Runtime):
        yield
        return
    runtime.shield()
    try:
        yield
    finally:
        runtime.bare()


def own_umask() -> int:
    """Of this thread, which has one of its own in a host."""
    os.umask(umask := os.umask(0o077))
    return umask


def nothing() -> None:
    pass


def unworn() -> bool:
    return False


def _pieces(text: str) -> Iterator[bytes]:
    """UTF-8 in pieces that fit a frame, never cut inside a character."""
    data = _utf8(text)
    start = 0
    while len(data) - start > wire.MAX_TEXT:
        stop = start + wire.MAX_TEXT
        while data[stop] & 0xC0 == 0x80:
            stop -= 1
        yield data[start:stop]
        start = stop
    if start < len(data):
        yield data[start:] if start else data


def _medium(attachment: sdk.Attachment) -> bytes:
    data = msgspec.json.encode(attachment._asdict())
    if len(data) > wire.MAX_TEXT:
        why = f"over {wire.MAX_TEXT >> 10} KiB of text; an attachment names a file or a URL"
        raise Fault("EPROTO", f"the tool attached {why}")
    return wire.message(wire.MEDIA, data)


def _json(value: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # as below, and in JSON too
        return json.dumps(value, ensure_ascii=False)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, as in a file name that is not UTF-8
        return text.encode(errors="replace")


def _bounded(text: str, most: int = MAX_FAULT) -> str:
    return _utf8(text[:most])[:most].decode(errors="ignore")


def _events(event: tuple[Any, ...]) -> Iterator[bytes]:
    """Returns a model's words beside its text, as frames; a long thought in pieces."""
    match event:
        case sdk.Reasoning(text):
            for piece in _pieces(text):
                yield msgspec.json.encode({"type": "reasoning_delta", "text": piece.decode()})
        case sdk.ToolCall(call, name, input_):
            data = msgspec.json.encode({"type": "tool_call", "call": call, "name": name, "input": input_})
            if len(data) > wire.MAX_TEXT:
                raise Fault("EPROTO", f"a tool call of the model is over {wire.MAX_TEXT >> 10} KiB")
            yield data
        case sdk.Usage():
            yield msgspec.json.encode({"type": "usage", **event._asdict()})


def _blame(error: BaseException, noted: Callable[[], str]) -> tuple[str, str]:
    """abi.md 4.29, 4.30: whose fault an exception is, as code and sentence."""
    match error:
        case Fault():
            return error.code, error.message
        case sdk.ToolError():
            return (error.code if is_code(error.code) else "EIO"), _words(error)
        case OSError():
            return code_of(error.errno), sentence(error)
    return "EPROTO", f"the tool failed: {sentence(error)}{noted()}"


def sentence(error: BaseException) -> str:
    """Returns an exception's words for a person."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return where + error.strerror
    text = " ".join(_words(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _words(error: BaseException) -> str:
    try:
        return Exception.__str__(error) if isinstance(error, sdk.ToolError) else str(error)
    except Exception:  # it is the plugin's, and may fail at this too
        return ""
