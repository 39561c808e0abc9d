"""An administrator's decisions about plugins with a manifest.json: capabilities, networks, settings.

They are one file of the state directory, which only the daemon's user may read. Secrets among the settings
are sealed (plugins/trust/secret_box.py). `forget` removes all that is left of a plugin without files.

Rules: those of state/locked_store.py.
This file must never know the installed plugins, nor if a value fits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.plugins.trust import secret_box
from cortexfs.state import locked_store
from cortexfs.state.directories import forget_kept

STORE = "plugin-settings.json"
Decision: TypeAlias = Literal["grant", "deny"]


class Chosen(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The decisions about one plugin."""

    capabilities: dict[str, Decision] = {}
    private: tuple[str, ...] = ()  # networks without public addresses that it may connect to
    config: dict[str, Any] = {}
    secrets: dict[str, str] = {}  # settings that are never shown; sealed

    def decided(self, decision: Decision) -> tuple[str, ...]:
        return tuple(name for name, value in self.capabilities.items() if value == decision)


NOTHING = Chosen()


class DecisionStore(locked_store.LockedStore[dict[str, Chosen]]):
    what, mend = "the settings of plugins ", "; mend or remove it"

    def __init__(self, state: Path) -> None:
        super().__init__(state / STORE, {})

    def decode(self, data: bytes) -> dict[str, Chosen]:
        return msgspec.json.decode(data, type=dict[str, Chosen])

    def encode(self, value: dict[str, Chosen]) -> bytes:
        data = super().encode(value)
        if len(data) > self.most:
            mend = "shorten the settings"
            raise Fault("EMSGSIZE", f"{self.path} would be over {self.most >> 20} MiB; {mend}")
        return data

    def of(self, name: str) -> Chosen:
        return self.read().get(name, NOTHING)

    def opened(self, name: str) -> Chosen:
        """Returns the decisions with the secrets unsealed, for the plugin alone."""
        chosen = self.of(name)
        items = chosen.secrets.items()
        secrets = {key: secret_box.unseal(self.path.parent, name, key, text) for key, text in items}
        return msgspec.structs.replace(chosen, secrets=secrets)

    def seal(self, name: str, key: str, secret: str) -> str:
        return secret_box.seal(self.path.parent, name, key, secret)

    def change(self, name: str, make: Callable[[Chosen], Chosen]) -> None:
        """Replace the decisions about one plugin by the result of `make`."""

        def changed(known: dict[str, Chosen]) -> dict[str, Chosen]:
            decided = known | {name: make(known.get(name, NOTHING))}
            return {name: chosen for name, chosen in decided.items() if chosen != NOTHING}

        self.update(changed)

    def forget(self, name: str) -> None:
        if name in self.read():
            self.change(name, lambda chosen: NOTHING)


def forget(state: Path, name: str) -> None:
    """Remove a plugin's decisions, and its state of all users."""
    DecisionStore(state).forget(name)
    forget_kept(state, names.check(name))
