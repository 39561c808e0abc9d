"""Connections to providers: the vendors' SDKs, imported when first needed, one client an address.

    async with clients.stream(endpoint, settings, body) as response:
        while data := await response.receive(): ...

The SDKs address, authorise and pool; what comes back is read as bytes, since a stream that breaks off, or
is none, looks to their readers like one that ended well.

Rules: nothing is retried or redirected here, and no environment variable decides where a request goes.
A response that is no stream is a Rejected with its status; a connection that fails is a Lost. Neither
holds a key: what httpx says of headers is never passed on.
This file must never know models or frames.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import trio

from cortexfs.core import networks
from cortexfs.core.errors import Fault
from cortexfs.models.exchange.endpoint import Endpoint, authorisation
from cortexfs.models.exchange.failures import MAX_BODY

EXTRA = "pip install 'cortexfs[models]'"
CONNECTIONS = 1000  # to one provider; each is somebody's answer
KEPT = 20  # idle ones, for the next request
KEPT_SECONDS = 60.0
ERROR_SECONDS = 10.0  # to read it
CLOSE_SECONDS = 1.0
OURS = ("authorization", "x-api-key", "openai-organization", "openai-project")  # headers that we decide
NO_KEY = "none"  # what an SDK is told: it may show its client, and wants a word
CHATTY = ("httpx2", "httpx", "httpcore2", "httpcore", "openai", "anthropic")  # loggers that tell requests


class RejectedResponse(Exception):
    """A response that is no stream of events."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.body = body


class Lost(Exception):
    """The connection failed."""

    def __init__(self, why: str, connected: bool) -> None:
        super().__init__(why)
        self.why = why
        self.connected = connected


class ConnectionSettings(NamedTuple):
    """The part of a provider's file that a connection needs."""

    format: str
    headers: tuple[tuple[str, str], ...]
    connect: float


class Response:
    """A stream that has begun."""

    def __init__(self, chunks: Any) -> None:
        self._chunks = chunks

    async def receive(self) -> bytes:
        """Its next bytes, as they come; none at its end."""
        try:
            while True:
                data = await anext(self._chunks, None)
                if data is None or data:
                    return data or b""
        except Exception as error:
            raise _translated(error, connected=True) from None


class _Client:
    """An SDK's client, and how many use it."""

    def __init__(self, sdk: Any) -> None:
        self.sdk = sdk
        self.users = 0
        self.retired = False

    @asynccontextmanager
    async def used(self) -> AsyncIterator[Any]:
        self.users += 1
        try:
            yield self.sdk
        finally:
            self.users -= 1
            if self.retired and not self.users:
                await self.close()

    async def close(self) -> None:
        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_SECONDS):
            await self.sdk.close()


