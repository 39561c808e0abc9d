"""Connects to a socket as its own user, and copies data between it and standard input, another socket.

    python3 relay.py PATH

This process is the caller for as long as it runs. It imports only the standard library.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    with socket.socket(fileno=0) as ours, socket.socket(socket.AF_UNIX) as theirs:
        theirs.connect(sys.argv[1])
        asking = threading.Thread(target=copy, args=(ours, theirs), daemon=True)
        asking.start()
        copy(theirs, ours)
