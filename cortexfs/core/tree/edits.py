"""One open of a writable control, from the first write to the value that is taken over.

    Edit(value, ...)  ->  write, truncate  ->  pending() -> judged bytes or None  ->  taken()

Rules (abi.md 3): each open has a buffer of its own, so nothing half-written ever counts. A write at
offset 0 of a truncated open that ends in a newline is judged at once, so that `echo bad > effort`
fails in echo; a refusal there spoils the open, and so does a disk that cannot take the draft. Everything is
judged again as a whole by `pending`.
An open that wrote nothing changes nothing.
This file must never know inodes, handles or disks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from cortexfs.core.errors import Fault
from cortexfs.core.tree.controls import MAX_VALUE

Judge: TypeAlias = Callable[[bytes], bytes]


def patched(data: bytearray, offset: int, patch: bytes, limit: int) -> None:
    """Does what pwrite(2) does, up to `limit` bytes; a hole reads as zeroes."""
    if offset + len(patch) > limit:
        raise Fault("EFBIG", f"this file holds at most {limit >> 10} KiB")
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(patch)] = patch


def resized(data: bytearray, size: int, limit: int) -> None:
    """Does what ftruncate(2) does, up to `limit` bytes."""
    if size > limit:
        raise Fault("EFBIG", f"this file holds at most {limit >> 10} KiB")
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


class Edit:
    def __init__(self, value: bytes, judge: Judge, *, truncated: bool, appending: bool) -> None:
        self._data = bytearray() if truncated else bytearray(value)
        self._shown = value
        self._judge = judge
        self._truncated = truncated
        self._appending = appending
        self.written = False  # something that was not handed over
        self._spoiled: Fault | None = None
        self._refusal: Fault | None = None  # of the buffer as it is
        self._judged: bytes | None = None  # what the buffer as it is means

    def read(self, offset: int, size: int) -> bytes:
        """Returns the bytes that this open has written, or the value as it was at open."""
        data = self._data if self.written or self._truncated else self._shown
        return bytes(data[offset : offset + size])

    def write(self, offset: int, patch: bytes) -> int:
        """Raises what is wrong with the value, if that can be said now."""
        # The kernel's idea of the end may be older than our buffer, so O_APPEND is ours to keep.
        start = len(self._data) if self._appending else offset
        at_once = self._truncated and offset == 0 and patch.endswith(b"\n")
        self._change(lambda: patched(self._data, start, patch, MAX_VALUE), at_once)
        return len(patch)

    def truncate(self, size: int) -> None:
        self._change(lambda: resized(self._data, size, MAX_VALUE), at_once=False)

    def _change(self, change: Callable[[], None], at_once: bool) -> None:
        """A change that fails spoils this open: the rest of a value must not count without it."""
        if self._spoiled:
            raise self._spoiled
        try:
            change()
            self.written = True
            self._refusal = self._judged = None
            if at_once:
                self._judged = self._judge(bytes(self._data))
        except Fault as fault:
            self.spoil(fault)
            raise

    def spoil(self, fault: Fault) -> None:
        """A part of the value is lost, so this open changes nothing any more."""
        self._spoiled = Fault(fault.code, fault.message)
        self.written = True

    def draft(self) -> bytes:
        """Returns what the disk should have before the write returns: the value, as far as it is known."""
        return bytes(self._data) if self._judged is None else self._judged

    def pending(self) -> bytes | None:
        """Hand over the judged value; None when nothing was written since the last time.

        A refusal is the same one, and is judged once, until something else is written.
        """
        if not self.written:
            return None
        if refusal := self._spoiled or self._refusal:
            raise refusal
        try:
            value = self._judge(bytes(self._data))
        except Fault as fault:
            self._refusal = Fault(fault.code, fault.message)
            raise
        self.written = False
        self._truncated = False
        self._shown = value
        return value

    def put_back(self) -> None:
        """Takes back what `pending` gave, as it could not be kept; the next flush tries again."""
        self.written = True
