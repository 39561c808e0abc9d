"""What runs inside a host: take calls, turn them into inputs, run the tool, answer in messages.

The process is already the caller when this starts (host/identity.py), so nothing here decides who
may do what. Main path: `_work` takes a packet, `_answer` runs one call, `_Runtime` is what the tool
sees of us.

Threads: the main thread only watches for callers that leave; every other thread is a worker that
waits for a call itself (leader and followers), so a call costs no hand-over. Each worker has its
own working directory and umask, by unshare(CLONE_FS): a tool may use relative paths although its
neighbours stand elsewhere.

This file must never know of FUSE, the tree, frames or policy.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from cortexfs import sdk
from cortexfs.core import arguments, calls, wire
from cortexfs.core.errors import Fault, code_of, is_code
from cortexfs.host.validation import Validator

CLONE_FS = 0x200
# A delta of control characters grows sixfold in JSON, and a frame may have 1 MiB (seed 002).
MAX_TEXT = 128 << 10
MAX_FAULT = 64 << 10
SPARE_WORKERS = 4
MAX_REQUEST = wire.MAX_STRINGS + (1 << 20)  # the strings of a greeting, and what surrounds them

_libc = ctypes.CDLL(None, use_errno=True)
_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_clear = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
_requests: msgspec.msgpack.Decoder[calls.Request] = msgspec.msgpack.Decoder(calls.Request)
_pack = msgspec.msgpack.Encoder().encode


class Cancelled(BaseException):
    """Raised in a tool's thread when nobody waits for its answer any more."""


def serve(control: socket.socket, plugin: calls.Plugin) -> NoReturn:
    """Answer calls until the daemon closes the control socket, or a fault ends the process."""
    sys.setswitchinterval(0.001)  # a busy tool must not hold its neighbours' answers up for 5 ms
    host = _Host(control, plugin)
    host.start_worker()
    host.watch()


