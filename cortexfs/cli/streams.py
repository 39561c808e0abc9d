"""The standard streams of a command: always there, and fit for any text.

Rules: a descriptor that the caller closed becomes /dev/null, so that nothing which is opened later takes
its number and is written into. What the locale cannot show is replaced, and is no failure.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

STREAMS = {"stdin": (0, "r"), "stdout": (1, "w"), "stderr": (2, "w")}


def prepare() -> None:
    for name, (number, mode) in STREAMS.items():
        if getattr(sys, name) is None:  # so Python tells that it was closed
            setattr(sys, name, _nowhere(number, mode))
    if isinstance(sys.stdout, io.TextIOWrapper):  # stderr does so by itself
        sys.stdout.reconfigure(errors="replace")


def _nowhere(number: int, mode: str) -> TextIO:
    opened = os.open(os.devnull, os.O_RDWR)
    if opened != number:
        os.dup2(opened, number)
        os.close(opened)
    os.set_inheritable(number, True)
    return io.TextIOWrapper(open(number, f"{mode}b"), encoding="utf-8")


def takes_all() -> bool:
    """Returns True if standard output can show every character."""
    return sys.stdout.encoding.lower() in ("utf-8", "utf8")
