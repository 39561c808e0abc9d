"""The waiting calls of a program that is an MCP server, and the lines that are for them.

This file must never know how lines come and go.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec
from mcp_types import ErrorData

from cortexfs import sdk
from cortexfs.core.mcp_session import ServerMessage


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


_Item: TypeAlias = dict[str, Any] | ErrorData | ServerMessage | sdk.ExecutionFailed
decoded = msgspec.json.Decoder(AnswerLine).decode


class WaitingCall:
    """A call that waits for its answer."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        self.id = 0
        self.items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._nudge = nudge

    def waits(self) -> bool:
        return self.items.empty()

    def tell(self, item: _Item) -> None:
        """Called by a thread that does not read for this call."""
        self.items.put(item)
        self._nudge()

    def cancel(self) -> None:
        self.tell(sdk.ExecutionFailed("cancelled", "ECANCELED"))


def encoded(message: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(message)
    except (UnicodeEncodeError, OverflowError):  # half a surrogate pair; a number of over 64 bits
        return json.dumps(message).encode()
