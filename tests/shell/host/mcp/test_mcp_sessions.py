"""The sessions of a host with one server side by side: their number, and the choice of which to close."""

from __future__ import annotations

import secrets
from types import SimpleNamespace
from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.core.mcp_session import VARIABLE, McpSession
from cortexfs.host.mcp import keeper as keepers
from cortexfs.host.mcp.keeper import Keeper


class Busy:
    has_greeted = is_open = True

    def __init__(self) -> None:
        self.is_used = True

    def is_heard(self) -> bool:
        return self.is_used

    def close(self) -> None:
        self.is_open = False

    def join(self) -> None:
        """Return at once, as there is no thread."""


def test_no_client_ends_the_session_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepers, "MAX_BESIDE", 2)
    keeper = Keeper(McpTarget("test", url="http://127.0.0.1:9/"))

    def of(session: McpSession) -> Any:
        runtime: Any = SimpleNamespace(environ={VARIABLE: str(session)})
        return keeper.of(runtime)

    sessions = [McpSession(secrets.token_hex(16), frozenset()) for _ in range(3)]
    links = [Busy(), Busy()]
    for session, link in zip(sessions, links, strict=False):
        of(session)._link = link
    with pytest.raises(Fault, match="2 sessions with the MCP server test are open already"):
        of(sessions[2])
    assert [link.is_open for link in links] == [True, True]
    assert of(sessions[0])._link is links[0]  # the session goes on
    links[0].is_used = False
    assert of(sessions[2])._link is None
    assert [link.is_open for link in links] == [False, True]
