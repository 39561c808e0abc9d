"""The places of a WebAssembly module's stack and data, and the check that the host does not write there.

Main path: `fault` reports a certain overlap, `doubt` a likely one. The module has the places of its data.
Only the linker knows those of the stack and of zeroed data, and may have left them in names of globals.

Rules: abi.md 9.33 and 9.53. Nothing runs, and bytes that are no module have neither fault nor doubt.
This file must never know who asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

HEAP = range(0x20000, 0x100000)  # the host's heap
PAGE = 64 << 10
MAX_SEGMENTS = 100_000  # compilers have the same limit
MEND = "link it with -z stack-size=65536 --global-base=1048576"
_LOWEST_STACK = 1024  # a smaller number in a global is not likely to be a stack's end
_HEAD = b"\0asm\1\0\0\0"
_CUSTOM, _IMPORTS, _MEMORY, _GLOBALS, _EXPORTS, _DATA = 0, 2, 5, 6, 7, 11
_FUNCTION, _TABLE, _OF_MEMORY, _GLOBAL = range(4)
_I32, _GLOBAL_NAMES = 0x7F, 7
_END, _CONSTANT, _VECTOR = 0x0B, 0x41, 0xFD
_FIXED = {0x43: 4, 0x44: 8, 0xD0: 1}  # f32.const, f64.const, ref.null
_NUMBERED = (0x42, 0x23, 0xD2)  # i64.const, global.get, ref.func
_PASSIVE, _OTHER_MEMORY = 1, 2  # kinds of data segments
_STACK, _DATA_END = "__stack_pointer", "__data_end"


class _Bytes:
    """A reader of a module's bytes. It raises IndexError at their end."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """Reads a number of 64 bits. In names, which no compiler reads, a longer one takes quadratic time."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number has over 64 bits")

    def skip(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self.data):
            raise IndexError
        return self.data[self.at - size : self.at]

    def text(self) -> str:
        return self.skip(self.number()).decode(errors="replace")

    def limits(self) -> int:
        has_maximum, minimum = self.byte() & 1, self.number()
        if has_maximum:
            self.number()
        return minimum

    def signed(self) -> int:
        start = self.at
        value = self.number()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> bits - 1 else value

    def constant(self) -> int | None:
        """Reads an expression. Returns its value if it is one number of 32 bits, else None."""
        found: list[int | None] = []
        while (code := self.byte()) != _END:
            found.append(self.signed() & 0xFFFFFFFF if code == _CONSTANT else None)
            if code in _FIXED:
                self.skip(_FIXED[code])
            elif code in _NUMBERED:
                self.number()
            elif code == _VECTOR:
                self.number()
                self.skip(16)
        return found[0] if len(found) == 1 else None


class _Global(NamedTuple):
    value: int | None
    is_mutable: bool  # True only for a global of 32 bits


class _Layout(NamedTuple):
    data: list[range]  # the places of data, sorted
    stack: int | None  # the stack's end, from the name of a global
    end: int | None  # the end of all data, from the name of a global
    guess: int | None  # a number that may be the stack's end
    pages: int  # the pages of the module's own memory; 0 for an imported one


def fault(data: bytes) -> str:
    """Returns why the host would overwrite data or the stack of the module, or "" if that is not certain."""
    found = _safe_layout(data)
    if found is None:
        return ""
    spans = list(found.data)
    # Without data, `end` is the stack's end. A stack of 1 MiB may end where the host's heap ends.
    if found.end is not None and (spans or found.end != HEAP.stop):
        spans.append(range(spans[0].start if spans else found.end - 1, found.end))
    for span in spans:
        if span and span.start < HEAP.stop and span.stop > HEAP.start:
            return f"its data lies at {span.start:#x} to {span.stop - 1:#x}, {_host_area()}"
    if found.stack is not None and HEAP.start < found.stack < HEAP.stop:
        return f"its stack lies below {found.stack:#x}, {_host_area()}"
    return ""


