"""The connection that a host keeps to an MCP server, and those of sessions.

Rules: one connection serves all calls of a host with one umask, as files of a program's are made with that,
and of one policy about what the server may ask; sessions have one each (core/mcp_session.py). One that ended
is opened again at the next call, and not sooner than BACKOFF says when it keeps ending. One that could not be
opened may be mended by now, and is tried.
This file must never know tools.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.core.mcp_session import ELICITATION, QUESTIONS, VARIABLE, McpSession, session_of
from cortexfs.host.call import plugin_state
from cortexfs.host.call.runtime import Runtime, apart, own_umask

if TYPE_CHECKING:
    from mcp_types import Tool

    from cortexfs.host.mcp.connection import Link

_As = tuple[int, frozenset[str]]
BACKOFF = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds to wait, by how often it was of no use
LOOK_SECONDS = 1.0  # after which a wait looks whether it is still wanted
MAX_BESIDE = 32  # of one host


class Keeper:
    """The connection that a host keeps. A session of a client's, and another umask, have one of their own.

    Its attributes are the connection and its failures, those beside it, and what the server said last.
    """

    def __init__(
        self,
        told: McpTarget,
        session: McpSession | None = None,
        umask: int = 0o022,
        can: frozenset[str] = frozenset(),
    ) -> None:
        self.told = told
        self.session = session
        self._as = umask, can  # of the process, and what this server may ask
        self._beside: dict[McpSession | _As, Keeper] = {}
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._failures = 0
        self._next = 0.0
        self._changes = threading.Condition()
        self.listed: list[Tool] = []
        self.named: dict[str, str] = {}  # the objects that its tools are
        self.version = self.served = 0  # of the list, and of that of which tools were made

    def link(self, tell: Callable[[str], object] = str) -> Link:
        """The connection, which has greeted. `tell` is told what a server prints that starts."""
        link = self._begun()
        link.greeted(tell)
        return link

    @property
    def capabilities(self) -> dict[str, Any]:
        return self._link.capabilities if self._link else {}

    def _begun(self) -> Link:
        """The connection there is, which may not have greeted yet, or a new one."""
        with self._lock:
            if self._link is not None:
                self._link.settle()
            if self._link is None or not self._link.is_open:
                if self._link is not None:
                    self._link.close()  # whatever of it is left
                    if not self._link.has_greeted:
                        self._failures, self._next = max(self._failures - 1, 0), 0.0
                self._await_turn()
                self._link = apart(_imported)(self.told, self.changed, self.session, *self._as)
                self._link.begin()
            return self._link

    def _await_turn(self) -> None:
        if (wait := self._next - time.monotonic()) > 0:
            why = f"the MCP server {self.told.name} has ended {self._failures} times in a row"
            raise Fault("EHOSTDOWN", f"{why}; it is started again in {wait:.0f} s at the earliest")
        # Until it has answered a call.
        self._next = time.monotonic() + BACKOFF[min(self._failures, len(BACKOFF) - 1)]
        self._failures += 1

    def of(self, runtime: sdk.ToolRuntime) -> Keeper:
        """Returns that of the session in which a call is made, else that of its umask and of what its
        server may ask; EAGAIN where all that there may be are at work."""
        umask = own_umask() if self.told.command else self._as[0]
        as_ = (umask, askable(runtime))
        if (session := session_of(runtime.environ.get(VARIABLE, ""))) is None and as_ == self._as:
            return self
        key = as_ if session is None else session
        with self._lock:
            known = self._beside.pop(key, None) or Keeper(self.told, session, *as_)
            if len(self._beside) >= MAX_BESIDE:
                idle = next((each for each, one in self._beside.items() if not one.is_used), None)
                if idle is None:
                    why = f"{MAX_BESIDE} sessions with the MCP server {self.told.name} go on already"
                    raise Fault("EAGAIN", f"{why}; end one of them, or try again")
                self._beside.pop(idle).close()
            self._beside[key] = known  # the last
        return known

    @property
    def is_used(self) -> bool:
        """Returns True while a call goes on, or a client is there that began its session."""
        link = self._link
        return link is not None and link.is_open and (link.is_heard() or not link.has_greeted)

    def renew(self, told: McpTarget) -> None:
        """Have the connections go on with the token that this one has."""
        with self._lock:
            for each in (self, *self._beside.values()):
                each.told = told
                if each._link is not None:
                    each._link.told = told

    def leave(self, keeper: Keeper) -> None:
        """End a session."""
        if keeper.session is not None:
            with self._lock:
                self._beside.pop(keeper.session, None)
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
        for each in [*self._beside.values()]:
            each.close()
        link = self._link  # without the lock, which who opens it may hold for long
        if link is not None:
            link.close()
            link.join()


def askable(runtime: sdk.ToolRuntime) -> frozenset[str]:
    """Returns what policy lets the server ask in this call, by the keys of QUESTIONS; forms it always may."""
    taken = runtime.answers if isinstance(runtime, Runtime) else ()
    return frozenset(key for key, method in QUESTIONS.items() if method in taken and method != ELICITATION)


def _imported() -> type[Link]:
    """Of a host that host/warm.py forked it is there. Elsewhere it costs 0.4 s."""
    from cortexfs.host.mcp.connection import Link

    return Link


def told_of(plugin: hostcalls.Plugin) -> McpTarget:
    try:
        told = msgspec.json.decode(plugin.target, type=McpTarget)
        return msgspec.structs.replace(told, home=str(plugin_state.place(plugin) or ""))
    except UNREADABLE as error:
        raise Fault("EPROTO", f"the daemon did not say what {plugin.name} is: {error}") from None
