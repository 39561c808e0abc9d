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


class Endpoint(Protocol):
    @property
    def base_url(self) -> str: ...
    @property
    def key(self) -> str: ...


class EndpointServer(Protocol):
    def serving(self) -> AbstractAsyncContextManager[Endpoint]:
        """The endpoint, ready to answer; a Fault that says why it is not (EHOSTDOWN, EACCES)."""
