"""The providers of a daemon, as their models' answers need them: where to, as whom, and how patiently.

Rules: a key is read when it is first needed and kept until the next reload. It leaves here in an Endpoint
and nowhere else.
This file must never know which models a provider has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from cortexfs.core.errors import Fault
from cortexfs.models.exchange import failures
from cortexfs.models.exchange.endpoint import Endpoint, EndpointServer
from cortexfs.models.providers.provider import Provider
from cortexfs.models.providers.secrets import Secrets, key_of


class ModelSource(NamedTuple):
    """The code that answers for the models of a provider."""

    name: str
    server: EndpointServer
    format: str
    headers: tuple[tuple[str, str], ...] = ()
    connect: float = 10.0  # seconds
    first: float = 300.0
    silence: float = 120.0

    @classmethod
    def of(cls, name: str, provider: Provider, secrets: Secrets) -> ModelSource:
        return cls(
            name=name,
            server=Remote(name, provider, secrets),
            format=provider.format,
            headers=tuple(sorted(provider.headers.items())),
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
            raise Fault(*failures.no_key(self._name)[:2])
        try:
            yield Endpoint(self._provider.base_url, key)
        except Fault as fault:
            if fault.code == "EACCES":  # the next one may find a newer key
                self._key = None
            raise