class _Host:
    def __init__(self, control: socket.socket, plugin: calls.Plugin) -> None:
        self._control = control
        self._plugin = plugin
        self._lock = threading.Lock()
        self._waiting = 0
        self._calls: dict[int, _Runtime] = {}
        self._leavers = select.epoll()
        self._tools: dict[str, tuple[sdk.Tool, Validator]] | None = None
        self._loading = threading.Lock()

    # -- threads

    def start_worker(self) -> None:
        with self._lock:
            self._waiting += 1
        threading.Thread(target=self._work, daemon=True).start()

    def watch(self) -> NoReturn:
        """Cancel each call whose caller has left or half-closed."""
        while True:
            for number, _ in self._leavers.poll():
                with contextlib.suppress(OSError):
                    self._leavers.unregister(number)
                with self._lock:
                    runtime = self._calls.get(number)
                if runtime is not None:
                    runtime.interrupt()

    def _work(self) -> None:
        if _libc.unshare(CLONE_FS):
            os._exit(os.EX_OSERR)
        while True:
            try:
                data, rights, _, _ = socket.recv_fds(self._control, 1, 2, socket.MSG_CMSG_CLOEXEC)
            except OSError:
                os._exit(os.EX_OSERR)
            if not data:
                os._exit(os.EX_OK)
            with self._lock:
                self._waiting -= 1
                last = not self._waiting
            if last:
                self.start_worker()
            self._answer(rights)
            with self._lock:
                if self._waiting >= SPARE_WORKERS:
                    return
                self._waiting += 1

    # -- one call

    def _answer(self, rights: list[int]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, rights[0]) as stream:
            runtime = _Runtime(stream)
            try:
                self._admit(runtime)
                try:
                    self._run(runtime, rights[1:])
                except BaseException as error:
                    runtime.fail(error)
                self._dismiss(runtime)
            except Cancelled:
                self._dismiss(runtime)
            except OSError:
                pass  # the daemon has closed the call; there is nobody to tell
            finally:
                for number in rights[1:]:
                    os.close(number)

    def _admit(self, runtime: _Runtime) -> None:
        number = runtime.stream.fileno()
        with self._lock:
            self._calls[number] = runtime
        self._leavers.register(number, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _dismiss(self, runtime: _Runtime) -> None:
        """Forget the call, and whatever cancellation was still on its way to this thread."""
        while True:
            try:
                with self._lock:
                    self._calls.pop(runtime.stream.fileno(), None)
                runtime.end()
                return
            except Cancelled:
                continue

    def _run(self, runtime: _Runtime, rights: list[int]) -> None:
        request = runtime.request()
        if isinstance(request, calls.Describe):
            tools = [sdk.descriptor(tool) for tool, _ in self._loaded().values()]
            runtime.send(wire.message(wire.DESCRIPTORS, msgspec.json.encode(tools)))
            runtime.done()
            return
        _stand(rights, request.umask)
        runtime.begin(request)
        tool, validator = self._tool(request.invocation.tool_name)
        if request.input is not None:
            value = arguments.json_object(request.input)
        else:
            value = arguments.tool_input(request.args or (), validator.schema, runtime.read_input)
        validator.check(value)
        runtime.done(sdk.run(tool, value, runtime))

    def _tool(self, name: str) -> tuple[sdk.Tool, Validator]:
        try:
            return self._loaded()[name]
        except KeyError:
            raise Fault("ENOENT", f"the plugin {self._plugin.name} no longer has a tool {name}") from None

    def _loaded(self) -> dict[str, tuple[sdk.Tool, Validator]]:
        with self._loading:
            if self._tools is None:
                self._tools = _load(self._plugin)
            return self._tools


def _stand(rights: list[int], umask: int) -> None:
    """Take the caller's working directory and umask, for this thread alone."""
    try:
        os.fchdir(rights[0])
    except (OSError, IndexError):  # without rights, the caller could not open it either
        raise Fault("EACCES", "you may not enter your working directory; change to another one") from None
    os.umask(umask & 0o777)


def _load(plugin: calls.Plugin) -> dict[str, tuple[sdk.Tool, Validator]]:
    """Import the plugin's code. Its faults are its own: any exception says why it is broken."""
    if plugin.path and plugin.path not in sys.path:
        sys.path.insert(0, plugin.path)
    module, _, attribute = plugin.target.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in filter(None, attribute.split(".")):
            target = getattr(target, part)
        _, tools = sdk.tools_of(target)
        return {tool.name: (tool, Validator(tool.input_schema)) for tool in tools}
    except Fault:
        raise
    except BaseException as error:
        raise Fault("EPROTO", f"the plugin {plugin.name} does not load: {_sentence(error)}") from None


class _Runtime(sdk.ToolRuntime):
    """One call as its tool sees it, and the way back to the daemon."""

    def __init__(self, stream: socket.socket) -> None:
        super().__init__(sdk.InvocationContext(""))
        self.stream = stream
        self._thread = threading.get_ident()
        self._splitter = wire.Splitter(MAX_REQUEST)
        self._inbox: list[tuple[int, bytes]] = []
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._ended = False

    # -- what the tool sees

    def emit(self, text: str) -> None:
        for piece in _pieces(text):
            self.send(wire.message(wire.DELTA, piece))

    def emit_progress(self, message: str) -> None:
        self.send(wire.message(wire.PROGRESS, _utf8(message)[:MAX_FAULT]))

    def emit_observer(self, source: str | None, content: str) -> None:
        for piece in _pieces(content):
            self.send(wire.message(wire.OBSERVER, _pack((source, piece.decode()))))

    # -- what the host does with it

    def request(self) -> calls.Request:
        kind, payload = self._receive()
        if kind != wire.REQUEST:
            raise Fault("EPROTO", "the daemon did not begin with a request")
        return _requests.decode(payload)

    def begin(self, call: calls.Call) -> None:
        seen = call.invocation
        scope = sdk.ExecutionScope.BACKGROUND if seen.background else sdk.ExecutionScope.FOREGROUND
        self.invocation = sdk.InvocationContext(
            seen.tool_name, seen.session_id, seen.actor, seen.source, scope
        )
        self.environ = {os.fsdecode(key): os.fsdecode(value) for key, value in call.environment.items()}

    def read_input(self) -> bytes:
        """All of the caller's standard input."""
        self.send(wire.message(wire.WANT, wire.U32.pack(arguments.MAX_INPUT + 1)))
        data = bytearray()
        while chunk := self._input():
            data += chunk
            if len(data) > arguments.MAX_INPUT:
                raise Fault("EMSGSIZE", "the input is over 16 MiB")
        return bytes(data)

    def _input(self) -> bytes:
        kind, payload = self._receive()
        if kind != wire.STDIN:
            raise Fault("EPROTO", "the daemon sent something else than standard input")
        return payload

    def _receive(self) -> tuple[int, bytes]:
        while not self._inbox:
            data = self.stream.recv(1 << 18)
            if not data:
                raise Cancelled
            self._inbox = self._splitter.feed(data)
        return self._inbox.pop(0)

    def send(self, data: bytes) -> None:
        with self._sending:
            self.stream.sendall(data)

    def done(self, result: sdk.ToolResult | None = None) -> None:
        out = bytearray()
        if result is not None:
            for attachment in result.media:
                out += wire.message(wire.MEDIA, msgspec.json.encode(attachment._asdict()))
            if result.is_error:
                out += wire.message(wire.FAULT, _pack(("EIO", _bounded(result.output))))
            else:
                *first, last = list(_pieces(result.output)) or [b""]
                for piece in first:
                    self.send(wire.message(wire.DELTA, piece))
                if last:
                    out += wire.message(wire.DELTA, last)
        self.send(bytes(out) + wire.message(wire.DONE))

    def fail(self, error: BaseException) -> None:
        if isinstance(error, Cancelled):
            return
        code, text = _blame(error)
        self.send(wire.message(wire.FAULT, _pack((code, _bounded(text)))) + wire.message(wire.DONE))

    def interrupt(self) -> None:
        """Called by the watching thread: nobody waits for this call any more."""
        try:
            self.cancel()
        except Exception as error:  # a plugin's callback must not end the watch
            print(f"on_cancel: {_sentence(error)}", file=sys.stderr)
        with self._state:
            if not self._ended:
                _raise_in(self._thread, Cancelled)

    def end(self) -> None:
        with self._state:
            self._ended = True
            _clear(self._thread, None)


def _pieces(text: str) -> Iterator[bytes]:
    """UTF-8 in pieces that fit a frame, never cut inside a character."""
    data = _utf8(text)
    start = 0
    while len(data) - start > MAX_TEXT:
        stop = start + MAX_TEXT
        while data[stop] & 0xC0 == 0x80:
            stop -= 1
        yield data[start:stop]
        start = stop
    if start < len(data):
        yield data[start:] if start else data


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate, as in a file name that is not UTF-8
        return text.encode(errors="replace")


def _bounded(text: str) -> str:
    return _utf8(text)[:MAX_FAULT].decode(errors="ignore")


def _blame(error: BaseException) -> tuple[str, str]:
    """abi.md 4: whose fault an exception is, as code and sentence."""
    match error:
        case Fault():
            return error.code, error.message
        case sdk.ToolError():
            return (error.code if is_code(error.code) else "EIO"), Exception.__str__(error)
        case OSError():
            return code_of(error.errno), _sentence(error)
    return "EPROTO", f"the tool failed: {_sentence(error)}"


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return where + error.strerror
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
