"""The models that providers offer according to their files, and the rows that commands print about them.

Rules: no request goes over the network. Commands without requests import this file, so it is light.
This file must never know how a provider is asked.
"""

from __future__ import annotations

from typing import Any

from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.listing import ProviderModel, cap
from cortexfs.models.providers.provider import Provider
from cortexfs.models.providers.secrets import Secrets


def every_offer(files: Providers) -> list[ProviderModel]:
    """Returns the models of all providers, in the order of the providers."""
    providers = files.load().providers
    return [offer for name, provider in providers.items() for offer in by(name, provider, files)]


def about(name: str, provider: Provider, files: Providers, secrets: Secrets) -> dict[str, Any]:
    """Returns the row of a provider in `ctx provider list`."""
    status = "kept" if secrets.has(name) else "missing" if provider.needs_key else "none"
    if provider.key:
        status = "env" if provider.key.env else "command"
    return {
        "name": name,
        "format": provider.format,
        "base_url": provider.base_url,
        "status": status,
        "models": len(by(name, provider, files)),
    }


def model_rows(name: str, provider: Provider, files: Providers) -> list[dict[str, Any]]:
    return [
        {
            "model": offer.name,
            "id": offer.declared.id,
            "limit": offer.declared.limit or offer.known.limit,
            "cap": list(cap(offer, provider)),
        }
        for offer in by(name, provider, files)
    ]


def by(name: str, provider: Provider, files: Providers) -> list[ProviderModel]:
    """Returns the models of a provider, completed by the table of abilities."""
    listing = files.listing(name, provider) if provider.listed else None
    return files.abilities.table().offers(name, provider, listing.models if listing else ())