def doubt(data: bytes) -> str:
    """Returns why the host is likely to overwrite data or the stack of the module, or ""."""
    found = _safe_layout(data)
    if found is None or found.end is not None:
        return ""
    stack = found.guess if found.stack is None else found.stack
    if found.data and found.data[0].start >= HEAP.stop:
        is_likely = stack is not None and HEAP.start < stack < HEAP.stop
    elif found.pages and found.pages * PAGE <= HEAP.stop:
        is_likely = found.pages * PAGE > HEAP.start
    else:
        is_likely = stack is not None and _LOWEST_STACK < stack < HEAP.stop
    return f"its data or its stack may lie {_host_area()}" if is_likely else ""


def _host_area() -> str:
    return f"where the host writes ({HEAP.start:#x} to {HEAP.stop - 1:#x}); {MEND}"


def _safe_layout(data: bytes) -> _Layout | None:
    try:
        return _layout(data)
    except (IndexError, ValueError):
        return None


def _layout(data: bytes) -> _Layout:
    sections, names = _sections(data)
    count, has_memory = _imports(sections.get(_IMPORTS))
    values = [*[None] * count, *_globals(sections.get(_GLOBALS))]
    exports = {name: values[index] for name, index in names if index < len(values)}
    stack, end = exports.get(_STACK), exports.get(_DATA_END)
    memory = sections.get(_MEMORY)
    return _Layout(
        sorted(_spans(sections.get(_DATA)), key=lambda span: span.start),
        stack and stack.value,
        end and end.value,
        next((each.value for each in values if each and each.is_mutable), None),
        memory.limits() if memory and not has_memory and memory.number() else 0,
    )


def _sections(data: bytes) -> tuple[dict[int, _Bytes], list[tuple[str, int]]]:
    """Returns the sections by number, and the names of globals."""
    read = _Bytes(data, len(_HEAD))
    found: dict[int, _Bytes] = {}
    names: list[tuple[str, int]] = []
    while data.startswith(_HEAD) and read.at < len(data):
        number = read.byte()
        section = _Bytes(read.skip(read.number()))
        if number != _CUSTOM:
            found[number] = section
        elif section.text() == "name":
            names += _global_names(section)
    return found, names + list(_exported(found.get(_EXPORTS)))


def _global_names(section: _Bytes) -> Iterator[tuple[str, int]]:
    while section.at < len(section.data):
        kind, part = section.byte(), _Bytes(section.skip(section.number()))
        for _ in range(part.number() if kind == _GLOBAL_NAMES else 0):
            index = part.number()
            yield part.text(), index


def _exported(section: _Bytes | None) -> Iterator[tuple[str, int]]:
    for _ in range(section.number() if section else 0):
        assert section
        name, kind, index = section.text(), section.byte(), section.number()
        if kind == _GLOBAL:
            yield name, index


def _imports(section: _Bytes | None) -> tuple[int, bool]:
    """Returns the number of imported globals, and True if the memory is imported."""
    globals_, has_memory = 0, False
    for _ in range(section.number() if section else 0):
        assert section
        section.text(), section.text()
        kind = section.byte()
        if kind == _FUNCTION:
            section.number()
        elif kind == _GLOBAL:
            section.skip(2)
            globals_ += 1
        else:
            section.skip(1 if kind == _TABLE else 0)
            section.limits()
            has_memory = has_memory or kind == _OF_MEMORY
    return globals_, has_memory


def _globals(section: _Bytes | None) -> Iterator[_Global]:
    for _ in range(section.number() if section else 0):
        assert section
        kind, is_mutable = section.byte(), section.byte() == 1
        yield _Global(section.constant(), is_mutable and kind == _I32)


def _spans(section: _Bytes | None) -> Iterator[range]:
    """Yields the places of data. Data that code copies has no place."""
    for _ in range(min(section.number(), MAX_SEGMENTS) if section else 0):
        assert section
        kind = section.number()
        if kind == _OTHER_MEMORY:
            section.number()
        at = section.constant() if kind != _PASSIVE else None
        size = section.number()
        section.skip(size)
        if at is not None and size:
            yield range(at, at + size)
