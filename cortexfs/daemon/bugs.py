"""How many bugs there were: each guard logs the one that it meets with its traceback, and nothing else is.

This file must never know the guards.
"""

from __future__ import annotations

import logging


class Bugs(logging.Handler):
    """A listener to our log, for `status`."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.met = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.met += bool(record.exc_info)
