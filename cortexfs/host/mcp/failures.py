"""The failures of a connection to an MCP server, each as a Fault that names the server.

This file must never know what a connection is made of.
"""

from __future__ import annotations

from typing import NamedTuple

import httpx2
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND
from pydantic import ValidationError

from cortexfs.core.errors import Fault
from cortexfs.core.mcp_session import ServerError, of_output
from cortexfs.core.safe_text import misfits, one_line
from cortexfs.host.mcp.answers import ServerSays
from cortexfs.host.mcp.limits import Judge, McpViolation
from cortexfs.host.mcp.starting import as_whom

_ANSWERS = (INVALID_PARAMS, METHOD_NOT_FOUND)


class LinkFailure(NamedTuple):
    fault: Fault
    is_over: bool = False  # the connection is of no more use


def failure(error: BaseException, server: str, judge: Judge, *, is_program: bool) -> LinkFailure:
    if isinstance(error, BaseExceptionGroup):
        return failure(error.exceptions[0], server, judge, is_program=is_program)
    if isinstance(error, McpViolation):
        return LinkFailure(fault_of(server, "EPROTO", str(error)))
    if isinstance(error, Fault):
        return LinkFailure(fault_of(f"{server}:", error.code, error.message))
    if judge.refused:
        return LinkFailure(fault_of(server, "EACCES", judge.refusal_of_credentials(server)), True)
    if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
        code = "EINVAL" if error.code == INVALID_PARAMS else "EIO"
        details = ServerError(error.code, error.message, error.data)
        # Only such an error shows that a session over HTTP has ended; the next call begins another.
        ended = not is_program and error.code not in _ANSWERS
        return LinkFailure(ServerSays(code, f"the MCP server {server} says: {error}", details), ended)
    if isinstance(error, httpx2.HTTPError | OSError):
        why = f"cannot be reached: {error or type(error).__name__}"
        return LinkFailure(fault_of(server, "EHOSTDOWN", why), True)
    if isinstance(error, ValidationError):  # also of a server that ended right after its answer
        return LinkFailure(
            fault_of(server, "EPROTO", f"does not speak the protocol: {misfits(error.errors())}")
        )
    if isinstance(error, RuntimeError) and (why := of_output(error)):
        return LinkFailure(fault_of(server, "EPROTO", why))
    if judge.why or isinstance(error, MCPError):
        return LinkFailure(lost(server, judge, is_program=is_program), True)
    why = f"does not speak the protocol: {type(error).__name__}: {one_line(str(error))}"
    return LinkFailure(fault_of(server, "EPROTO", why))


def is_refusal(error: BaseException) -> bool:
    """Returns True if a server has answered with an error of its own."""
    if isinstance(error, BaseExceptionGroup):
        return is_refusal(error.exceptions[0])
    return isinstance(error, MCPError) and error.code != CONNECTION_CLOSED


def lost(server: str, judge: Judge, *, is_program: bool) -> Fault:
    if not is_program and not judge.why:
        return fault_of(server, "EHOSTDOWN", "cannot be reached any more")
    if judge.has_exited and not judge.has_greeted:
        return fault_of(server, "EHOSTDOWN", f"does not start{as_whom()}: it {judge.why}")
    return fault_of(server, "EPROTO", judge.why or "ended the connection")


def fault_of(server: str, code: str, predicate: str) -> Fault:
    return Fault(code, f"the MCP server {server} {predicate}")
