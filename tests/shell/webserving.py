"""A web server of a test, in a thread."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator
from typing import TypeVar

_Server = TypeVar("_Server", bound=socketserver.BaseServer)


@contextlib.contextmanager
def served(server: _Server) -> Iterator[_Server]:
    """Serve until the end of the block; the server is gone then."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
