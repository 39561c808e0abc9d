"""The words of an MCP server in a call, before its answer, for who runs the tool.

Rules: in a session it is passed on as it is, as whoever reads it speaks the protocol. Elsewhere progress is
progress and a line of the server's log a note; the rest is of no use to anybody.
This file must never know connections.
"""

from __future__ import annotations

import msgspec

from cortexfs import sdk
from cortexfs.core.mcp_session import SOURCE, ServerMessage

PROGRESS, NOTE = "notifications/progress", "notifications/message"


def pass_on(runtime: sdk.ToolRuntime, server: str, message: ServerMessage, *, as_it_is: bool) -> None:
    said = message.params
    if as_it_is:
        runtime.emit_observer(SOURCE, msgspec.json.encode(message).decode())
    elif message.method == PROGRESS:
        runtime.emit_progress(_progress(said["progress"], said.get("total"), said.get("message")))
    elif message.method == NOTE:
        data = said.get("data")
        text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
        runtime.emit_observer(f"{server}: {said.get('level', 'info')}", text)


def _progress(progress: float, total: float | None, message: str | None) -> str:
    done = f"{progress:g}/{total:g}" if total else f"{progress:g}"
    return f"{message} ({done})" if message and total else message or done
