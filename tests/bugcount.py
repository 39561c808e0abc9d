"""The count of bugs that a daemon shows in `status`, over a part of a test."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from cortexfs.daemon.status import Bugs


@contextlib.contextmanager
def counted() -> Iterator[Bugs]:
    bugs, log = Bugs(), logging.getLogger("cortexfs")
    log.addHandler(bugs)
    try:
        yield bugs
    finally:
        log.removeHandler(bugs)
