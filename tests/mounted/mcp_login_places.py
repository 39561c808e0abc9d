"""The place of an MCP server that wants a login."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until

PROGRAM = Path(__file__).with_name("mcp_login_server.py")


@contextlib.contextmanager
def logins(work: Path) -> Iterator[str]:
    """Serve mcp_login_server.py, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, "-I", str(PROGRAM), str(port)], cwd=work) as process:
        try:
            until(lambda: _answers(port))
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
