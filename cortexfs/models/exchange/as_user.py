"""Requests to the providers of a user's own, made by a host that is this user.

Who chooses an address must not have root's daemon connect to it: to what listens on the loopback alone, or
on a link, in the belief that only root gets there. So a host connects (host/net/exchange.py), and what it
hears comes back over its wire; formats, failures and everything else are the same as for all providers.

    as_user = AsUser(pool)
    clients = as_user.clients(identity)         in place of those of the daemon (models/exchange/clients.py)
    answer = await as_user.get(identity, url, headers)

Rules: the host is the user outside of every run: a confined agent asks as freely as it asks everybody's
models, since the address is the provider's, and it has none of the caller's powers. The key is in the
request, so the request is not traced.
This file must never know what is asked.
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
from cortexfs.pool.host_queue import Turnstile
from cortexfs.pool.pool import Pool

if TYPE_CHECKING:
    from cortexfs.models.exchange.http1 import HttpConnection, ServerAddress

MAX_PAGE = 4 << 20  # of a listing
GET_SECONDS = 20.0


class AsUser:
    """The hosts of all users that make these requests, for as long as the daemon runs."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.turnstile = Turnstile(pool)
        self.calls: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self.calls:
            task_status.started()
            await trio.sleep_forever()

    def connection(self, who: Identity, to: SplitResult, seconds: float) -> HttpConnection:
        """One exchange with this server."""
        from cortexfs.models.exchange.host_connection import HostConnection  # a daemon may never need it

        user = Identity(who.uid, who.gid, who.groups)  # without powers, and outside of every run
        return HostConnection(self, user, f"{to.scheme}://{to.netloc}", seconds)

    async def get(self, who: Identity, url: str, headers: dict[str, str]) -> web.WebAnswer:
        """Returns a page, as web.get does for commands; raises OSError."""
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection = self.connection(who, parts, GET_SECONDS)
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

    def clients(self, who: Identity) -> Clients:
        """Raises EACCES where no host can be this caller."""
        if who.is_elsewhere:
            why = "your own models are asked by a process of yours, and none is made in containers for that"
            raise Fault("EACCES", f"{why}; call them from outside")
        return _UserClients(self, who)


class _UserClients(Clients):
    def __init__(self, shared: AsUser, who: Identity) -> None:
        super().__init__()
        self._shared = shared
        self._who = who

    async def _connection(self, to: ServerAddress, endpoint: Endpoint, seconds: float) -> HttpConnection:
        return self._shared.connection(self._who, urlsplit(endpoint.base_url), seconds)
