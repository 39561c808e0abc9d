"""A strict reader of untrusted gzip tars: they hold plain files and directories, or raise a fault.

Rules: no data is inflated or allocated beyond a stated bound. A package that two readers could read
differently is refused: a second gzip member, data behind the end, sparse files, two lengths of a file. So is
an entry that is neither file nor directory. Python's tarfile is not used to read: before 3.11.14 a negative
offset kept it in a loop for ever (CVE-2025-8194), and users have those versions.
This file must never know the valid names in a package.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import clipped, shown

# A native library with its debug information has tens of MiB. A package is checked in memory as a whole.
MAX_PACKED = 64 << 20
MAX_UNPACKED = 128 << 20
MAX_ENTRIES = 10_000
MAX_EXTENDED = 16 << 10  # bytes of a long name, with the other facts of pax writers
MAX_ALL_EXTENDED = 8 << 20  # bytes of all these with their headers: reading more would take many seconds

BLOCK = 512
_EMPTY = bytes(BLOCK)
_OCTAL = re.compile(rb"[ \0]*([0-7]{1,12})[ \0]*")
_RECORD = re.compile(rb"([0-9]{1,5}) ")
_FILES = b"0\0"
_FOLDER, _LONG_NAME, _PAX, _PAX_GLOBAL = b"5", b"L", b"x", b"g"
_KIND_NAMES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"K": "a link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
}


class TarEntry(NamedTuple):
    name: str
    data: bytes
    executable: bool
    is_folder: bool


def inflate(data: bytes) -> bytes:
    """Returns the unpacked bytes of `data`, which must be one gzip member."""
    if len(data) > MAX_PACKED:
        raise Fault("EMSGSIZE", f"it is over {MAX_PACKED >> 20} MiB, the most that a package may have")
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        unpacked = stream.decompress(data, MAX_UNPACKED + 1)
    except zlib.error as problem:
        raise Fault("EINVAL", f"it is not gzip, or damaged: {problem}") from None
    if len(unpacked) > MAX_UNPACKED:
        raise Fault("EMSGSIZE", f"it unpacks to more than {MAX_UNPACKED >> 20} MiB")
    if not stream.eof:
        raise Fault("EINVAL", "it is cut short")
    if stream.unused_data:
        raise Fault("EINVAL", "it holds data after its end")
    return unpacked


def read(tar: bytes) -> list[TarEntry]:
    """Returns all entries, in order. Names are decoded to text, and not changed otherwise."""
    entries: list[TarEntry] = []
    for entry in _entries(tar):
        entries.append(entry)
        if len(entries) > MAX_ENTRIES:
            raise Fault("EMSGSIZE", f"it holds more than {MAX_ENTRIES} entries")
    return entries


def write(files: Iterable[tuple[str, bytes, bool]]) -> bytes:
    """Returns a gzip tar of names, bytes and the mark of programs. The same files make the same tar."""
    import gzip  # these imports cost time, and only packing needs them
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data, executable in files:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755 if executable else 0o644
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), mtime=0)


def _entries(tar: bytes) -> Iterator[TarEntry]:
    position, extended, long_name = 0, 0, None
    while (header := tar[position : position + BLOCK]) != _EMPTY:
        if len(header) < BLOCK:
            raise Fault("EINVAL", "it is cut short")
        # POSIX ustar: the sum of the header's bytes, with spaces where the sum itself is.
        if _number(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise Fault("EINVAL", "it is damaged: the checksum of a header is wrong")
        kind = header[156:157]
        data, position = _data(tar, position + BLOCK, _number(header[124:136]))
        name = _name(header) if long_name is None else long_name
        if kind in (_LONG_NAME, _PAX, _PAX_GLOBAL):
            if (extended := extended + BLOCK + len(data)) > MAX_ALL_EXTENDED:
                raise Fault("EMSGSIZE", f"its long names take more than {MAX_ALL_EXTENDED >> 20} MiB")
            new_name = _extended(kind, data)
            if new_name is not None and long_name is not None:
                raise Fault("EINVAL", f"{shown(new_name)} has two long names")
            long_name = long_name if new_name is None else new_name
            continue
        long_name = None
        yield _entry(kind, name, data, header)
    if long_name is not None:
        raise Fault("EINVAL", f"it is cut short after the long name {shown(long_name)}")
    if tar.count(b"\0", position) != len(tar) - position:
        raise Fault("EINVAL", "it holds data after its end")


def _number(field: bytes) -> int:
    found = _OCTAL.fullmatch(field)
    if not found:  # also GNU's numbers beyond 8 GiB, which no package reaches
        raise Fault("EINVAL", "it is damaged: a number in a header is not valid")
    return int(found[1], 8)


def _data(tar: bytes, start: int, size: int) -> tuple[bytes, int]:
    data = tar[start : start + size]
    after = start + -(-size // BLOCK) * BLOCK
    if len(data) < size or after > len(tar):
        raise Fault("EINVAL", "it is cut short")
    return data, after


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0")[0]
    # GNU tar has times in the place of POSIX's first part of a long name.
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _extended(kind: bytes, data: bytes) -> str | None:
    """Returns the name for the next entry in an extended header, or None if it has none."""
    if len(data) > MAX_EXTENDED:
        raise Fault("EMSGSIZE", f"a name takes more than {MAX_EXTENDED >> 10} KiB")
    if kind == _LONG_NAME:
        return _text(data.removesuffix(b"\0"))
    fields = dict(_records(data))
    if b"size" in fields or any(key.startswith(b"GNU.sparse") for key in fields):
        raise Fault("EINVAL", "it holds a sparse file, or a file with two lengths")
    if kind == _PAX_GLOBAL and b"path" in fields:
        raise Fault("EINVAL", "a global header gives all files one name")
    return _text(fields[b"path"]) if b"path" in fields else None


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the records of pax(1): each is its length, a space, key=value and a newline."""
    position = 0
    while position < len(data):
        found = _RECORD.match(data, position)
        end = position + int(found[1]) if found else 0
        if not found or not found.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise Fault("EINVAL", "it is damaged: a pax record is not valid")
        key, equals, value = data[found.end() : end - 1].partition(b"=")
        if not equals:
            raise Fault("EINVAL", "it is damaged: a pax record is not valid")
        yield key, value
        position = end


def _entry(kind: bytes, name: str, data: bytes, header: bytes) -> TarEntry:
    if kind == _FOLDER and not data:
        return TarEntry(name.removesuffix("/"), b"", False, True)
    if kind not in _FILES or name.endswith("/"):
        label = _KIND_NAMES.get(kind, "neither a file nor a directory")
        raise Fault("EINVAL", f"{shown(name)} is {label}; a package holds plain files")
    return TarEntry(name, data, bool(_number(header[100:108]) & 0o100), False)


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise Fault("EINVAL", f"the name {clipped(ascii(name), 100)} is not UTF-8") from None
