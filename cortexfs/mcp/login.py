"""A login at the authorization server of an MCP server, by the SDK: discovery, registration, PKCE.

Main path: `logged_in` connects to the server. If the server refuses, the SDK finds the authorization server
and passes `browse` the address where a person logs in. The browser then returns to a port of this machine.

Rules: only that port takes the code, at the announced address; the SDK checks the issuer. Other users can
connect to it, too: a request without this login's state changes nothing, and nobody waits for a connection
that says nothing. A former token is not sent: a person who logs in wants a new one.
This file must never know where a login is kept.
"""

from __future__ import annotations

import asyncio
import html
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit, urlunsplit

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, ValidationError

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_login import BASIC, McpLogin, checked
from cortexfs.net.bounded import bound

HOST = "127.0.0.1"
PATH = "/callback"
MAX_LINE = 16 << 10
PAGE = "<!doctype html><title>CortexFS</title><p>{}</p>"
DONE = "You are logged in. You can close this page."


class LoginWish(NamedTuple):
    scopes: tuple[str, ...] = ()  # beside the scopes that the server asks for
    client_id: str = ""  # of a client registered by hand
    client_secret: str = ""
    client_auth: str = BASIC
    metadata_url: str = ""  # of a document about this client, for servers that accept one
    port: int = 0


class _Storage:
    """The tokens and the client that the SDK stores during a login."""

    def __init__(self, wish: LoginWish, redirect: str) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None
        if wish.client_id:
            self.client = OAuthClientInformationFull(
                client_id=wish.client_id,
                client_secret=wish.client_secret or None,
                token_endpoint_auth_method=wish.client_auth if wish.client_secret else "none",
                redirect_uris=[AnyUrl(redirect)],
            )

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def logged_in(url: str, wish: LoginWish, browse: Callable[[str], None]) -> McpLogin | None:
    """Returns the login, or None if the server needs none."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # failures become a Fault
    back: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
    states: list[str] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _sent_back(reader, writer, states, back)

    listening = await asyncio.start_server(take, HOST, wish.port, limit=MAX_LINE)
    redirect = f"http://{HOST}:{listening.sockets[0].getsockname()[1]}{PATH}"
    storage = _Storage(wish, redirect)

    async def go(address: str) -> None:
        states.extend(parse_qs(urlsplit(address).query)["state"])
        await anyio.to_thread.run_sync(browse, _with_scopes(address, wish.scopes))

    async def wait() -> AuthorizationCodeResult:
        return await back

    provider = OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="CortexFS", redirect_uris=[AnyUrl(redirect)], scope=" ".join(wish.scopes) or None
        ),
        storage,
        go,
        wait,
        wish.metadata_url or None,
    )
    try:
        http = bound(httpx2.AsyncClient(auth=provider, timeout=httpx2.Timeout(30, read=None)))
        way = streamable_http_client(url, http_client=http)
        async with http, Client(way, cache=None) as client:
            await client.list_tools()
    except BaseExceptionGroup as group:
        raise _fault(url, group) from None
    except (MCPError, OAuthFlowError, OSError, httpx2.HTTPError, ValidationError) as error:
        raise _fault(url, error) from None
    finally:
        listening.close()
    return _login(url, provider, storage)


def _login(url: str, provider: OAuthClientProvider, storage: _Storage) -> McpLogin | None:
    tokens, client, known = storage.tokens, storage.client, provider.context
    if tokens is None or client is None:
        return None
    found = known.oauth_metadata
    base = known.get_authorization_base_url(url)
    is_bound = known.should_include_resource_param(known.protocol_version)
    resource = known.get_resource_url() if is_bound else ""
    return checked(
        McpLogin(
            url=url,
            client_id=client.client_id,
            token_endpoint=str(found.token_endpoint) if found is not None else f"{base}/token",
            access_token=tokens.access_token,
            refresh_token=tokens.refresh_token or "",
            client_secret=client.client_secret or "",
            client_auth=client.token_endpoint_auth_method or "",
            resource=resource,
            scope=tokens.scope or known.client_metadata.scope or "",
            expires=int(time.time()) + tokens.expires_in if tokens.expires_in else 0,
        )
    )


def _with_scopes(address: str, scopes: tuple[str, ...]) -> str:
    """Returns the address of a login with these scopes added."""
    if not scopes:
        return address
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    query["scope"] = " ".join(dict.fromkeys([*query.get("scope", "").split(), *scopes]))
    return urlunsplit(parts._replace(query=urlencode(query)))


async def _sent_back(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    states: Sequence[str],
    back: asyncio.Future[AuthorizationCodeResult],
) -> None:
    """Answer a browser that returns, and take the code or the error from its request."""
    try:
        line = (await reader.readline()).decode("ascii", "replace").split()
        parts = urlsplit(line[1] if len(line) > 1 else "")
        fields = {key: values[0] for key, values in parse_qs(parts.query).items()}
        status, text = "404 Not Found", "There is nothing here."
        is_ours = parts.path == PATH and fields.get("state") in states and not back.done()
        if is_ours and ("code" in fields or "error" in fields):
            status, text = "200 OK", DONE
            if "code" in fields:
                code, state, issuer = fields["code"], fields.get("state"), fields.get("iss")
                back.set_result(AuthorizationCodeResult(code=code, state=state, iss=issuer))
            else:
                why = fields.get("error_description") or fields["error"]
                back.set_exception(OAuthFlowError(f"the login was refused: {why[:500]}"))
                text = f"You are not logged in: {why[:500]}"
        body = PAGE.format(html.escape(text)).encode()
        head = ("HTTP/1.1 " + status, "Content-Type: text/html; charset=utf-8", "Connection: close")
        writer.write("\r\n".join((*head, f"Content-Length: {len(body)}", "", "")).encode() + body)
        await writer.drain()
    except (OSError, ValueError, asyncio.CancelledError):
        return  # the browser has left, or sent something else, or the login is over
    finally:
        writer.close()


def _fault(url: str, error: BaseException) -> Fault:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Fault):
        return error
    if isinstance(error, OAuthFlowError):
        return Fault("EACCES", f"{url}: {error}")
    return Fault("EHOSTDOWN", f"{url} cannot be used: {error or type(error).__name__}")
