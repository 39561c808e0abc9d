"""The providers of a configuration directory, the listings that the state keeps of them, and the rows that
commands print about both.

    <config>/providers/NAME.toml       the provider (models/providers/provider.py)
    <state>/providers/NAME.json        its last listing
    <state>/abilities.json             the table of other facts about models (abilities.py)

Rules: a wrong file becomes a sentence in `broken`, and the others work. A file is written as a whole or not
at all. These calls block: in the daemon they belong in a thread. Commands without requests import this file,
so it is light.
This file must never know connections.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cortexfs.core import names
from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.models.providers import provider as files
from cortexfs.models.providers.abilities import KeptAbilities
from cortexfs.models.providers.listing import ListedModel, Listing, ProviderModel, cap
from cortexfs.models.providers.provider import DeclaredModel, Provider
from cortexfs.models.providers.secrets import Secrets
from cortexfs.state import believed, no_links, whole_files

FOLDER = "providers"
SUFFIX = ".toml"
MAX_FILE = 1 << 20
MAX_LISTING = 32 << 20  # as long as an answer may be
RESERVED = ("local", "debug")  # providers of this machine


class ProviderFiles(NamedTuple):
    """All providers of a folder, in their order. If two have a model of one name, the first counts."""

    providers: dict[str, Provider]
    broken: dict[str, str]


class Providers:
    """The providers of one configuration and one state."""

    def __init__(self, config: Path, state: Path, abilities: KeptAbilities | None = None) -> None:
        """`abilities` is the table of the state, unless another is passed."""
        self.abilities = abilities or KeptAbilities(state)
        self._folder = config / FOLDER
        self._state, self._listings = state, state / FOLDER

    def path(self, name: str) -> Path:
        return self._folder / f"{names.check(name)}{SUFFIX}"

    def load(self) -> ProviderFiles:
        providers: dict[str, Provider] = {}
        broken: dict[str, str] = {}
        for path in self._paths():
            try:
                providers[check_name(path.stem)] = self.read(path.stem)
            except Fault as fault:
                broken[path.stem] = fault.message
        ordered = sorted(providers.items(), key=lambda item: (item[1].order, item[0]))
        return ProviderFiles(dict(ordered), broken)

    def _paths(self) -> list[Path]:
        with os_faults(f"{self._folder} cannot be read"):
            try:
                entries = sorted(self._folder.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                return []
        return [entry for entry in entries if entry.suffix == SUFFIX and not entry.name.startswith(".")]

    def read(self, name: str) -> Provider:
        """Returns the provider of that name. Raises ENOENT if there is none."""
        path = self.path(name)
        if (data := believed.content_of(path, MAX_FILE, "provider")) is None:
            raise _missing(name)
        return files.decode(data, str(path))

    def add(self, name: str, provider: Provider) -> None:
        path = self.path(check_name(names.check_new(name)))
        if path.exists():
            mend = f"edit {path}, or: ctx provider remove {name}"
            raise Fault("EEXIST", f"there is a provider {name!r} already; {mend}")
        providers = self.load().providers.values()
        order = max((each.order for each in providers), default=0) + 1
        self._put(path, files.encode(msgspec.structs.replace(provider, order=order)))

    def declare(self, name: str, model: DeclaredModel) -> None:
        """Append a model to a provider's file, which stays as its owner wrote it."""
        path = self.path(name)
        data = believed.read(path, MAX_FILE)
        data += b"" if data.endswith(b"\n") or not data else b"\n"
        data += files.declaration(model).encode()
        files.decode(data, str(path))
        self._put(path, data)

    def remove(self, name: str) -> None:
        try:
            self.path(name).unlink()
        except FileNotFoundError:
            raise _missing(name) from None
        with no_links.folder(self._state, FOLDER, 0o755) as listings:
            (listings / f"{name}.json").unlink(missing_ok=True)

    def since(self, name: str) -> float:
        """Returns the time of the last change of the provider's file."""
        try:
            return self.path(name).stat().st_mtime
        except OSError:
            return 0.0

    # Listings.

    def listing(self, name: str, provider: Provider) -> Listing | None:
        """Returns the provider's last listing, if that came from the same address."""
        try:
            data = believed.read(self._listings / f"{names.check(name)}.json", MAX_LISTING)
            listing = msgspec.json.decode(data, type=Listing)
        except (OSError, Fault, *UNREADABLE):
            return None  # `keep` can write it again
        return listing if listing.base_url == provider.base_url else None

    def keep(self, name: str, provider: Provider, models: list[ListedModel], time: float) -> None:
        listing = Listing(provider.base_url, time, tuple(models))
        with (
            os_faults(f"{self._listings} cannot be written"),
            no_links.folder(self._state, FOLDER, 0o755) as listings,
        ):
            path = listings / f"{names.check(name)}.json"
            whole_files.replace(path, [msgspec.json.encode(listing)], 0o644)

    # Offers.

    def offers(self, name: str, provider: Provider) -> list[ProviderModel]:
        """Returns the models of a provider, completed by the table of abilities."""
        listing = self.listing(name, provider) if provider.listed else None
        return self.abilities.table().offers(name, provider, listing.models if listing else ())

    def every_offer(self) -> list[ProviderModel]:
        """Returns the models of all providers, in the order of the providers."""
        providers = self.load().providers
        return [offer for name, provider in providers.items() for offer in self.offers(name, provider)]

    def about(self, name: str, provider: Provider, secrets: Secrets) -> dict[str, Any]:
        """Returns the row of a provider in `ctx provider list`."""
        status = "kept" if secrets.has(name) else "missing" if provider.needs_key else "none"
        if provider.key:
            status = "env" if provider.key.env else "command"
        return {
            "name": name,
            "format": provider.format,
            "base_url": provider.base_url,
            "status": status,
            "models": len(self.offers(name, provider)),
        }

    def model_rows(self, name: str, provider: Provider) -> list[dict[str, Any]]:
        return [
            {
                "model": offer.name,
                "id": offer.declared.id,
                "limit": offer.declared.limit or offer.known.limit,
                "cap": list(cap(offer, provider)),
            }
            for offer in self.offers(name, provider)
        ]

    def _put(self, path: Path, data: bytes) -> None:
        with os_faults(f"{path} cannot be written"):
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            whole_files.replace(path, [data], 0o644)


def check_name(name: str) -> str:
    if name in RESERVED:
        raise Fault("EINVAL", f"the name {name!r} belongs to this machine's own models; choose another")
    return names.check(name)


def _missing(name: str) -> Fault:
    if name in RESERVED:
        return Fault("ENOENT", f"{name!r} has no file and no key: its models are built in; see: ctx ls model")
    return Fault("ENOENT", f"there is no provider {name!r}; see: ctx provider list")
