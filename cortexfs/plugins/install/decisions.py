"""What an administrator has decided about plugins with a manifest.json: capabilities, networks, settings.

One file of the state directory, which only the daemon's user may read. Secrets among the settings are in
there as plugins/trust/secret_box.py makes them.

Rules: a store that cannot be read is a fault, and is not overwritten. A writer holds a lock, and a
reader sees what was there before or after.
This file must never know which plugins there are, nor whether a value fits.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from cortexfs.core.errors import Fault, code_of
from cortexfs.plugins.trust import secret_box
from cortexfs.state import believed

STORE = "plugin-settings.json"
MAX_FILE = 4 << 20
Decision: TypeAlias = Literal["grant", "deny"]


class Chosen(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Of one plugin."""

    capabilities: dict[str, Decision] = {}
    private: tuple[str, ...] = ()  # networks without public addresses that it may talk to
    config: dict[str, Any] = {}
    secrets: dict[str, str] = {}  # settings that nobody is shown, sealed

    def decided(self, what: Decision) -> tuple[str, ...]:
        return tuple(name for name, how in self.capabilities.items() if how == what)


NOTHING = Chosen()
_decoder = msgspec.json.Decoder(dict[str, Chosen])


class Store:
    def __init__(self, state: Path) -> None:
        self.path = state / STORE

    def read(self) -> dict[str, Chosen]:
        try:
            data = believed.read(self.path, MAX_FILE)
        except FileNotFoundError:
            return {}
        except OSError as problem:
            raise self._fault(code_of(problem.errno), problem.strerror or "") from None
        try:
            return _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
            raise self._fault("EINVAL", str(problem)) from None

    def of(self, name: str) -> Chosen:
        return self.read().get(name, NOTHING)

    def opened(self, name: str) -> Chosen:
        """With its secrets as they are, for the plugin alone."""
        chosen = self.of(name)
        sealed = chosen.secrets.items()
        secrets = {key: secret_box.unseal(self.path.parent, name, key, text) for key, text in sealed}
        return msgspec.structs.replace(chosen, secrets=secrets)

    def seal(self, name: str, key: str, secret: str) -> str:
        return secret_box.seal(self.path.parent, name, key, secret)

    def change(self, name: str, make: Callable[[Chosen], Chosen]) -> None:
        """Put what `make` says in the place of what is decided about one plugin."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self.path.with_name(f".{STORE}.lock")
            with open(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                known = self.read()
                changed = known | {name: make(known.get(name, NOTHING))}
                self._write({name: one for name, one in changed.items() if one != NOTHING})
        except OSError as problem:
            raise Fault(
                code_of(problem.errno), f"{self.path} cannot be changed: {problem.strerror}"
            ) from None

    def forget(self, name: str) -> None:
        if name in self.read():
            self.change(name, lambda chosen: NOTHING)

    def _write(self, known: dict[str, Chosen]) -> None:
        data = msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n"
        if len(data) > MAX_FILE:
            raise Fault("EMSGSIZE", f"{self.path} would be over {MAX_FILE >> 20} MiB; shorten the settings")
        believed.replace(self.path, data, mode=0o600, alone=True)

    def _fault(self, code: str, why: str) -> Fault:
        return Fault(code, f"the settings of plugins {self.path} cannot be read: {why}; mend or remove it")
