"""The content of a deno.lock: every module that a plugin has from elsewhere, and the hash that it has to
have.

Rules: only what pins is read, and an entry without a hash is refused, as is an address that is not https.
This file must never know how modules are fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown

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
    """Packages with their versions and addresses, and the hash of each; `where` names the file in a fault."""
    lock = _read(data, where)
    found = dict(_pins(lock))
    for name, hash_ in found.items():
        sound = _INTEGRITY if name.startswith("npm:") else _HEX
        if not sound.fullmatch(hash_.removeprefix("sha256:")):
            raise Fault("EINVAL", f"{where} has no hash of {shown(name)}; write it anew with: deno cache")
    return found


def entry(data: bytes, address: str, where: str) -> str | None:
    """The hash of what is at an address, wherever that leads."""
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
            raise Fault("EINVAL", f"{shown(address)} is not https, and nothing else is fetched")
        yield address, f"sha256:{hash_}"


def _read(data: bytes, where: str) -> _Lock:
    try:
        lock = msgspec.json.decode(data, type=_Lock)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise Fault("EINVAL", f"{where} is no lock file of Deno: {problem}") from None
    if lock.version != VERSION:
        mend = f"write one of version {VERSION} with: deno cache"
        raise Fault("EINVAL", f"{where} is of version {shown(lock.version)}; {mend}")
    return lock
