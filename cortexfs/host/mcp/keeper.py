"""The connection that a host keeps to an MCP server, and those of sessions.

Rules: one connection serves all calls of a host with one umask, which a program's files get, and with one set
of questions that policy allows. A session has a connection of its own (core/mcp_session.py). The next call
opens an ended connection again, but not before BACKOFF has passed if it keeps ending. A connection that could
not be opened is tried at once, as its fault may be mended by now.
This file must never know tools.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.core.mcp_session import ELICITATION, QUESTIONS, VARIABLE, McpSession, session_of
from cortexfs.host.call import plugin_state
from cortexfs.host.call.runtime import Runtime, apart, own_umask

if TYPE_CHECKING:
    from mcp_types import Tool

    from cortexfs.host.mcp.connection import Link

_As = tuple[int, frozenset[str]]
BACKOFF = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # seconds to wait, by useless connections in a row
LOOK_SECONDS = 1.0  # after which a waiter checks that its caller is still there
MAX_BESIDE = 32  # of one host


class Keeper:
    """The connection that a host keeps. A client's session, or another umask, has one of its own.

    Its attributes are the connection and its failures, those beside it, and the server's last list of tools.
    """

    def __init__(
        self,
        target: McpTarget,
        session: McpSession | None = None,
        umask: int = 0o022,
        can: frozenset[str] = frozenset(),
    ) -> None:
        self.target = target
        self.session = session
        self._as = umask, can  # the umask of the process, and the questions that policy allows
        self._beside: dict[McpSession | _As, Keeper] = {}
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._failures = 0
        self._next = 0.0
        self._changes = threading.Condition()
        self.listed: list[Tool] = []
        self.names: dict[str, str] = {}  # the objects that its tools are
        self.version = self.served = 0  # of the list, and of the list of which tools were made

    def link(self, tell: Callable[[str], object] = str) -> Link:
        """Returns the connection, once it has greeted. `tell` gets the output of a starting server."""
        link = self._open_link()
        link.greeted(tell)
        return link

    def _open_link(self) -> Link:
        """Returns the open connection, which may not have greeted yet, or a new one."""
        with self._lock:
            if self._link is not None:
                self._link.settle()
            if self._link is None or not self._link.is_open:
                if self._link is not None:
                    self._link.close()  # what is left of it
                    if not self._link.has_greeted:
                        self._failures, self._next = max(self._failures - 1, 0), 0.0
                self._await_turn()
                self._link = apart(_link_class)(self.target, self.changed, self.session, *self._as)
                self._link.begin()
            return self._link

    def _await_turn(self) -> None:
        if self._link is not None and (wait := self._next - time.monotonic()) > 0:
            why = f"{self._link.loss().message}; it has ended {self._failures} times in a row"
            raise Fault("EHOSTDOWN", f"{why}, and is started again in {wait:.0f} s at the earliest")
        # Until it has answered a call.
        self._next = time.monotonic() + BACKOFF[min(self._failures, len(BACKOFF) - 1)]
        self._failures += 1

    def of(self, runtime: sdk.ToolRuntime) -> Keeper:
        """Returns the keeper of the call's session, or else of its umask and allowed questions. Raises EAGAIN
        if there are too many and all are in use."""
        umask = own_umask() if self.target.command else self._as[0]
        as_ = (umask, askable(runtime))
        if (session := session_of(runtime.environ.get(VARIABLE, ""))) is None and as_ == self._as:
            return self
        key = as_ if session is None else session
        with self._lock:
            known = self._beside.pop(key, None) or Keeper(self.target, session, *as_)
            if len(self._beside) >= MAX_BESIDE:
                idle = next((each for each, keeper in self._beside.items() if not keeper.is_used), None)
                if idle is None:
                    why = f"{MAX_BESIDE} sessions with the MCP server {self.target.name} are open already"
                    raise Fault("EAGAIN", f"{why}; end one of them, or try again")
                self._beside.pop(idle).close()
            self._beside[key] = known  # the last: it was used last
        return known

    @property
    def is_used(self) -> bool:
        """Returns True while a call runs, a session's client listens, or the connection starts."""
        link = self._link
        return link is not None and link.is_open and (link.is_heard() or not link.has_greeted)

    def renew(self, target: McpTarget) -> None:
        """Have the connections go on with the token in `target`."""
        with self._lock:
            for each in (self, *self._beside.values()):
                each.target = target
                if each._link is not None:
                    each._link.target = target

    def leave(self, keeper: Keeper) -> None:
        """End a session."""
        if keeper.session is not None:
            with self._lock:
                self._beside.pop(keeper.session, None)
            keeper.close()

    def worked(self) -> None:
        """A call has been answered, so the connection was of use."""
        self._failures, self._next = 0, 0.0

    def changed(self, listed: list[Tool]) -> None:
        with self._changes:
            if self.version == 0 or listed != self.listed:
                self.listed = listed
                self.version += 1
            self._changes.notify_all()

    def await_change(self, runtime: sdk.ToolRuntime) -> None:
        """Return when the list has changed, or the connection or the caller has gone. A connection that had
        gone before is opened again: the server may have been replaced."""
        version, link = self.version, self.link()
        with self._changes:
            while self.version == version and not runtime.cancelled and link.is_open:
                self._changes.wait(LOOK_SECONDS)

    def close(self) -> None:
        for each in [*self._beside.values()]:
            each.close()
        link = self._link  # without the lock, which an opening call may hold for long
        if link is not None:
            link.close()
            link.join()


def askable(runtime: sdk.ToolRuntime) -> frozenset[str]:
    """Returns the questions that policy allows in this call, by keys of QUESTIONS; forms are always
    allowed."""
    methods = runtime.answers if isinstance(runtime, Runtime) else ()
    return frozenset(key for key, method in QUESTIONS.items() if method in methods and method != ELICITATION)


def _link_class() -> type[Link]:
    """Imports `Link`. Hosts forked by host/warm.py have it; others need 0.4 s for it."""
    from cortexfs.host.mcp.connection import Link

    return Link


def target_of(plugin: hostcalls.Plugin) -> McpTarget:
    target = targets.declared(plugin, McpTarget)
    return replace(target, home=str(plugin_state.place(plugin) or ""))
