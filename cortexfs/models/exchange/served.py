"""Everything that the providers of a configuration come to: objects, sources, and what is wrong.

Rules: files are read here and now, in a thread; nobody is asked over the network. A provider's models are
as old as its file.
This file must never know a mount.
"""

from __future__ import annotations

from typing import NamedTuple

from cortexfs.core.registry import Object
from cortexfs.models.exchange.sources import ModelSource
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.objects import ProviderModel, object_of, offers
from cortexfs.models.providers.provider import Provider
from cortexfs.models.providers.secrets import Secrets


class ProviderObjects(NamedTuple):
    objects: list[Object]
    sources: dict[str, ModelSource]
    broken: dict[str, str]  # by provider


def served(files: Providers, secrets: Secrets) -> ProviderObjects:
    found = files.load()
    made: list[Object] = []
    for name, provider in found.providers.items():
        registered, has_key = files.since(name), provider.key is not None or secrets.has(name)
        for offer in _offers(files, name, provider):
            made.append(object_of(offer, provider, registered, has_key))
    sources = {name: ModelSource.of(name, provider, secrets) for name, provider in found.providers.items()}
    return ProviderObjects(made, sources, found.broken)


def every_offer(files: Providers) -> list[ProviderModel]:
    """Returns the models of all providers, those that come first before others."""
    providers = files.load().providers
    return [offer for name, provider in providers.items() for offer in _offers(files, name, provider)]


def _offers(files: Providers, name: str, provider: Provider) -> list[ProviderModel]:
    listing = files.listing(name, provider) if provider.listed else None
    return offers(name, provider, listing.models if listing else ())
