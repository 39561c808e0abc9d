"""Where a model's requests go: an address and a key, for as long as somebody talks to it.

    async with server.serving() as endpoint:
        ...

A provider's server is always there. An engine is started when it is first wanted, and may end when
nobody is within its `serving` any more.

Rules: the key is for the request alone; an Endpoint shows none when it is printed.
This file must never know which provider it is, nor what is asked.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Endpoint:
    def __init__(self, base_url: str, key: str) -> None:
        self.base_url = base_url
        self.key = key


def authorisation(key: str, format_: str) -> dict[str, str]:
    """The header that has the key."""
    if not key:
        return {}
    return {"X-Api-Key": key} if format_ == "anthropic.messages" else {"Authorization": f"Bearer {key}"}


class EndpointServer(Protocol):
    def serving(self) -> AbstractAsyncContextManager[Endpoint]:
        """The endpoint, ready to answer; a Fault that says why it is not (EHOSTDOWN, EACCES)."""
