"""An untrusted MCP server that a command uses directly."""

from __future__ import annotations

import shlex
import sys

import pytest

from cortexfs.core.errors import Fault
from cortexfs.mcp import client
from tests.places import PROJECT

PROGRAM = (sys.executable, "-I", str(PROJECT / "tests" / "mounted" / "mcp_server.py"))


def fault(place: client.McpPlace) -> Fault:
    with pytest.raises(Fault) as caught:
        client.used(place, lambda one: one.list_tools(), lambda *_: None, print)
    return caught.value


def test_what_a_server_answers_wrong_is_a_sentence() -> None:
    # abi.md 8.51
    why = "does not speak the protocol: tools.0.inputSchema.type: Input should be 'object'"
    command = (*PROGRAM, "misfit")
    said = fault(client.McpPlace(command))
    assert (said.code, said.message) == ("EPROTO", f"the MCP server {shlex.join(command)} {why}")
    assert fault(client.McpPlace(command, added="odd")).message == f"the MCP server odd {why}"
    assert str(client.of_mount("odd")) == "odd"
