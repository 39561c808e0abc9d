"""The name of an MCP client's session, and the callers that may not have one."""

from __future__ import annotations

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import HANDSHAKE, VARIABLE, McpSession, refuse_agents, session_of
from tests.tables import each_of

TOKEN = "a" * 16
SET = {VARIABLE.encode(): b"x"}


@each_of("can", [(), ("roots",), ("elicitation", "roots", HANDSHAKE)])
def test_a_session_is_read_as_it_is_spelt(can: tuple[str, ...]) -> None:
    session = McpSession(TOKEN, frozenset(can))
    assert session_of(str(session)) == session


def test_nothing_names_no_session() -> None:
    assert session_of("") is None


def test_what_a_client_of_a_later_version_can_do_is_ignored() -> None:
    assert session_of(f"{TOKEN}:dancing,roots") == McpSession(TOKEN, frozenset({"roots"}))


@each_of("spelt", ["x", TOKEN, f"{TOKEN[1:]}:", f"{'a' * 65}:", f"{TOKEN}:roots,", f"{TOKEN}:ROOTS"])
def test_another_word_is_refused(spelt: str) -> None:
    with pytest.raises(
        Fault, match=f"EINVAL: {VARIABLE} has a value that ctx mcp serve never sets; unset it"
    ):
        session_of(spelt)


def test_a_caller_with_a_label_has_no_session() -> None:
    with pytest.raises(Fault, match=f"EACCES: .*; unset {VARIABLE}"):
        refuse_agents("coder_t", SET)
    refuse_agents("coder_t", {b"PATH": b"/bin"})
    refuse_agents("", SET)
