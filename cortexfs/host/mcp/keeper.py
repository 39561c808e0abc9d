"""The connection that a host keeps to an MCP server, and those of sessions.

Rules: one connection serves all calls of a host but those of sessions, which have one each
(core/mcp_session.py). One that ended is opened again at the next call, and not sooner than BACKOFF says when
it keeps ending.
This file must never know tools.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.core.mcp_session import VARIABLE, McpSession, session_of
from cortexfs.host.call.runtime import apart

if TYPE_CHECKING:
    from mcp_types import Tool

    from cortexfs.host.mcp.connection import Link

BACKOFF = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds to wait, by how often it was of no use
LOOK_SECONDS = 1.0  # after which a wait looks whether it is still wanted
MAX_SESSIONS = 32  # of one host


class Keeper:
    """The connection that a host keeps. A session of a client's has one of its own.

    Its attributes are the connection and its failures, those of sessions, and what the server said last.
    """

    def __init__(self, told: McpTarget, session: McpSession | None = None) -> None:
        self.told = told
        self.session = session
        self._sessions: dict[McpSession, Keeper] = {}
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._failures, self._why = 0, ""
        self._next = 0.0
        self._changes = threading.Condition()
        self.listed: list[Tool] = []
        self.capabilities: dict[str, Any] = {}
        self.named: dict[str, str] = {}  # the objects that its tools are
        self.version = 0

    def link(self) -> Link:
        with self._lock:
            if self._link is not None:
                self._link.settle()
            if self._link is None or not self._link.is_open:
                if self._link is not None:
                    self._link.close()  # whatever of it is left
                self._open()
            assert self._link is not None
            return self._link

    def _open(self) -> None:
        if (wait := self._next - time.monotonic()) > 0:
            why = self._why or f"the MCP server {self.told.name} has ended {self._failures} times in a row"
            raise Fault("EHOSTDOWN", f"{why}; it is started again in {wait:.0f} s at the earliest")
        # Until it has answered a call.
        self._next = time.monotonic() + BACKOFF[min(self._failures, len(BACKOFF) - 1)]
        self._failures += 1
        self._link = apart(_imported)(self.told, self.changed, self.session)
        try:
            listed = self._link.open()
            self.capabilities = self._link.agreed.capabilities.model_dump(exclude_none=True)
            self.changed(listed)
        except Fault as fault:
            self._why = fault.message
            raise
        self._why = ""

    def of(self, runtime: sdk.ToolRuntime) -> Keeper:
        """Returns that of the session in which a call is made, or this one."""
        if (session := session_of(runtime.environ.get(VARIABLE, ""))) is None:
            return self
        with self._lock:
            known = self._sessions.pop(session, None) or Keeper(self.told, session)
            self._sessions[session] = known  # the last
            over = [*self._sessions][:-MAX_SESSIONS]
            for each in over:
                self._sessions.pop(each).close()
        return known

    def renew(self, told: McpTarget) -> None:
        """Have the connections go on with the token that this one has."""
        with self._lock:
            for each in (self, *self._sessions.values()):
                each.told = told
                if each._link is not None:
                    each._link.told = told

    def leave(self, keeper: Keeper) -> None:
        """End a session."""
        if keeper.session is not None:
            with self._lock:
                self._sessions.pop(keeper.session, None)
            keeper.close()

    def worked(self) -> None:
        """A call has been answered: that was a connection."""
        self._failures, self._next = 0, 0.0

    def changed(self, listed: list[Tool]) -> None:
        with self._changes:
            if self.version == 0 or listed != self.listed:
                self.listed = listed
                self.version += 1
            self._changes.notify_all()

    def await_change(self, runtime: sdk.ToolRuntime) -> None:
        """Return when there is another list than now, or the connection or the caller has gone. One that had
        gone before is opened again: the server may have been replaced."""
        seen, link = self.version, self.link()
        with self._changes:
            while self.version == seen and not runtime.cancelled and link.is_open:
                self._changes.wait(LOOK_SECONDS)

    def close(self) -> None:
        for each in [*self._sessions.values()]:
            each.close()
        link = self._link  # without the lock, which who opens it may hold for long
        if link is not None:
            link.close()
            link.join()


def _imported() -> type[Link]:
    """Of a host that host/warm.py forked it is there. Elsewhere it costs 0.4 s."""
    from cortexfs.host.mcp.connection import Link

    return Link


def told_of(plugin: hostcalls.Plugin) -> McpTarget:
    try:
        return msgspec.json.decode(plugin.target, type=McpTarget)
    except msgspec.MsgspecError as error:
        raise Fault("EPROTO", f"the daemon did not say what {plugin.name} is: {error}") from None
