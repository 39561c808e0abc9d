"""The package that computes signatures and ciphers, which only some users need.

This file must never know what is signed or sealed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cortexfs.core.errors import Fault


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Around its imports: EHOSTDOWN, with what to do, where it is not installed."""
    try:
        yield
    except ImportError:
        mend = "install it with: pip install 'cortexfs[plugins]'"
        raise Fault("EHOSTDOWN", f"{what} need the package cryptography; {mend}") from None
