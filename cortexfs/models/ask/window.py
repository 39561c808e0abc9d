"""The part of a session's history that is sent to a model.

Room is counted in bytes of the log, as only the provider can count tokens. Most texts have more than BYTES
bytes to a token. A history is cut at a message that stays the first for many turns. So the beginning of
each request stays the same, and the provider finds it in its prompt cache.

This file must never know where a history comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cortexfs.core.frames import Message

BYTES = 3  # of the log to a token: English has four, and a Chinese character three
UNKNOWN = 32_768  # tokens: the limit of a model whose limit is unknown
OUTPUT = 4096  # tokens that are left for an answer without a limit of its own
MOST = 8 << 20  # bytes that are read and sent for one turn at most, even if the limit is higher


class PromptWindow:
    def __init__(self, limit: int | None, output: int | None) -> None:
        self._limit = limit or UNKNOWN
        self._output = min(output or OUTPUT, self._limit // 2)
        self._halved = 0
        self.shrunk = 0

    def room(self, used: int) -> int:
        """Returns the bytes of history that fit beside an input of `used` bytes."""
        room = (self._limit - self._output) * BYTES - used
        return max(0, min(MOST, room >> self._halved))

    def shrink(self, limit: int | None) -> None:
        """Reduce the window after an overflow: to the provider's `limit` if that is less, or else to half."""
        self.shrunk += 1
        if limit and limit < self._limit:
            self._limit, self._output = limit, min(self._output, limit // 2)
        else:
            self._halved += 1

    def stable(self, history: list[Message]) -> list[Message]:
        """Returns the part of a history to send. A history without its beginning is cut again in its older
        half, at the user's message whose id has the most zero bits at its end. While the half moves on, this
        is the same message for many turns."""
        first = next((n for n, each in enumerate(history) if each.role == "user"), None)
        if first is None:
            return []
        if is_whole(history):
            return history[first:]
        candidates = [n for n in _older_half(history) if history[n].role == "user"] or [first]
        return history[max(candidates, key=lambda n: (_zeros(history[n].id), -n)) :]


def is_whole(history: Sequence[Message]) -> bool:
    """Returns True if no message came before: a session's first message is its second event."""
    return (history[0].id or "").isdecimal() and int(history[0].id or "0") <= 2


def _older_half(history: Sequence[Message]) -> range:
    sizes = [len(msgspec.json.encode(each.content)) for each in history]
    half, total = sum(sizes) // 2, 0
    for number, size in enumerate(sizes):
        total += size
        if total > half:
            return range(number + 1)
    return range(len(sizes))


def _zeros(id_: str | None) -> int:
    number = int(id_) if id_ and id_.isdecimal() else 0
    return (number & -number).bit_length() if number else 0
