"""The logins at MCP servers, which are renewed before their tokens end.

Rules: only the daemon renews tokens, as an authorization server may issue a refresh token once. Tokens are
sent to, and come from, the address that the login named. A failed renewal is tried again, and logged.
This file must never know the use of a token.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import time
from collections.abc import Awaitable, Callable

import trio

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_login import McpLogin, checked
from cortexfs.net import web
from cortexfs.plugins.mcp_servers import Servers

SECONDS = 30.0  # for one answer
MAX_ANSWER = 256 << 10
RETRY_SECONDS = 60.0

log = logging.getLogger(__name__)


class Logins:
    def __init__(self, servers: Servers, changed: Callable[[], Awaitable[object]]) -> None:
        self._servers = servers
        self._changed = changed
        self._again = trio.Event()

    def again(self) -> None:
        """Look at the files again, as they may have changed."""
        self._again.set()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while True:
            self._again = trio.Event()
            due = await trio.to_thread.run_sync(self._due)
            with trio.move_on_after(max(0.0, min(due.values(), default=math.inf) - time.time())):
                await self._again.wait()
                continue
            if any([await self._renewed(name) for name, moment in due.items() if moment <= time.time()]):
                await self._changed()
            else:
                with trio.move_on_after(RETRY_SECONDS):
                    await self._again.wait()

    def _due(self) -> dict[str, float]:
        """Returns the times at which tokens must be renewed, by server."""
        found: dict[str, float] = {}
        for name in self._servers.names():
            try:
                login = self._servers.login(self._servers.read(name))
            except Fault:
                continue  # a load of the files reports it
            if login is not None and login.due is not None:
                found[name] = login.due
        return found

    async def _renewed(self, name: str) -> bool:
        try:
            await trio.to_thread.run_sync(self._renew, name, abandon_on_cancel=True)
        except Fault as fault:
            log.warning("the login at the MCP server %s: %s; run: ctx mcp login %s", name, fault, name)
            return False
        return True

    def _renew(self, name: str) -> None:
        login = self._servers.login(self._servers.read(name))
        if login is not None:
            self._servers.keep_login(name, renewed(login))


def renewed(login: McpLogin) -> McpLogin:
    """Returns the login with another token from its authorization server."""
    headers, body = checked(login).renewal()
    request = web.WebRequest("POST", login.token_endpoint, headers, body)
    try:
        answer = web.fetch(request, web.Bounds(MAX_ANSWER, SECONDS, redirects=0), queue.SimpleQueue())
    except web.FAILURES as problem:
        raise Fault("EHOSTDOWN", f"{login.token_endpoint}: {web.why_not(problem)}") from None
    assert answer is not None  # only a second holder of the queue could end the fetch
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        value = None
    if answer.status != 200 or not isinstance(value, dict):
        why = value.get("error") if isinstance(value, dict) else None
        raise Fault("EACCES", f"{login.token_endpoint} answers HTTP {answer.status} {why or ''}".strip())
    return login.renewed(value, time.time())
