"""The extra `team`: the error for users who have not installed it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cortexfs.core.errors import Fault


@contextmanager
def needed() -> Iterator[None]:
    """Turns a missing package into a Fault."""
    try:
        yield
    except ImportError:
        why = "a team needs packages that are not installed here; install them: pip install 'cortexfs[team]'"
        raise Fault("EHOSTDOWN", why) from None
