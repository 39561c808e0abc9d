"""One call as its tool sees it, and the way back to the daemon.

Rules: every message is sent whole, under a lock, as a tool may send from several threads. None is sent after
the last one. `ToolCancelled` is raised in the tool's thread at most once, between `begin` and `end`, and not
while the thread is `shielded`.
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
MAX_REQUEST = wire.MAX_STRINGS + (1 << 20)  # the strings of a greeting, and their frame
_RECEIVE = 64 << 10  # from 128 KiB on, malloc(3) would map and unmap it
# The daemon ends a call when its timeout has passed since it passed the call on. A tool ends a little before,
# so that the tool's own sentence is the error, unless the machine is very busy.
EARLY_SECONDS = 0.05
STEP = 0.2  # the longest step of a wait that may be cancelled

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
    """Raised in a tool's thread when its call is cancelled."""


def raise_again(ignored: sys.UnraisableHookArgs) -> None:
    """A sys.unraisablehook. A cancellation may strike where nothing can be raised, as in a destructor or
    beside a fork: then it is raised where the thread goes on."""
    if ignored.exc_type is ToolCancelled:
        # It would strike in here again. From now on the profiler is called at each call and return.
        sys.setprofile(_strike)
    else:
        sys.__unraisablehook__(ignored)


def _strike(frame: FrameType, event: str, argument: object) -> None:
    if frame.f_code is not raise_again.__code__:
        sys.setprofile(None)
        raise ToolCancelled


class Runtime(sdk.ToolRuntime):
    """Created by the thread that will run the tool.

    Its attributes are the call's stream and the state of its end, to which three threads may lead.
    """

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(sdk.InvocationContext(""))
        self.stream = stream
        self._thread = threading.get_ident()
        self._splitter = wire.Splitter(MAX_REQUEST)
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._sending = threading.Lock()
        self._is_complete = False
        # Called before the last message: its receiver closes the call, and that must not count as leaving.
        self.unwatch: Callable[[], object] = object
        self.is_worn: Callable[[], bool] = bool
        self._state = threading.Lock()
        self._ended = self._shielded = self._late = False
        self.answers: frozenset[str] = frozenset()  # the methods of questions that can be answered

    # -- called by the tool

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

    # -- called by the host

    def request(self) -> hostcalls.Request:
        kind, payload = self._receive()
        if kind != wire.REQUEST:
            raise Fault("EPROTO", "the first message of the daemon is not a request")
        return _requests.decode(payload)

    def begin(self, call: hostcalls.CallRequest) -> None:
        invocation = call.invocation
        scope = sdk.ExecutionScope.BACKGROUND if invocation.background else sdk.ExecutionScope.FOREGROUND
        self.invocation = sdk.InvocationContext(
            invocation.tool_name, invocation.session_id, invocation.actor, invocation.source, scope
        )
        self.environ = {os.fsdecode(key): os.fsdecode(value) for key, value in call.environment.items()}
        self.answers = frozenset(call.answers)

    def read_input(self) -> bytes:
        """Returns all of the caller's standard input."""
        self.send(wire.message(wire.WANT, wire.U32.pack(parse.MAX_INPUT + 1)))
        data = bytearray()
        while True:
            kind, chunk = self._receive()
            if kind != wire.STDIN:
                raise Fault("EPROTO", "the daemon sent another message than standard input")
            if not chunk:
                return bytes(data)
            data += chunk
            if len(data) > parse.MAX_INPUT:
                raise Fault("EMSGSIZE", "the input is over 16 MiB")

    def show(self, input_: dict[str, Any]) -> tuple[str, bytes] | None:
        """Show the input to the daemon, and wait. Returns a plugin's name and its changed input, or None."""
        for piece in _pieces(_json(input_)):
            self.send(wire.message(wire.INPUT, piece))
        self.send(wire.message(wire.INPUT))
        kind, payload = self._receive()
        if kind != wire.INPUT:
            raise Fault("EPROTO", "the daemon did not answer with the input to use")
        return _answers.decode(payload) if payload else None

    def question(self, question: hostcalls.ToolQuestion) -> hostcalls.ToolAnswer | None:
        """Ask the person for whom the tool runs, and wait. Returns None if nobody can be asked this."""
        if question.method not in self.answers:
            return None
        data = msgspec.json.encode(question)
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
        if self._is_complete:
            raise ValueError("this call has ended, so output of a thread that it left behind is dropped")
        if last:
            self.unwatch()
        self.stream.sendall(data)
        self._is_complete = last

    def done(self, result: sdk.ToolResult | None = None) -> None:
        out = bytearray()
        if result is not None:
            try:
                result = msgspec.convert(tuple(result), sdk.ToolResult)
            except msgspec.ValidationError as error:
                raise Fault("EPROTO", f"the tool returned a wrong ToolResult: {error}") from None
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

    def fail(self, error: BaseException, log_bug: Callable[[], str]) -> None:
        """End the call with a fault. If the error is a bug in the tool, `log_bug` returns more of the
        sentence."""
        if isinstance(error, ToolCancelled):
            return
        code, text = _blame(error, log_bug)
        self._end(wire.message(wire.FAULT, _pack((code, _bounded(text)))))

    def _end(self, out: bytes) -> None:
        self.send(out + wire.message(wire.DONE, wire.WORN if self.is_worn() else b""), last=True)

    # -- its end

    def interrupt(self) -> None:
        """Cancel this call. Called by another thread, once."""
        try:
            self.cancel()
        except Exception as error:  # a plugin's callback; its tool has to end all the same
            print(f"on_cancel: {sentence(error)}", file=sys.stderr)
        with self._state:
            self._late = self._shielded
            if not self._ended and not self._shielded:
                _raise_in(self._thread, ToolCancelled)

    def shield(self) -> None:
        """Raise no `ToolCancelled` until `bare`. A cancellation on its way is raised in here."""
        locked(self._state, partial(setattr, self, "_shielded", True))

    def bare(self) -> None:
        """End the shield. Raises the cancellation that came meanwhile."""
        locked(self._state, partial(setattr, self, "_shielded", False))
        if self._late:
            self._late = False
            raise ToolCancelled

    def end(self) -> None:
        """Raise no cancellation from now on. One on its way is taken back, or raised in here."""
        locked(self._state, self._take_back)

    def _take_back(self) -> None:
        self._ended = True
        _clear(self._thread, None)
        if sys.getprofile() is _strike:
            sys.setprofile(None)

    def close(self) -> None:
        """Close the stream, even while a thread that the tool left behind sends on it."""
        if not self._sending.acquire(blocking=False):
            with contextlib.suppress(OSError):
                self.stream.shutdown(socket.SHUT_RDWR)
            self._sending.acquire()
        self._is_complete = True
        self._sending.release()
        self.stream.close()


