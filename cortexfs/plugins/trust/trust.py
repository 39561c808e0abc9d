"""The publishers whose plugins may be installed: their keys, kept in a file of the state directory.

Rules: a publisher is an id and a key together: the same id with another key is another publisher. A store
that cannot be read is a fault, and is not overwritten. A publisher is trusted only by a person's answer to
the question, or by --yes, which skips the question and never a check.
This file must never know how a signature is computed, nor how a person is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from cortexfs.core import tomltext
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.plugins.trust.signing import SignatureVerdict
from cortexfs.state import locked_store

STORE = "plugin-trust.toml"


class Publisher(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    publisher_id: str
    fingerprint_sha256: str
    public_key: str
    trusted_at: str  # RFC 3339


class _Store(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    publishers: tuple[Publisher, ...] = ()


class TrustStore(locked_store.LockedStore[tuple[Publisher, ...]]):
    """The publishers that one state directory trusts."""

    what, mend = "the trust store ", "; mend it, or remove it"

    def __init__(self, state: Path) -> None:
        super().__init__(state / STORE, ())

    def decode(self, data: bytes) -> tuple[Publisher, ...]:
        where = "it is not a list of publishers"
        try:
            return tomltext.converted(tomltext.table(data, where), _Store, where).publishers
        except Fault as fault:
            raise ValueError(fault.message) from None

    def encode(self, value: tuple[Publisher, ...]) -> bytes:
        lines: list[str] = []
        for entry in value:
            lines += ["[[publishers]]", *tomltext.lines(msgspec.to_builtins(entry)), ""]
        return "\n".join(lines).encode()

    def trusts(self, verdict: SignatureVerdict) -> bool:
        return any(_is_of(entry, verdict) for entry in self.read())

    def add(self, verdict: SignatureVerdict, at: str) -> None:
        """Trust the publisher of a verified signature from `at` on, an RFC 3339 time."""
        assert verdict.status == "verified"
        new = Publisher(verdict.publisher, verdict.fingerprint, verdict.public_key, at)
        self.update(lambda known: known if any(_is_of(entry, verdict) for entry in known) else (*known, new))

    def remove(self, publisher: str, fingerprint: str = "") -> int:
        """Trust a publisher no longer, with one key or with all. Returns the number of removed entries."""
        entries: list[Publisher] = []

        def rest(known: tuple[Publisher, ...]) -> tuple[Publisher, ...]:
            ids = [entry for entry in known if entry.publisher_id == publisher]
            entries.extend(entry for entry in ids if fingerprint in ("", entry.fingerprint_sha256))
            if not entries:
                raise Fault("ENOENT", f"{shown(publisher)} is not trusted; see: ctx plugin trust list")
            return tuple(entry for entry in known if entry not in entries)

        self.update(rest)
        return len(entries)


def _is_of(entry: Publisher, verdict: SignatureVerdict) -> bool:
    return (entry.publisher_id, entry.fingerprint_sha256) == (verdict.publisher, verdict.fingerprint)


def decide(
    verdict: SignatureVerdict, *, trusted: bool, packaged: bool, yes: bool, interactive: bool
) -> Literal["install", "trust", "ask"]:
    """Returns the next step of an installation: install at once, trust the publisher first, or ask first.

    Raises EPERM if it is refused. `packaged` is True for a file or a download. A directory may be unsigned,
    as it is its author's own. A question is answered by a person at a terminal.
    """
    if verdict.status == "invalid":
        raise Fault("EPERM", f"the signature is {verdict.text}; get the plugin anew from its publisher")
    if verdict.status == "unsigned":
        if packaged:
            raise Fault(
                "EPERM", f"the package is {verdict.text}; install it from its directory, or have it signed"
            )
        return "install"
    if trusted:
        return "install"
    if yes:
        return "trust"
    if interactive:
        return "ask"
    signer = f"{shown(verdict.publisher)} with the key {verdict.fingerprint}"
    raise Fault("EPERM", f"the publisher {signer} is not trusted yet; add --yes, or answer at a terminal")