class Clients:
    """The clients of one daemon, by where they connect to and as whom."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, ConnectionSettings], _Client] = {}
        self._importing = trio.Lock()

    @asynccontextmanager
    async def stream(
        self, endpoint: Endpoint, settings: ConnectionSettings, body: dict[str, Any]
    ) -> AsyncIterator[Response]:
        client = await self._client(endpoint, settings)
        try:
            async with client.used() as sdk, _opened(sdk, _APIS[settings.format], body) as raw:
                if not raw.headers.get("content-type", "").startswith("text/event-stream"):
                    raise RejectedResponse(raw.status_code, dict(raw.headers), await _bounded(raw))
                chunks = raw.iter_bytes()
                try:
                    yield Response(chunks)
                finally:
                    await _let_go(raw, chunks)
        except Exception as error:
            raise _translated(error, connected=False) from None

    async def _client(self, endpoint: Endpoint, settings: ConnectionSettings) -> _Client:
        key = (endpoint.base_url, endpoint.key, settings)
        if key not in self._known:
            async with self._importing:
                package = await trio.to_thread.run_sync(_imported, _APIS[settings.format].package)
            if key not in self._known:
                self._known[key] = _Client(_made(package, endpoint, settings))
        return self._known[key]

    async def forget(self) -> None:
        """Use none of them for what comes next, as addresses and keys may have changed. Idle ones are
        closed, the others when the last stream over them has ended."""
        clients, self._known = list(self._known.values()), {}
        for client in clients:
            client.retired = True
            if not client.users:
                await client.close()


def _imported(name: str) -> Any:
    """An SDK. Importing costs up to a second, so a thread does it."""
    import importlib

    try:
        module = importlib.import_module(name)
    except ImportError:
        raise Fault("EHOSTDOWN", f"this format needs the package {name}; install it: {EXTRA}") from None
    for chatty in CHATTY:  # they tell addresses at INFO, and headers at DEBUG
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return module


def _http(endpoint: Endpoint, settings: ConnectionSettings) -> Any:
    import httpx2

    headers = authorisation(endpoint.key, settings.format) | dict(settings.headers)

    async def authorise(request: Any) -> None:
        """The last word on headers: an SDK takes some from the environment."""
        for name in OURS:
            request.headers.pop(name, None)
        request.headers.update(headers)

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=settings.connect),  # the other deadlines are the driver's
        limits=httpx2.Limits(
            max_connections=CONNECTIONS, max_keepalive_connections=KEPT, keepalive_expiry=KEPT_SECONDS
        ),
        event_hooks={"request": [authorise]},
        follow_redirects=False,  # a key goes where it was meant to go
        trust_env=not networks.is_loopback(urlsplit(endpoint.base_url).hostname),  # proxies
    )


class _Api(NamedTuple):
    """Where an SDK has what a format needs."""

    package: str
    client: str
    resource: str
    named: tuple[str, ...]  # fields that its method wants by name; it takes the others as they are


_CHAT = _Api("openai", "AsyncOpenAI", "chat.completions", ("model", "messages"))
_APIS = {
    "openai.chat": _CHAT,
    "openai.responses": _Api("openai", "AsyncOpenAI", "responses", ("model", "input")),
    "google": _CHAT,
    "anthropic.messages": _Api(
        "anthropic", "AsyncAnthropic", "messages", ("model", "messages", "max_tokens")
    ),
}


def _made(package: Any, endpoint: Endpoint, settings: ConnectionSettings) -> Any:
    api, base_url = _APIS[settings.format], endpoint.base_url
    if api.package == "anthropic":  # which adds it
        base_url = base_url.removesuffix("/v1")
    http = _http(endpoint, settings)
    return getattr(package, api.client)(base_url=base_url, api_key=NO_KEY, max_retries=0, http_client=http)


def _opened(client: Any, api: _Api, body: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
    named = {name: body[name] for name in api.named}
    others = {name: value for name, value in body.items() if name not in named}
    resource = attrgetter(api.resource)(client).with_streaming_response
    return resource.create(**named, stream=True, extra_body=others)  # type: ignore[no-any-return]


async def _bounded(raw: Any) -> bytes:
    data = bytearray()
    with trio.move_on_after(ERROR_SECONDS):
        chunks = raw.iter_bytes()
        try:
            async for chunk in chunks:
                data += chunk
                if len(data) > MAX_BODY:
                    break
        finally:
            await _let_go(raw, chunks)
    return bytes(data)


async def _let_go(raw: Any, chunks: AsyncIterator[bytes]) -> None:
    """Close the response, and run its generators to their end. httpx nests several that do not close each
    other; what reads from a closed connection ends them all, and Trio finds none left over."""
    with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_SECONDS), suppress(Exception):
        await raw.close()
        async for _ in chunks:
            pass


def _translated(error: Exception, connected: bool) -> Exception:
    """An SDK's exception as ours; its text may hold addresses and headers, and stays here."""
    if isinstance(error, RejectedResponse | Lost | Fault):
        return error
    response = getattr(error, "response", None)
    if response is not None and getattr(response, "status_code", 0) >= 300:
        body = response.content if response.is_stream_consumed else b""
        return RejectedResponse(response.status_code, dict(response.headers), body[:MAX_BODY])
    why = _reason(error)
    return error if why is None else Lost(why, connected)


NO_CONNECTION = "no connection"
_REASONS = (
    ("ConnectTimeout", "it did not answer in time"),
    ("PoolTimeout", "too many requests are open"),
    ("ConnectError", NO_CONNECTION),
    ("ProxyError", "its proxy refuses"),
    ("UnsupportedProtocol", "its base_url is not one of http or https"),
    ("RemoteProtocolError", "it broke off"),
    ("LocalProtocolError", "the request cannot be sent as it is"),
    ("DecodingError", "its data is not compressed as it says"),
    ("ReadError", "the connection broke off"),
    ("WriteError", "the connection broke off"),
)


def _reason(error: BaseException) -> str | None:
    """Why a connection failed, by the names of httpx's errors; None for what is none of them."""
    chain = _chain(error)
    names = {base.__name__ for one in chain for base in type(one).__mro__}
    found = next((text for name, text in _REASONS if name in names), None)
    number = next((one.errno for one in chain if isinstance(one, OSError) and one.errno), None)
    if found == NO_CONNECTION:
        if any(isinstance(one, ssl.SSLError) for one in chain):
            return "its certificate is not to be trusted"
        if any(isinstance(one, socket.gaierror) for one in chain):
            return "its name is not known"
        return os.strerror(number).lower() if number else found
    if found is None and names & {"HTTPError", "OpenAIError", "AnthropicError"}:
        return "the connection failed"
    return found


def _chain(error: BaseException) -> list[BaseException]:
    """An exception, what it came from, and what is in groups."""
    chain: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop(0)
        if each is not None and each not in chain:
            chain.append(each)
            left += [each.__cause__, each.__context__]
            left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
    return chain
