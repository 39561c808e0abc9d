"""The providers of a daemon: their models as objects, their faults, and the sources of answers. A source has
the address, the key and the deadlines.

Rules: files are read at once, in a thread, and no request goes over the network. The time of a provider's
models is that of its file. A key is read at the first request and kept until the next reload. It leaves here
in an Endpoint and nowhere else.
This file must never know a mount.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import NamedTuple

import trio

from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object
from cortexfs.models.exchange import failures
from cortexfs.models.exchange.endpoint import Endpoint, Serving
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.listing import object_of
from cortexfs.models.providers.provider import Provider
from cortexfs.models.providers.secrets import Secrets, key_of


class ModelSource(NamedTuple):
    """The server that answers for the models of a provider, with the settings for its requests."""

    name: str
    serving: Serving
    format: str
    headers: Mapping[str, str] = MappingProxyType({})
    connect: float = 10.0  # seconds
    first: float = 300.0
    silence: float = 120.0
    rest: float = 0.0  # seconds between two reads of an answer

    @classmethod
    def of(cls, name: str, provider: Provider, secrets: Secrets) -> ModelSource:
        return cls(
            name=name,
            serving=Remote(name, provider, secrets).serving,
            format=provider.format,
            headers=provider.headers,
            connect=provider.connect_secs,
            first=provider.first_secs,
            silence=provider.silence_secs,
        )


class Remote:
    """A provider's server (models/exchange/endpoint.py)."""

    def __init__(self, name: str, provider: Provider, secrets: Secrets) -> None:
        self._name = name
        self._provider = provider
        self._secrets = secrets
        self._key: str | None = None
        self._reading = trio.Lock()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Endpoint]:
        async with self._reading:
            if self._key is None:
                self._key = await key_of(self._name, self._provider.key, self._secrets)
        key = self._key
        if not key and self._provider.needs_key:
            self._key = None
            raise failures.no_key(self._name)
        try:
            yield Endpoint(self._provider.base_url, key)
        except Fault as fault:
            if fault.code == "EACCES":  # the next request may find a newer key
                self._key = None
            raise


class ProviderObjects(NamedTuple):
    objects: list[Object]
    sources: dict[str, ModelSource]
    broken: dict[str, str]  # by provider


def served(files: Providers, secrets: Secrets) -> ProviderObjects:
    provider_files = files.load()
    objects: list[Object] = []
    for name, provider in provider_files.providers.items():
        registered, has_key = files.since(name), provider.key is not None or secrets.has(name)
        for offer in files.offers(name, provider):
            objects.append(object_of(offer, provider, registered, has_key))
    sources = {
        name: ModelSource.of(name, provider, secrets) for name, provider in provider_files.providers.items()
    }
    return ProviderObjects(objects, sources, provider_files.broken)
