"""A server over HTTP whose machine is unplugged in the middle of a call, in a network of its own.

Run as a program, it is the server and the host that calls it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
from io import BufferedReader

import pytest

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.host.mcp import http
from cortexfs.host.mcp.keeper import Keeper
from tests.places import PROJECT
from tests.shell.host.mcp import test_mcp_streams as streams
from tests.waiting import PATIENCE

_SIOCSIFFLAGS = 0x8914


def _set_network(*, up: bool) -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", up))


class _Unplugged(streams._Handler):
    """Answers no call."""

    def do_POST(self) -> None:
        assert isinstance(self.rfile, BufferedReader)
        size = int(self.headers["Content-Length"])
        if b'"tools/call"' not in self.rfile.peek(size)[:size]:
            return super().do_POST()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.flush()
        _set_network(up=False)
        threading.Event().wait()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_call_of_an_unplugged_server_fails_soon() -> None:
    # docs/mcp.md: "after a minute"
    words = ["unshare", "--net", sys.executable, "-m", __name__]
    done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout == "EHOSTDOWN: the MCP server test cannot be reached any more\n", done.stderr


def main() -> None:
    _set_network(up=True)
    seconds = {socket.TCP_KEEPIDLE: 1, socket.TCP_USER_TIMEOUT: 1000}
    http.ALIVE = tuple((level, name, seconds.get(name, 1)) for level, name, _ in http.ALIVE)
    with streams._Hasty(("127.0.0.1", 0), _Unplugged) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        link = Keeper(McpTarget("test", url=f"http://127.0.0.1:{server.server_port}/mcp")).link()
        try:
            link.call("waits", {}, sdk.MemoryRuntime())
        except Fault as fault:
            print(f"{fault.code}: {fault.message}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
