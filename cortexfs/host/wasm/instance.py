"""One instance of a WebAssembly plugin: its memory, the host's heap in it, and calls into it.

Main path: `Instance.execute`. The plugin's numbers are unsigned 32-bit ones. Nothing is read or written
before all of it is known to lie in the memory.

Rules: the host's own buffers are blocks of the heap like any other, from its low end, and freed after the
call. If a call ends early (a trap, a deadline, a misused host function), its instance is in an undefined
state: its owner replaces it.
This file must never know which tools there are, nor what a host function does.
"""

from __future__ import annotations

import bisect
import ctypes
import struct
from collections.abc import Callable, Mapping

import wasmtime
from wasmtime._bindings import wasmtime_func_call, wasmtime_val_t
from wasmtime._func import enter_wasm

from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson.wasm_layout import HEAP, PAGE
from cortexfs.host.wasm import code

ABI = 1
PAGES = (256, 512)  # of the memory that the host offers
# A limit above the needs of C and Rust: a module needs some hundreds; each element takes 8 bytes.
MAX_TABLE, MAX_TABLES = 100_000, 8
OUTPUT = 65536
CAPABILITIES = 65528
_U32 = struct.Struct("<I")
_MASK = 0xFFFFFFFF
_KINDS = {"i": wasmtime.ValType.i32, "I": wasmtime.ValType.i64}

HostFunction = Callable[..., int | None]


class ContractViolation(Exception):
    """The plugin has broken the contract; for the plugin, this is a trap."""


class WasmMemory:
    def __init__(self, store: wasmtime.Store, memory: wasmtime.Memory) -> None:
        self._store = store
        self._memory = memory

    @property
    def size(self) -> int:
        return self._memory.data_len(self._store)

    def _address(self, at: int, length: int) -> int:
        at, length = at & _MASK, length & _MASK
        if at + length > self.size:
            raise ContractViolation(f"{length} bytes at {at:#x} are outside of the memory")
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + at

    def check(self, at: int, length: int) -> None:
        self._address(at, length)

    def read(self, at: int, length: int, most: int = _MASK) -> bytes:
        """Returns at most `most` bytes, but all `length` bytes must be in the memory."""
        return ctypes.string_at(self._address(at, length), min(length & _MASK, most))

    def write(self, at: int, data: bytes) -> None:
        ctypes.memmove(self._address(at, len(data)), data, len(data))

    def word(self, at: int) -> int:
        number: int = _U32.unpack(self.read(at, 4))[0]
        return number

    def set_word(self, at: int, value: int) -> None:
        self.write(at, _U32.pack(value))

    def reach(self, size: int) -> None:
        """Grow to `size` if the plugin's own memory is smaller than the layout."""
        missing = (size - self.size + PAGE - 1) // PAGE
        if missing > 0:
            try:
                self._memory.grow(self._store, missing)
            except wasmtime.WasmtimeError:
                message = f"its memory has {self.size // PAGE} pages and cannot grow to the {size // PAGE}"
                raise Fault("EPROTO", f"{message} of the ABI's layout") from None


