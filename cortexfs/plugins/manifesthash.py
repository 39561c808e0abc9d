"""Whether a plugin's files are those that its manifest.json vouches for (docs/manifest-json.md, HASH).

The package's digest is the SHA-256 over every regular file below its directory, sorted by path as UTF-8:
the path, NUL, the number of bytes in decimal, NUL, the bytes. Of the manifest itself hash and signature are
left out, for they could not say themselves.

Rules: nothing but plain files is in a package: a link or device is refused, not passed over. What is hashed
has to be what is loaded, so the directory must be one that only the host writes.
This file must never know what a plugin does.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault, code_of
from cortexfs.core.manifestjson import FILE, MAX_BYTES
from cortexfs.core.manifestjson.problems import Problem

MAX_FILES = 10_000
MAX_PACKAGE = 256 << 20  # bytes; the largest real plugin has less than one MiB
_CHUNK = 1 << 20

# What a matching hash says: all files, the entry point's alone, or that the manifest has none.
Covers: TypeAlias = Literal["package", "entry", "nothing"]


def package_digest(root: Path) -> str:
    """sha256:... of the files below `root`; a Fault for what is no package or cannot be read."""
    try:
        return f"sha256:{_digest(root)}"
    except OSError as error:
        raise Fault(code_of(error.errno), f"{error.filename or root}: {error.strerror}") from None


def entry_digest(data: bytes) -> str:
    """sha256:... of an entry point's file."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _digest(root: Path) -> str:
    digest = hashlib.sha256()
    room = MAX_PACKAGE
    for count, path in enumerate(sorted(_paths(root), key=os.fsencode)):
        if count == MAX_FILES:
            raise Fault("EMSGSIZE", f"{root} holds more than {MAX_FILES} files; a plugin ships only its own")
        room = _add(digest, root, path, room)
    return digest.hexdigest()


def verify(claimed: str | None, package: str, entry: str | None = None) -> Covers:
    """What the manifest's hash covers; EBADMSG if it is of other files. `entry`: None if it is no file."""
    if claimed is None:
        return "nothing"
    said = claimed.lower().encode()
    # both are compared whatever the first one says, and in a time that tells nothing about either
    is_package = hmac.compare_digest(said, package.encode())
    is_entry = hmac.compare_digest(said, (entry or package).encode())
    if not is_package and not is_entry:
        raise Fault(
            "EBADMSG",
            f"{FILE}: hash: says {claimed}, but the files are {package}; "
            f"install the plugin again, or write the new hash if the change is yours",
        )
    return "package" if is_package else "entry"


def _paths(root: Path) -> Iterator[str]:
    """Every file below, as a path relative to `root` with / between its parts."""
    for directory, inner, files in os.walk(root, onerror=_unreadable):
        below = os.path.relpath(directory, root)
        for name in (*inner, *files):
            path = name if below == "." else f"{below}/{name}"
            mode = os.lstat(os.path.join(directory, name)).st_mode
            if stat.S_ISREG(mode):
                yield path
            elif not stat.S_ISDIR(mode):
                raise _fault(path, "is neither a file nor a directory", "ship a copy of what it leads to")


def _unreadable(error: OSError) -> None:
    raise error


def _add(digest: hashlib._Hash, root: Path, path: str, room: int) -> int:
    """Hash one file; how many bytes the others may still have."""
    try:
        name = path.encode()
    except UnicodeEncodeError:
        raise _fault(repr(path), "has a name that is not UTF-8", "rename it") from None
    # a path that has become a link or a pipe since it was found is an error, not a way out
    with open(os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if path == FILE:
            data = _without_hash(file.read(MAX_BYTES + 1))
            digest.update(b"%s\0%d\0%s" % (name, len(data), data))
            return room
        size = os.fstat(file.fileno()).st_size
        if size > room:
            raise Fault(
                "EMSGSIZE", f"{root} holds more than {MAX_PACKAGE} bytes; a plugin ships only its own"
            )
        digest.update(b"%s\0%d\0" % (name, size))
        if _feed(digest, file) != size:
            raise _fault(path, "changed while it was read", "try again when nobody writes there")
    return room - size


def _feed(digest: hashlib._Hash, file: BinaryIO) -> int:
    count = 0
    while data := file.read(_CHUNK):
        digest.update(data)
        count += len(data)
    return count


def _without_hash(data: bytes) -> bytes:
    """The manifest as the digest has it: sorted keys, no white space, neither hash nor signature."""
    value = jsontext.decode(data, FILE) if len(data) <= MAX_BYTES else None
    if not isinstance(value, dict):
        raise _fault(FILE, "is not one JSON object of at most 1 MiB", "write one")
    left = {key: item for key, item in value.items() if key not in ("hash", "signature")}
    return json.dumps(left, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _fault(path: str, what: str, mend: str) -> Fault:
    return Fault("EINVAL", Problem("invalid_path", "", what, mend).told(path))
