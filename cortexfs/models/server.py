"""Where a model's requests go: an address and a key, for as long as somebody talks to it.

    async with server.reached() as endpoint:
        ...

A provider's server is always there. An engine's is started when it is first reached, and may end when
nobody is within a `reached` any more.

Rules: the key is for the request alone; an Endpoint shows none when it is printed.
This file must never know which provider it is, nor what is asked.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec


class Endpoint(msgspec.Struct, frozen=True):
    base_url: str
    key: str = ""

    def __repr__(self) -> str:
        return f"<endpoint {self.base_url}>"


class Server(Protocol):
    def reached(self) -> AbstractAsyncContextManager[Endpoint]:
        """The endpoint, ready to answer; a Fault that says why it is not (EHOSTDOWN, EACCES)."""
