"""A login at the authorization server of an MCP server (OAuth 2.1), as it is kept and renewed.

Rules: a login as a whole is a secret. Tokens are renewed over https, or on this machine for a server on it.
This file must never know where a login is kept, nor how a request is made.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from cortexfs.core import networks
from cortexfs.core.errors import Fault

BASIC, POST = "client_secret_basic", "client_secret_post"
EARLY_SECONDS = 120  # a token is renewed so long before it expires, so that no call uses an expired token


class McpLogin(msgspec.Struct, frozen=True, omit_defaults=True):
    url: str  # the server's address; a token is for no other server
    client_id: str
    token_endpoint: str
    access_token: str
    refresh_token: str = ""
    client_secret: str = ""
    client_auth: str = ""  # how the client sends its secret: BASIC or POST; without one, its id is enough
    resource: str = ""
    scope: str = ""
    expires: int = 0  # seconds since the epoch; 0: unknown

    @property
    def due(self) -> float | None:
        """Returns the time to renew it, or None if it cannot be renewed, or need not be."""
        return self.expires - EARLY_SECONDS if self.expires and self.refresh_token else None

    def renewal(self) -> tuple[dict[str, str], bytes]:
        """Returns the headers and the form of a request for another token."""
        form = {
            "grant_type": "refresh_token",
            "refresh_token": self.refresh_token,
            "client_id": self.client_id,
        }
        if self.resource:
            form["resource"] = self.resource
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if self.client_secret and self.client_auth == POST:
            form["client_secret"] = self.client_secret
        elif self.client_secret:
            credentials = f"{quote(self.client_id, safe='')}:{quote(self.client_secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
        return headers, urlencode(form).encode()

    def renewed(self, answer: Mapping[str, Any], now: float) -> McpLogin:
        """Returns the login with the tokens of an answer. Raises EPROTO if the answer has no token."""
        token, after = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(token, str) or not token.isprintable() or not token:
            raise Fault("EPROTO", "the authorization server's answer has no token")
        refresh = answer.get("refresh_token")
        return msgspec.structs.replace(
            self,
            access_token=token,
            refresh_token=refresh if isinstance(refresh, str) and refresh else self.refresh_token,
            expires=int(now) + after if isinstance(after, int) and after > 0 else 0,
        )


def checked(login: McpLogin) -> McpLogin:
    """Returns the login if its tokens may be sent to its token endpoint. Raises EINVAL if not."""
    endpoint, server = urlsplit(login.token_endpoint), urlsplit(login.url)
    is_here = networks.is_loopback(endpoint.hostname or "") and networks.is_loopback(server.hostname or "")
    if not endpoint.hostname or (endpoint.scheme != "https" and not is_here):
        raise Fault("EINVAL", f"the authorization server's address {login.token_endpoint} is not https")
    return login
