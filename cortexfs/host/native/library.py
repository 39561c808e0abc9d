"""The native ABI, version 1: a shared library whose tools run in this process.

Main path: `tools` opens the library, checks its table and asks for its tools; `NativeTool` calls one. A
library that crashes or hangs takes only its host along: so it is called only in hosts.

Rules: a library's results are untrusted input: bounded, copied, then parsed. Every buffer that it returns
goes back exactly once through its own `buffer_free`, even an empty or refused one. There is one state for
each library and host, which all threads share. It is dropped once, when no call uses it any more, and the
library stays mapped. Inbound buffers are lent for the call.
This file must never know how a call arrives, nor what a manifest looks like.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import why_unread
from cortexfs.core.manifest.targets import Library, declared
from cortexfs.core.manifest.toml import ManifestEffect
from cortexfs.host.call.effects import effects_of
from cortexfs.host.call.runtime import apart, sentence
from cortexfs.host.call.wrong_tool import WrongTool
from cortexfs.state import stamps

ABI = sdk.NATIVE_ABI_VERSION
MAX_TOOLS = 10_000
MAX_DESCRIPTION = 1 << 20  # of the plugin or of one tool, with its schema
MAX_RESULT = 64 << 20
DROP_SECONDS = 0.3  # for plugin_drop; a host is ended soon after it was asked to leave
# Zeroes around the structs: a library that assumes larger structs writes into them, and is refused.
_MARGIN = 4096
# The texts in which the SDK wraps a ToolError: the ABI has no other sign of one.
_ERRORS: tuple[tuple[str, type[sdk.ToolError]], ...] = (
    ("tool error: invalid input: ", sdk.InvalidInput),
    ("tool error: execution failed: ", sdk.ExecutionFailed),
)


class Buffer(ctypes.Structure):
    _fields_ = (("ptr", ctypes.c_void_p), ("len", ctypes.c_size_t), ("cap", ctypes.c_size_t))


class _Lent(ctypes.Structure):
    """The argument of the library: `ptr` keeps the bytes alive, and must not be read back."""

    _fields_ = (("ptr", ctypes.c_char_p), ("len", ctypes.c_size_t), ("cap", ctypes.c_size_t))


_STATE = ctypes.c_void_p
_FUNCTIONS: dict[str, Any] = {
    "plugin_info": ctypes.CFUNCTYPE(Buffer, _STATE),
    "tool_count": ctypes.CFUNCTYPE(ctypes.c_size_t, _STATE),
    "tool_descriptor": ctypes.CFUNCTYPE(Buffer, _STATE, ctypes.c_size_t),
    "tool_execute": ctypes.CFUNCTYPE(Buffer, _STATE, _Lent, _Lent, _Lent),
    "plugin_drop": ctypes.CFUNCTYPE(None, _STATE),
    "buffer_free": ctypes.CFUNCTYPE(None, Buffer),
}


class HostTable(ctypes.Structure):
    _fields_ = (("abi_version", ctypes.c_uint32), ("margin", ctypes.c_ubyte * _MARGIN))


class Table(ctypes.Structure):
    """CortexPluginApi, its functions as addresses, and the margin behind it."""

    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("plugin", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _FUNCTIONS),
        ("margin", ctypes.c_ubyte * _MARGIN),
    )


class _Info(msgspec.Struct, frozen=True):
    name: str
    version: str
    description: str


class _Capabilities(msgspec.Struct, frozen=True):
    emits_progress: bool = False
    emits_observer_text: bool = False
    background_safe: bool = False
    effects: tuple[ManifestEffect, ...] = ()


class _Descriptor(msgspec.Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    description: Annotated[str, msgspec.Meta(min_length=1)]
    input_schema: dict[str, Any]
    timeout_secs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    capabilities: _Capabilities = _Capabilities()
    dry_run_flag: bool = False


class _Result(msgspec.Struct, frozen=True):
    output: str
    media: tuple[hostcalls.Medium, ...]
    is_error: bool


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


_EMPTY = "native ABI returned an empty descriptor for tool index"
_infos = msgspec.json.Decoder(_Info)
_descriptors = msgspec.json.Decoder(_Descriptor)
_results = msgspec.json.Decoder(_Result)
_encode = msgspec.json.Encoder().encode


def tools(plugin: hostcalls.Plugin) -> Iterable[sdk.Tool]:
    """Open the library and ask for its tools."""
    # In a thread of its own: a call cancelled meanwhile would leave a state without an owner.
    return apart(partial(_load, plugin))


def _load(plugin: hostcalls.Plugin) -> list[sdk.Tool]:
    with _opening:
        if plugin not in _libraries:
            _libraries[plugin] = OpenLibrary(plugin.name, declared(plugin, Library))
        library = _libraries[plugin]
    library.check_info(plugin)
    return list(library.tools())


def _name_in(descriptor: bytes) -> str:
    """Returns the name in a descriptor that has another fault; "" if it has none."""
    with suppress(ValueError, RecursionError):
        return msgspec.json.decode(descriptor, type=_Named).name
    return ""


class NativeTool(sdk.Tool):
    def __init__(self, library: OpenLibrary, descriptor: _Descriptor) -> None:
        self._library = library
        self._name = descriptor.name.encode()
        self.name = descriptor.name
        self.description = descriptor.description
        self.input_schema = descriptor.input_schema
        self.timeout_secs = descriptor.timeout_secs
        self.dry_run_flag = descriptor.dry_run_flag
        has = descriptor.capabilities
        self.capabilities = sdk.ToolCapabilities(
            has.emits_progress, has.emits_observer_text, has.background_safe, effects_of(has.effects)
        )

    def execute_with_runtime(self, input: dict[str, Any], runtime: sdk.ToolRuntime) -> sdk.ToolResult:
        fields = runtime.invocation._asdict()
        if not fields["dry_run"]:  # upstream's ABI does not have the field
            del fields["dry_run"]
        invocation = _encode(fields)
        output = self._library.execute(self._name, _encode(input), invocation)
        try:
            result = _results.decode(output)
        except (ValueError, RecursionError) as error:  # also for text that is not UTF-8
            message = f"native tool '{self.name}' returned invalid result JSON: {why_unread(error)}"
            raise sdk.ExecutionFailed(message, "EPROTO") from None
        if result.is_error:
            for prefix, kind in _ERRORS:
                if result.output.startswith(prefix):
                    raise kind(result.output.removeprefix(prefix))
        media = tuple(sdk.Attachment(*msgspec.structs.astuple(medium)) for medium in result.media)
        return sdk.ToolResult(result.output, media, result.is_error)


class OpenLibrary:
    def __init__(self, plugin: str, library: Library) -> None:
        self._subject = f"plugin '{plugin}'"
        self._users = 0
        self._dropped = False
        self._lock = threading.Lock()
        table = self._initialize(self._open(library))
        self._state = table.plugin
        functions = {name: kind(getattr(table, name)) for name, kind in _FUNCTIONS.items()}
        self._info: Callable[..., Buffer] = functions["plugin_info"]
        self._count: Callable[..., int] = functions["tool_count"]
        self._descriptor: Callable[..., Buffer] = functions["tool_descriptor"]
        self._execute: Callable[..., Buffer] = functions["tool_execute"]
        self._drop: Callable[..., None] = functions["plugin_drop"]
        self._free: Callable[..., None] = functions["buffer_free"]

    # -- the sequence

    def _open(self, library: Library) -> ctypes.CDLL:
        try:
            if library.stamp and stamps.of_file(library.path) != library.stamp:
                message = f"{self._subject} has a new library file, which must be checked first; try again"
                raise Fault("EAGAIN", message)
            return ctypes.CDLL(library.path)
        except OSError as error:
            why = sentence(error).removeprefix("OSError: ")  # the loader's own sentence
            raise self._fault(f"has a library that does not load: {why}") from None

    def _initialize(self, library: ctypes.CDLL) -> Table:
        try:
            init = library.cortex_plugin_init
        except AttributeError as error:
            symbol = "required stable native symbol cortex_plugin_init"
            raise self._fault(f"does not export {symbol}: {error}") from None
        host, table = HostTable(ABI), Table()
        init.restype, init.argtypes = ctypes.c_int32, (ctypes.c_void_p, ctypes.c_void_p)
        if status := init(ctypes.byref(host), ctypes.byref(table)):
            raise self._fault(f"rejected native ABI initialization with status {status}")
        if table.abi_version != ABI:
            raise self._fault(f"initialized native ABI version {table.abi_version} but daemon requires {ABI}")
        if not table.plugin:
            raise self._fault("returned a null native plugin state")
        if any(bytes(table.margin)) or any(bytes(host.margin)) or host.abi_version != ABI:
            raise self._fault("wrote beyond the native ABI table; build it with the header of version 1")
        code = _executable()
        for name in _FUNCTIONS:
            address = getattr(table, name)
            if not address:
                raise self._fault(f"native ABI table is missing {name}")
            if code and not any(address in part for part in code):
                raise self._fault(f"native ABI table has no code at {name}; is the struct that of version 1?")
        return table

    def check_info(self, plugin: hostcalls.Plugin) -> None:
        """Check the library's description of itself."""
        description = self._result(self._info, (self._state,), MAX_DESCRIPTION, "plugin_info")
        try:
            info = _infos.decode(description)
        except (ValueError, RecursionError) as error:
            raise self._fault(f"returned invalid plugin info JSON: {why_unread(error)}") from None
        compare(plugin, info)

    def tools(self) -> Iterator[sdk.Tool]:
        count = self._count(self._state)
        if count > MAX_TOOLS:
            raise self._fault(f"has {count} tools, over the limit of {MAX_TOOLS}")
        for index in range(count):
            descriptor = self._result(
                self._descriptor, (self._state, index), MAX_DESCRIPTION, "tool_descriptor"
            )
            if not descriptor:
                yield WrongTool(f"tool {index}", f"{_EMPTY} {index}")
                continue
            try:
                yield NativeTool(self, _descriptors.decode(descriptor))
            except (ValueError, RecursionError) as error:
                why = f"its library returned an invalid descriptor for tool index {index}"
                why += f": {why_unread(error)}"
                yield WrongTool(_name_in(descriptor) or f"tool {index}", why)

    def _fault(self, predicate: str) -> Fault:
        return Fault("EPROTO", f"{self._subject} {predicate}")

    # -- calls

    def execute(self, name: bytes, input: bytes, invocation: bytes) -> bytes:
        arguments = (self._state, _lent(name), _lent(input), _lent(invocation))
        with self._use():
            return self._result(self._execute, arguments, MAX_RESULT, "tool_execute")

    @contextmanager
    def _use(self) -> Iterator[None]:
        with self._lock:
            if self._dropped:
                raise self._fault("is being unloaded")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    def _result(
        self, function: Callable[..., Buffer], arguments: tuple[Any, ...], most: int, name: str
    ) -> bytes:
        """Call it and copy its result, whose buffer is always given back."""
        buffers: list[Buffer] = []
        try:
            # One C call, so that a cancellation cannot come between a buffer and its owner.
            buffers.extend(map(function, *((argument,) for argument in arguments)))
            buffer = buffers[0]
            if buffer.len > most:
                raise self._fault(f"returned {buffer.len} bytes from {name}, over the limit of {most}")
            return ctypes.string_at(buffer.ptr, buffer.len) if buffer.ptr and buffer.len else b""
        finally:
            try:
                self._give_back(buffers)
            finally:
                self._give_back(buffers)

    def _give_back(self, buffers: list[Buffer]) -> None:
        with suppress(IndexError):  # it is empty
            deque(map(self._free, iter(buffers.pop, None)), maxlen=0)

    def drop(self) -> None:
        """Drop the state once. If a call still uses it, it ends with the process."""
        with self._lock:
            if self._users or self._dropped:
                return
            self._dropped = True
        self._drop(self._state)


_opening = threading.Lock()
_libraries: dict[hostcalls.Plugin, OpenLibrary] = {}


def drop_all() -> None:
    """Drop every state, before the process ends."""
    if _libraries:
        # In a thread, as a library may hang in this, too.
        drops = [library.drop for library in _libraries.values()]
        thread = threading.Thread(target=lambda: [drop() for drop in drops], daemon=True)
        thread.start()
        thread.join(DROP_SECONDS)


def compare(plugin: hostcalls.Plugin, info: _Info | sdk.PluginInfo) -> None:
    """Log a line if the code gives the plugin another name or version."""
    for field in ("name", "version"):
        own, real = getattr(info, field), getattr(plugin, field)
        if own != real:
            print(f"plugin {plugin.name!r}: its {field} is {own!r:.100} in its code", file=sys.stderr)


def _lent(data: bytes) -> _Lent:
    return _Lent(data, len(data), 0)


_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ..x")


def _executable() -> list[range]:
    """Returns the addresses of this process's code; empty if /proc does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = filter(None, map(_MAPPING.match, lines))
    return [range(int(part[1], 16), int(part[2], 16)) for part in found]
