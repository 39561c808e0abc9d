"""The waiting calls of a program that is an MCP server, and the lines that are for them.

This file must never know how lines come and go.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

import msgspec
from mcp_types import ErrorData

from cortexfs.core.mcp_session import ServerMessage
from cortexfs.host.process.pipe_reader import LeadingCall


class AnswerLine(msgspec.Struct):
    """The usual line. The SDK reads all others, and reports what is wrong with them."""

    id: int
    result: dict[str, Any]
    jsonrpc: Literal["2.0"]


class ProgressSaid(msgspec.Struct, omit_defaults=True):
    """The parameters of a notification."""

    progressToken: int
    progress: float
    total: float | None = None
    message: str | None = None


decoded = msgspec.json.Decoder(AnswerLine).decode


WaitingCall: TypeAlias = LeadingCall[dict[str, Any] | ErrorData | ServerMessage]


def encoded(message: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(message)
    except (UnicodeEncodeError, OverflowError):  # half a surrogate pair; a number of over 64 bits
        return json.dumps(message).encode()
