"""Asks a question that may never be answered: a system call on a mount whose daemon hangs.

Rules: only SIGKILL can end such a system call, so a forked child makes it. We can kill that child, or leave
it behind if even SIGKILL does not help. The child makes system calls, and at most sums up their results.
This process must have a single thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat
import time
from collections.abc import Callable
from typing import NoReturn

from cortexfs.linux import own_descriptors

# A status text is a page or two; a longer text is no status.
MAX_ANSWER = 1 << 20
_OK = 0


def ask(question: Callable[[], bytes], seconds: float) -> bytes:
    """Returns the answer of `question`, or raises its OSError; raises TimeoutError after `seconds`."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(question, writer)
    os.close(writer)
    data, deadline = b"", time.monotonic() + seconds
    try:
        while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not (part := os.read(reader, 65536)):
                os.waitpid(child, 0)
                break
            data += part
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, os.WNOHANG)  # waiting for an unkillable child would hang us with it
            raise TimeoutError(errno.ETIMEDOUT, "it does not answer")
    finally:
        os.close(reader)
    number = data[0] if data else errno.EPROTO
    if number != _OK:
        raise OSError(number, os.strerror(number))
    return data[1:]


def beginning(path: str, most: int, seconds: float) -> bytes:
    """Returns the beginning of a regular file. Raises OSError; EINVAL for a pipe, device or folder."""

    def content() -> bytes:
        # Opening a pipe would block, and opening a device may have effects.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return file.read(most)

    return ask(content, seconds)


def _answer(question: Callable[[], bytes], writer: int) -> NoReturn:
    """The child writes one byte of errno, then the answer. It never returns into the caller's code. It opens
    what it needs itself: a child that is left behind must keep no pipe open, as of `ctx umount | cat`."""
    with contextlib.suppress(OSError):  # /proc may be hidden
        own_descriptors.close_all_but(writer)
    try:
        data = bytes([_OK]) + question()[:MAX_ANSWER]
    except OSError as problem:
        data = bytes([(problem.errno or errno.EIO) & 0xFF])
    except BaseException:  # a bug in the question must not unwind into a second copy of us
        data = bytes([errno.EPROTO])
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(writer, data) :]
    os._exit(0)
