"""The standard error of processes. It goes into the log, and its last part into the error about their end.

Rules: all of it is read, or the processes would block. Each process has a pipe of its own, as a shared one
could be closed for all. A pipe is closed with its process, even if another still holds the other end.
This file must never know what a host is.
"""

from __future__ import annotations

import logging
import os
import select

import trio

from cortexfs.core.safe_text import KEPT_LAST, PAST, last_words, one_line

MAX_OUTPUT = 1 << 10  # bytes of output read at once, for one line of the log
_READ = 64 << 10
_PAST = PAST.encode()

log = logging.getLogger("cortexfs")


class Printed:
    """The pipes of all processes that print."""

    def __init__(self) -> None:
        self._ready = select.epoll()
        self._words: dict[int, bytes] = {}

    def add(self, pipe: int) -> None:
        """Take over this end of a pipe, until `end`."""
        self._ready.register(pipe, select.EPOLLIN)
        self._words[pipe] = b""

    def end(self, pipe: int) -> str:
        """Returns the words to add to the message that the process has ended. May be repeated."""
        if pipe not in self._words:
            return ""
        self._hear()
        os.close(pipe)
        return last_words(self._words.pop(pipe).rpartition(_PAST)[2])

    def close(self) -> None:
        """Call it when all processes have ended. May be repeated."""
        self._ready.close()

    async def run(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._ready)
            self._hear()

    def _hear(self) -> None:
        for pipe, _ in self._ready.poll(0):
            if not (data := os.read(pipe, _READ)):
                self._ready.unregister(pipe)
                continue
            self._words[pipe] = (self._words[pipe] + data)[-KEPT_LAST:]
            printed = data.replace(_PAST, b"")[-MAX_OUTPUT:]
            log.info("host output: %s", one_line(printed.decode(errors="replace")), extra={"origin": pipe})
