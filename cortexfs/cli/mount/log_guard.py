"""Keeps the daemon's log from being filled by whoever can cause a line in it, which is anybody.

Rules: what is said first is kept whole; of what one place in the code says again and again, little
is, and the last line that is kept says so.
"""

from __future__ import annotations

import logging
from collections import Counter

MOST = 20
SECONDS = 600.0


class Sparing(logging.Filter):
    """At most MOST lines of one origin within SECONDS."""

    def __init__(self) -> None:
        super().__init__()
        self._said: Counter[tuple[str, int]] = Counter()
        self._since = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not 0 <= record.created - self._since < SECONDS:
            self._said.clear()
            self._since = record.created
        self._said[record.pathname, record.lineno] += 1
        said = self._said[record.pathname, record.lineno]
        if said == MOST:
            record.msg = f"{record.getMessage()} (more of the same is left out for some minutes)"
            record.args = ()
        return said <= MOST
