"""Sockets with a stranger at the other end, read and closed so that nothing he sends holds us up.

Whoever writes to a Unix socket may send descriptors along, and letting go of one can wait for its sender: a
TCP socket with SO_LINGER for as long as he likes, a file of his own FUSE file system at every close(2), out
of reach of a signal. Nobody has reason to send us any. Since Linux 6.16 SO_PASSRIGHTS refuses them. Before, a
message is looked at before it is taken, which is no letting go. A socket with descriptors in it is closed by
a thread that ends, as the kernel lets no ending task linger.

Rules: a descriptor of a stranger is never installed here, so that it never has to be closed.
This file must never know what is said over a socket.
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
    """Let nobody send descriptors to `sock`, or to what it accepts; False where the kernel cannot."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError:
        return False
    return True


def _refusable() -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return refuse_rights(sock)


REFUSED = _refusable()  # whether nobody can send any here


def _receive_looking(sock: socket.socket, size: int) -> bytes:
    seen, _, flags, _ = sock.recvmsg(size, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    if flags & socket.MSG_CTRUNC:
        raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
    return sock.recv(len(seen)) if seen else b""


# As recv(2) without waiting; ConnectionAbortedError when descriptors come along.
receive: Callable[[socket.socket, int], bytes] = socket.socket.recv if REFUSED else _receive_looking


class closing:
    """As contextlib's; its generator's frame costs more than a close."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def __enter__(self) -> socket.socket:
        return self._sock

    def __exit__(self, *_: object) -> None:
        close(self._sock)


def close(sock: socket.socket) -> None:
    """Close it, without waiting whatever is in it. Once is enough, twice does no harm."""
    if REFUSED or sock.fileno() < 0 or _is_clean(sock):
        sock.close()
    else:
        _bury(sock)


def _is_clean(sock: socket.socket) -> bool:
    """Returns True if no descriptors are in it, and none can come any more."""
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
    """Let a thread of its own have the last reference, in a table of descriptors that ends with it."""
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
