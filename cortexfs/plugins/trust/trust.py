"""Whose plugins may be installed: publishers' keys, kept in a file of the state directory.

Rules: a publisher is an id and a key together; the same id with another key is a stranger. A store that
cannot be read is a fault, and is not overwritten. Nobody is trusted without a person's word, given when asked
or by --yes, and --yes skips the question and never a check.
This file must never know how a signature is computed, nor how a person is asked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from cortexfs.core.errors import Fault, code_of
from cortexfs.core.jsontext import shown
from cortexfs.plugins.package.manifests import quoted
from cortexfs.plugins.trust.signing import Verdict
from cortexfs.state import believed

STORE = "plugin-trust.toml"
MAX_FILE = 4 << 20  # some ten thousand publishers


class Publisher(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    publisher_id: str
    fingerprint_sha256: str
    public_key: str
    trusted_at: str  # RFC 3339


class _Store(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    publishers: tuple[Publisher, ...] = ()


class TrustStore:
    """The publishers that one state directory trusts."""

    def __init__(self, state: Path) -> None:
        self.path = state / STORE

    def publishers(self) -> tuple[Publisher, ...]:
        try:
            data = believed.read(self.path, MAX_FILE)
        except FileNotFoundError:
            return ()
        except OSError as problem:
            raise self._fault(code_of(problem.errno), problem.strerror or "") from None
        if len(data) > MAX_FILE:
            raise self._fault("EMSGSIZE", f"it is over {MAX_FILE >> 20} MiB")
        try:
            return msgspec.convert(tomllib.loads(data.decode()), _Store).publishers
        except (ValueError, RecursionError) as problem:  # msgspec's and tomllib's are ValueErrors
            raise self._fault("EINVAL", f"it is not a list of publishers: {problem}") from None

    def trusts(self, verdict: Verdict) -> bool:
        return any(_is_of(one, verdict) for one in self.publishers())

    def add(self, verdict: Verdict, at: str) -> None:
        """Trust the publisher of a verified signature from `at` on, an RFC 3339 time."""
        assert verdict.status == "verified"
        with self._locked():
            known = self.publishers()
            if not any(_is_of(one, verdict) for one in known):
                new = Publisher(verdict.publisher, verdict.fingerprint, verdict.public_key, at)
                self._write((*known, new))

    def remove(self, publisher: str, fingerprint: str = "") -> int:
        """Trust a publisher no longer, with one key or with all; how many entries that were."""
        with self._locked():
            known = self.publishers()
            kept = tuple(
                one
                for one in known
                if one.publisher_id != publisher or fingerprint not in ("", one.fingerprint_sha256)
            )
            if len(kept) == len(known):
                raise Fault("ENOENT", f"{shown(publisher)} is not trusted; see: ctx plugin trust list")
            self._write(kept)
            return len(known) - len(kept)

    def _write(self, publishers: tuple[Publisher, ...]) -> None:
        lines: list[str] = []
        for one in publishers:
            fields = msgspec.to_builtins(one).items()
            lines += ["[[publishers]]", *(f"{key} = {quoted(value)}" for key, value in fields), ""]
        believed.replace(self.path, "\n".join(lines).encode(), mode=0o600, alone=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self.path.with_name(f".{STORE}.lock")
            with open(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                yield
        except OSError as problem:
            raise Fault(
                code_of(problem.errno), f"{self.path} cannot be changed: {problem.strerror}"
            ) from None

    def _fault(self, code: str, why: str) -> Fault:
        return Fault(code, f"the trust store {self.path} cannot be read: {why}; mend it, or remove it")


def _is_of(one: Publisher, verdict: Verdict) -> bool:
    return (one.publisher_id, one.fingerprint_sha256) == (verdict.publisher, verdict.fingerprint)


def decide(
    verdict: Verdict, *, trusted: bool, packaged: bool, yes: bool, interactive: bool
) -> Literal["install", "trust", "ask"]:
    """Whether to install: as it is, after trusting its publisher, or after asking; else a fault.

    `packaged` is what comes as a file or over the network; a directory may be unsigned, for its author has it
    there. A question is answered by a person at a terminal.
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
    who = f"{shown(verdict.publisher)} with the key {verdict.fingerprint}"
    raise Fault(
        "EPERM", f"the publisher {who} is not trusted yet; say --yes to trust it, or ask at a terminal"
    )
