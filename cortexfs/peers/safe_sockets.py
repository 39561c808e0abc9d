"""Sockets with an untrusted peer, read and closed so that nothing it sends can block this process.

A peer may send descriptors over a Unix socket, and closing a descriptor can wait for its sender. A TCP socket
with SO_LINGER waits as long as the sender likes. A file of the sender's own FUSE file system waits at every
close(2), out of reach of a signal. No peer has reason to send any here. Since Linux 6.16 SO_PASSRIGHTS
refuses them. Before that, a message is looked at before it is taken, which closes nothing. A socket with
descriptors in it is closed by a thread that ends, as the kernel lets no ending task linger.
Rules: a descriptor from a peer is never installed here, so that it never has to be closed.
This file must never know the protocol of a socket.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable

from cortexfs.linux import syscalls

# Not in Python 3.11's socket module.
SO_PASSRIGHTS = 83
_LOOK = 64 << 10


def refuse_rights(sock: socket.socket) -> bool:
    """Refuse descriptors sent to `sock`, or to the sockets it accepts. Returns False if the kernel cannot."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


def _refusable() -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return refuse_rights(sock)


REFUSED = _refusable()  # whether the kernel refuses descriptors


def _receive_looking(sock: socket.socket, size: int) -> bytes:
    # Else recv(2) skips a byte that was sent out of band, and lets go of its descriptors without a look.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    data, _, flags, _ = sock.recvmsg(size, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    if flags & socket.MSG_CTRUNC:
        raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
    return sock.recv(len(data)) if data else b""


# Like recv(2) without waiting. Raises ConnectionAbortedError when descriptors come along.
receive: Callable[[socket.socket, int], bytes] = socket.socket.recv if REFUSED else _receive_looking


class closing:
    """Like contextlib's, whose generator costs more than a close."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __enter__(self) -> socket.socket:
        return self._sock

    def __exit__(self, *_: object) -> None:
        close(self._sock)


def close(sock: socket.socket) -> None:
    """Close it without waiting, whatever it holds. Closing it twice does no harm."""
    if REFUSED or sock.fileno() < 0 or _is_clean(sock):
        sock.close()
    else:
        _bury(sock)


def _is_clean(sock: socket.socket) -> bool:
    """Returns True if it holds no descriptors, and none can come any more."""
    try:
        sock.shutdown(socket.SHUT_RD)
        while receive(sock, _LOOK):
            pass
    except BlockingIOError:
        return True
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNRESET)
    return True


def _bury(sock: socket.socket) -> None:
    """Close it in a thread, which has the last reference in its own table of descriptors, and ends."""
    shared, closed = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.suppress(OSError):
            syscalls.unshare(syscalls.CLONE_FILES)
        shared.set()
        closed.wait()

    threading.Thread(target=hold, daemon=True).start()
    shared.wait()
    sock.close()
    closed.set()
