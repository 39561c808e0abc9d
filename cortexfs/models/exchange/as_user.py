"""Requests to users' own providers, made by a host that acts as the user.

A user who chooses an address must not have root's daemon connect to it: a service on the loopback or on a
link may trust that only root reaches it. So a host connects (host/net/exchange.py), and passes the answer
back over its wire. Formats, failures and everything else are the same as for all providers.

    as_user = AsUser(pool)
    clients = as_user.clients(identity)         in place of those of the daemon (models/exchange/clients.py)
    answer = await as_user.get(identity, url, headers)

Rules: the host acts as the user outside of every run, without the caller's powers. A confined agent may use
these models as freely as everybody's, since the address comes from the provider's file. The key is in
the request, so the request is not traced.
This file must never know the content of a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import trio

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.models.exchange.clients import Clients
from cortexfs.models.exchange.endpoint import Endpoint, Lost
from cortexfs.net import web
from cortexfs.pool.pool import Pool

if TYPE_CHECKING:
    from cortexfs.models.exchange.http1 import HttpConnection, ServerAddress

MAX_PAGE = 4 << 20  # bytes of a listing
GET_SECONDS = 20.0


class AsUser:
    """The hosts that make these requests for all users, for as long as the daemon runs."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.calls: trio.Nursery | None = None  # runs their calls

    def _connection(self, identity: Identity, to: SplitResult, seconds: float) -> HttpConnection:
        """Returns a connection for one exchange with this server."""
        from cortexfs.models.exchange.host_connection import HostConnection  # a daemon may never need it

        # Without powers, and outside of every run.
        user = Identity(identity.uid, identity.gid, identity.groups)
        return HostConnection(self, user, f"{to.scheme}://{to.netloc}", seconds)

    async def get(self, identity: Identity, url: str, headers: dict[str, str]) -> web.WebAnswer:
        """Returns a page, as web.get does for commands; raises OSError."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection = self._connection(identity, parts, GET_SECONDS)
        try:
            with trio.fail_after(GET_SECONDS):
                await connection.begin("GET", target, headers | web.AGENT)
                body = await connection.body(MAX_PAGE, GET_SECONDS)
        except Lost as lost:
            raise OSError(lost.why) from None
        except trio.TooSlowError:
            raise TimeoutError(f"no whole answer within {GET_SECONDS:g} s") from None
        finally:
            connection.close()
        return web.WebAnswer(connection.status, connection.headers, body)

    def clients(self, identity: Identity) -> Clients:
        """Returns the user's connections. Raises EACCES for a caller in a container, where no host runs."""
        if identity.is_elsewhere:
            why = "your own models need a process of your own, and none can be started in a container"
            raise Fault("EACCES", f"{why}; call them from outside")

        async def connected(to: ServerAddress, endpoint: Endpoint, seconds: float) -> HttpConnection:
            return self._connection(identity, urlsplit(endpoint.base_url), seconds)

        return Clients(connected)