class Heap:
    """host_alloc and host_free. The list of blocks is kept here, out of the plugin's reach."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def alloc(self, size: int, top: int) -> int:
        """Returns the lowest gap that fits, 8-aligned; 0 if there is none."""
        if size <= 0:
            return 0
        at, limit = HEAP.start, min(HEAP.stop, top)
        for start in self._starts:
            if start - at >= size:
                break
            at = self._ends[start]
        end = at + (size + 7 & ~7)
        if end > limit:
            return 0
        bisect.insort(self._starts, at)
        self._ends[at] = end
        return at

    def free(self, at: int) -> None:
        """Free a block; other addresses are ignored."""
        if self._ends.pop(at, None):
            del self._starts[bisect.bisect_left(self._starts, at)]


class Instance:
    """`functions` are the host's, by name. `admit` is called before each, and raises if the call is over."""

    def __init__(
        self,
        module: wasmtime.Module,
        engine: wasmtime.Engine,
        functions: Callable[[Instance], Mapping[str, HostFunction]],
        admit: Callable[[], None],
    ) -> None:
        self.heap = Heap()
        self.store = wasmtime.Store(engine)
        self.store.set_limits(PAGES[1] * PAGE, MAX_TABLE, 1, MAX_TABLES, 1)
        self._memory: WasmMemory | None = None
        self._admit = admit
        try:
            self._begin(module, functions(self))
        except BaseException:  # such as a cancellation: it must leave no store
            self.close()
            raise

    def _begin(self, module: wasmtime.Module, functions: Mapping[str, HostFunction]) -> None:
        imports = [self._import(item.name or "", functions) for item in module.imports]
        self._wind()  # for a start function
        try:
            instance = wasmtime.Instance(self.store, module, imports)
        except wasmtime.WasmtimeError as error:
            message = " ".join(str(error).split())[:500]
            raise Fault("EPROTO", f"its module does not link: {message}") from None
        self._exports = instance.exports(self.store)
        self._functions: dict[str, Callable[..., int]] = {}
        own = self._exports.get("memory")
        if isinstance(own, wasmtime.Memory):
            self._memory = WasmMemory(self.store, own)
        self.memory.reach(HEAP.stop)
        version = self.call("plugin_get_abi_version")
        if version != ABI:
            raise Fault("EPROTO", f"its ABI version {version} is not supported (supported: {ABI})")
        if "plugin_init" in self._exports:
            self.call("plugin_init")

    def _import(self, name: str, functions: Mapping[str, HostFunction]) -> wasmtime.Func | wasmtime.Memory:
        if name == "memory":
            memory = wasmtime.Memory(self.store, wasmtime.MemoryType(wasmtime.Limits(*PAGES)))
            self._memory = WasmMemory(self.store, memory)
            return memory
        function = functions[name]
        takes, returns = ([_KINDS[letter]() for letter in side] for side in code.IMPORTS[name])

        def call_host(caller: wasmtime.Caller, *numbers: int) -> int | None:
            if self._memory is None:  # a start function runs before the exports can be read
                memory = caller.get("memory")
                assert isinstance(memory, wasmtime.Memory)
                self._memory = WasmMemory(self.store, memory)
            self._admit()
            return function(*numbers)

        return wasmtime.Func(self.store, wasmtime.FuncType(takes, returns), call_host, access_caller=True)

    @property
    def memory(self) -> WasmMemory:
        assert self._memory is not None
        return self._memory

    def alloc(self, size: int) -> int:
        return self.heap.alloc(size, self.memory.size)

    # -- calls

    def call(self, name: str, *numbers: int) -> int:
        if name not in self._functions:
            function = self._exports[name]
            assert isinstance(function, wasmtime.Func)
            takes, returns = map(len, code.EXPORTS[name])
            self._functions[name] = bare_call(self.store, function, takes, returns)
        self._wind()
        return self._functions[name](*numbers)

    def _wind(self) -> None:
        """Let the next tick end the running call. In this order: an earlier tick has left its reason."""
        self.store.set_epoch_deadline(1)
        self._admit()

    def execute(self, name: bytes, arguments: bytes) -> tuple[int, bytes]:
        """Call a tool with one block: the length word, the name, the arguments and room for the output."""
        start = 8
        second = start + (len(name) + 8 & ~7)
        third = second + (len(arguments) + 8 & ~7)
        block = self._block(third + OUTPUT)
        try:
            texts = name.ljust(second - start, b"\0") + arguments.ljust(third - second, b"\0")
            self.memory.write(block, _U32.pack(OUTPUT) + b"\0\0\0\0" + texts)
            self.memory.write(block + third + OUTPUT - 1, b"\0")
            numbers = (block + start, len(name), block + second, len(arguments), block + third, block)
            status = self.call("plugin_execute_tool", *numbers)
            return status, self._output(block + third, block, OUTPUT, status)
        finally:
            self.heap.free(block)

    def capabilities(self) -> tuple[int, bytes]:
        block = self._block(8 + CAPABILITIES)
        try:
            self.memory.set_word(block, CAPABILITIES)
            self.memory.write(block + 8 + CAPABILITIES - 1, b"\0")
            status = self.call("plugin_get_capabilities", block + 8, block)
            return status, self._output(block + 8, block, CAPABILITIES, status)
        finally:
            self.heap.free(block)

    def _output(self, at: int, length_at: int, room: int, status: int) -> bytes:
        length = self.memory.word(length_at)
        if length > room:
            raise ContractViolation(f"it says that it wrote {length} bytes where there is room for {room}")
        output = self.memory.read(at, length)
        if length < room or not output.endswith(b"\0"):
            return output
        if not status:  # the length is that from before, and so is the output, of another call
            raise ContractViolation("it succeeded, and wrote neither its output nor the output's length")
        return b""

    def _block(self, size: int) -> int:
        if not (block := self.alloc(size)):
            if size > len(HEAP):
                message = f"args too large: with the output, {size} bytes of {len(HEAP)}"
                raise Fault("EMSGSIZE", message)
            raise Fault("ENOMEM", "it has not freed enough of the host's heap for another call")
        return block

    def destroy(self) -> None:
        if "plugin_destroy" in self._exports:
            self.call("plugin_destroy")

    def close(self) -> None:
        self.store.close()


_I32 = ctypes.c_ubyte(0)  # of wasmtime_valkind_t


def bare_call(store: wasmtime.Store, function: wasmtime.Func, takes: int, returns: int) -> Callable[..., int]:
    """Returns a call of a function of 32-bit numbers by wasmtime's C interface. Its result is 0 if the
    function returns nothing. Not to be called by two threads at once.

    wasmtime-py's own call makes and compares types for each number that it passes: a tool's call has six, and
    takes ten times as long as with none. Here the places of the numbers are made once. Traps and errors of
    host functions are handled as in the library, by names that are not public.
    """
    arguments, results = (wasmtime_val_t * takes)(), (wasmtime_val_t * (returns or 1))()
    for value in arguments:
        value.kind = _I32
    places = [value.of for value in arguments]
    answer = results[0].of
    address = ctypes.byref(function._func)

    def call(*numbers: int) -> int:
        for place, number in zip(places, numbers, strict=True):
            place.i32 = number
        with enter_wasm(store) as trap:
            error = wasmtime_func_call(store._context(), address, arguments, takes, results, returns, trap)
            if error:
                raise wasmtime.WasmtimeError._from_ptr(error)
        return answer.i32

    return call
