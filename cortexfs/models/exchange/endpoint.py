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

ANTHROPIC = "anthropic.messages"
ANTHROPIC_VERSION = "2023-06-01"


class Lost(Exception):
    """The connection failed; a `lasting` reason will be the same for the next one."""

    def __init__(self, why: str, connected: bool, lasting: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.connected = connected
        self.lasting = lasting


class Endpoint:
    kept = True  # its connections are, for the next request

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url = base_url
        self.key = key

    def is_there(self) -> bool:
        """Returns False where the address may be somebody else's by now. Asked when a connection is there."""
        return True


def authorisation(key: str, format_: str) -> dict[str, str]:
    """The headers that a vendor wants: the key, if there is one, and the version of its API."""
    if format_ == ANTHROPIC:
        return {"Anthropic-Version": ANTHROPIC_VERSION} | ({"X-Api-Key": key} if key else {})
    return {"Authorization": f"Bearer {key}"} if key else {}


class EndpointServer(Protocol):
    def serving(self) -> AbstractAsyncContextManager[Endpoint]:
        """The endpoint, ready to answer; a Fault that says why it is not (EHOSTDOWN, EACCES)."""