def apart(work: Callable[[], T]) -> T:
    """Returns the result of `work`, run in a thread of its own. No cancellation strikes there, so `work` is
    never left half done. Powers that it gives up are lost to that thread alone."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # no caller is above it; the waiting thread raises this
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result()


def aside(work: Callable[[], object]) -> None:
    """Run `work` in a thread, without waiting for it; if there are no more threads, run it here."""
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError:
        work()


@contextlib.contextmanager
def shielded(runtime: sdk.ToolRuntime) -> Iterator[None]:
    """Hold back a cancellation where it would leave something half done. `on_cancel` still reports it."""
    if not isinstance(runtime, Runtime):
        yield
        return
    runtime.shield()
    try:
        yield
    finally:
        runtime.bare()


def own_umask() -> int:
    """Returns the umask of this thread, which has one of its own in a host."""
    os.umask(umask := os.umask(0o077))
    return umask


def _pieces(text: str) -> Iterator[bytes]:
    """Yields the text as UTF-8 in pieces that fit a frame, never cut inside a character."""
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
    data = msgspec.json.encode(msgspec.convert(attachment._asdict(), hostcalls.Medium))
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
    """Yields an event of a model as frames; a long thought as several."""
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


def _blame(error: BaseException, log_bug: Callable[[], str]) -> tuple[str, str]:
    """Returns an exception as code and sentence, by whose fault it is (abi.md 4.29, 4.30)."""
    match error:
        case Fault():
            return error.code, error.message
        case sdk.ToolError():
            return (error.code if is_code(error.code) else "EIO"), _words(error)
        case OSError():
            return code_of(error.errno), sentence(error)
    return "EPROTO", f"the tool failed: {sentence(error)}{log_bug()}"


def sentence(error: BaseException) -> str:
    """Returns the sentence of an exception for a person."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return f"{where}{error.strerror}"
    text = " ".join(_words(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _words(error: BaseException) -> str:
    try:
        return Exception.__str__(error) if isinstance(error, sdk.ToolError) else str(error)
    except Exception:  # the exception is the plugin's, and may fail at this, too
        return ""
