"""The output of a child, in whole lines.

This file must never know what they mean, nor how long one may be: whoever reads asks `held`.
"""

from __future__ import annotations

from collections.abc import Iterator


class ChildLines:
    def __init__(self) -> None:
        self._rest = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a line that is not whole."""
        return len(self._rest)

    def ended_by(self, data: bytes) -> Iterator[bytes]:
        """Those that `data` completes."""
        *ended, rest = data.split(b"\n")
        for line in ended:
            yield bytes(self._rest) + line if self._rest else line
            self._rest.clear()
        self._rest += rest
