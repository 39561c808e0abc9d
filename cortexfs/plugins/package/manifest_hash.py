"""The comparison of a plugin's files with the hash in its manifest.json (docs/manifest-json.md, HASH), and
the content of a deno.lock: each module that is fetched for a plugin, and its hash.

The package's digest is the SHA-256 over every file, sorted by path as UTF-8: the path, NUL, the number of
bytes in decimal, NUL, the bytes. The manifest's own hash and signature are left out, as they cannot cover
themselves. For the same reason package.toml is left out, which holds a publisher's signature.

Rules: callers pass the bytes, so the hashed bytes are the loaded ones. Of a lock file only the pins are
read. An entry without a hash is refused, as is an address that is not https.
This file must never know a plugin's purpose or folder, or how modules are fetched.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE, shown
from cortexfs.core.manifest.toml import PACKAGE_FILE
from cortexfs.core.manifestjson import FILE, MAX_BYTES, fetched
from cortexfs.core.manifestjson.entry import LOCAL, entry_of, files_of
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.core.manifestjson.problems import Problem

_LOCK = fetched.FOLDER + fetched.LOCK

# The files that a matching hash covers: all, or the entry point alone; "nothing" without a hash, and "later"
# if its files are not fetched yet.
Covers: TypeAlias = Literal["package", "entry", "nothing", "later"]


def check(manifest: JsonManifest, files: Mapping[str, bytes]) -> Covers:
    """Returns the files that the hash covers. Raises a Fault for a missing entry point or a wrong hash."""
    entry = entry_of(manifest.entry_point)
    is_file = entry is not None and entry.form in LOCAL
    if entry and is_file and not any(path in files for path in files_of(entry)):
        sentence = f"{jsontext.shown(entry.text)} is not among its files"
        raise Fault("ENOENT", f"{FILE}: entryPoint: {sentence}; put it there, or name the file that is")
    is_later = not is_file and manifest.kind != "mcp"
    if is_later and fetched.MODULE not in files and _LOCK not in files:
        return "later"
    covers = verify(manifest.hash, package_digest(files), _entry(manifest, files))
    is_locked = manifest.kind == "esm" and fetched.LOCK in files
    if covers == "package" and is_later and not is_locked:
        mend = "write the SHA-256 of what is there as its hash"
        mend = mend if manifest.kind == "wasm" else f"put a {fetched.LOCK} beside it, and write the hash anew"
        raise Fault("EBADMSG", f"{FILE}: hash: does not cover {manifest.entry_point}; {mend}")
    return covers


def _entry(manifest: JsonManifest, files: Mapping[str, bytes]) -> str | None:
    """Returns the digest of the entry point, or None if it is not one file."""
    entry = entry_of(manifest.entry_point)
    within = files_of(entry) if entry else ()
    data = next((files[path] for path in within or (fetched.MODULE,) if path in files), None)
    if data is not None:
        return entry_digest(data)
    lock = files.get(_LOCK)
    return locked_hash(lock, manifest.entry_point, _LOCK) if lock else None


def package_digest(files: Mapping[str, bytes]) -> str:
    """Returns sha256:... of the files, by their paths."""
    digest = hashlib.sha256()
    for path in sorted(files, key=str.encode):
        if path != PACKAGE_FILE and not fetched.is_fetched(path):
            data = _without_hash(files[path]) if path == FILE else files[path]
            digest.update(b"%s\0%d\0" % (path.encode(), len(data)))
            digest.update(data)
    return f"sha256:{digest.hexdigest()}"


def entry_digest(data: bytes) -> str:
    """Returns sha256:... of an entry point's file."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def verify(claimed: str | None, package: str, entry: str | None = None) -> Covers:
    """Returns the files that the manifest's hash covers. Raises EBADMSG if it is of other files. `entry` is
    None if the entry point is no file."""
    if claimed is None:
        return "nothing"
    digest = claimed.lower().encode()
    # Both are always compared, each in constant time, so that the time reveals neither.
    is_package = hmac.compare_digest(digest, package.encode())
    is_entry = hmac.compare_digest(digest, (entry or package).encode())
    if not is_package and not is_entry:
        raise Fault(
            "EBADMSG",
            f"{FILE}: hash: says {claimed}, but the files are {package}; "
            f"install the plugin again, or write the new hash if the change is yours",
        )
    return "package" if is_package else "entry"


def _without_hash(data: bytes) -> bytes:
    """Returns the manifest for the digest: sorted keys, no white space, neither hash nor signature."""
    value = jsontext.decode(data, FILE) if len(data) <= MAX_BYTES else None
    if not isinstance(value, dict):
        problem = Problem("invalid_json", "", "is not one JSON object of at most 1 MiB", "write one")
        raise Fault("EINVAL", problem.sentence(FILE))
    fields = {key: item for key, item in value.items() if key not in ("hash", "signature")}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


VERSION = "5"  # of Deno 2.3 and later
_HEX = re.compile(r"[0-9a-f]{64}")
_INTEGRITY = re.compile(r"sha(?:512-[A-Za-z0-9+/]{86}==|1-[A-Za-z0-9+/]{27}=|384-[A-Za-z0-9+/]{64})")


class _Package(msgspec.Struct, frozen=True):
    integrity: str = ""


class _Lock(msgspec.Struct, frozen=True):
    version: str
    npm: Mapping[str, _Package] = {}
    jsr: Mapping[str, _Package] = {}
    remote: Mapping[str, str] = {}
    redirects: Mapping[str, str] = {}


def pins(data: bytes, where: str) -> dict[str, str]:
    """Returns packages with versions, and addresses, each with its hash. `where` names the file in faults."""
    lock = _read(data, where)
    found = dict(_pins(lock))
    for name, hash_ in found.items():
        sound = _INTEGRITY if name.startswith("npm:") else _HEX
        if not sound.fullmatch(hash_.removeprefix("sha256:")):
            raise Fault("EINVAL", f"{where} has no hash of {shown(name)}; write it anew with: deno cache")
    return found


def locked_hash(data: bytes, address: str, where: str) -> str | None:
    """Returns the hash of the content at an address, after its redirection."""
    lock = _read(data, where)
    hash_ = lock.remote.get(lock.redirects.get(address, address))
    return f"sha256:{hash_}" if hash_ else None


def _pins(lock: _Lock) -> Iterator[tuple[str, str]]:
    for name, package in sorted(lock.npm.items()):
        yield f"npm:{name}", package.integrity
    for name, package in sorted(lock.jsr.items()):
        yield f"jsr:{name}", f"sha256:{package.integrity}"
    for address, hash_ in sorted(lock.remote.items()):
        if not address.startswith("https://"):
            raise Fault("EINVAL", f"{shown(address)} is not an https address, and only those are fetched")
        yield address, f"sha256:{hash_}"


def _read(data: bytes, where: str) -> _Lock:
    try:
        lock = msgspec.json.decode(data, type=_Lock)
    except UNREADABLE as problem:
        raise Fault("EINVAL", f"{where} is no lock file of Deno: {problem}") from None
    if lock.version != VERSION:
        mend = f"write one of version {VERSION} with: deno cache"
        raise Fault("EINVAL", f"{where} is of version {shown(lock.version)}; {mend}")
    return lock
