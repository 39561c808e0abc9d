"""The endpoint of a model's requests: an address and a key, for as long as a request uses it.

    async with source.serving() as endpoint:
        ...

A provider's server always exists. An engine is started by the first request, and may end when no request
is within its `serving` any more.

Rules: the key is for the request alone; a printed Endpoint does not show it.
This file must never know the provider, nor the content of a request.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

ANTHROPIC = "anthropic.messages"
ANTHROPIC_VERSION = "2023-06-01"


class Lost(Exception):
    """The connection failed. A `lasting` reason would make the next connection fail, too."""

    def __init__(self, why: str, connected: bool, lasting: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.connected = connected
        self.lasting = lasting


class Endpoint:
    """The address of a provider, or of an engine while `is_alive`: after its end another process may have its
    port, and must get no request."""

    def __init__(self, base_url: str, key: str, is_alive: Callable[[], bool] | None = None) -> None:
        self.base_url = base_url
        self.key = key
        self.is_there = is_alive or (lambda: True)  # called after each connect
        # A connection for the next request: an engine has a thread for each.
        self.keeps_connections = is_alive is None


def authorisation(key: str, format_: str) -> dict[str, str]:
    """Returns the headers that a vendor requires: the key, if there is one, and the version of its API."""
    if format_ == ANTHROPIC:
        return {"Anthropic-Version": ANTHROPIC_VERSION} | ({"X-Api-Key": key} if key else {})
    return {"Authorization": f"Bearer {key}"} if key else {}


# Provides the endpoint, ready to answer. Raises EHOSTDOWN or EACCES if it cannot be ready.
Serving: TypeAlias = Callable[[], AbstractAsyncContextManager[Endpoint]]
