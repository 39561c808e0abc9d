"""Pairs of sockets for calls of hosts: one more than is needed, made while nobody waits for it.

This file must never know what is called.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TypeAlias

from cortexfs.peers import safe_sockets

# Larger than one message, so that a host seldom waits for the daemon in mid-answer.
CALL_BUFFER = 512 << 10

Pair: TypeAlias = tuple[socket.socket, socket.socket]  # the daemon's end, and the host's


class Pairs:
    def __init__(self) -> None:
        self._spare: Pair | None = _made()

    def take(self) -> Pair:
        pair, self._spare = self._spare, None
        return pair or _made()

    def refill(self) -> None:
        """Call it when an answer has gone out. Without descriptors, the next call says so."""
        if self._spare is None:
            with suppress(OSError):
                self._spare = _made()

    def close(self) -> None:
        if self._spare is not None:
            for end in self._spare:
                end.close()
            self._spare = None


def _made() -> Pair:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    safe_sockets.refuse_rights(ours)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CALL_BUFFER)
    return ours, theirs
