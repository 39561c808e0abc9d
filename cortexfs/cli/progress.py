"""One line on a terminal about the progress of a long command, which disappears when the command is done.

Rules: the line is shown if standard error is a terminal, once the command has taken DELAY. A terminal that
can clear no line, and one without colours, gets it once, as a line that stays. It has no colour. Other output
clears it first (`apart`). A timer's signal paints it, and no thread, because commands fork children for
questions (cli/bounded.py). This file must never know what is waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

from cortexfs.core.safe_text import within

DELAY = 0.5  # seconds; a shorter wait is not worth a line
TICK = 0.2
COLUMNS = 80  # for a terminal that does not report its width
_CLEAR = "\r\x1b[K"


class _Line:
    def __init__(self, text: str) -> None:
        self.text = text
        self.is_apart = self._is_painted = False
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        self.text = text

    def paint(self, *_: object) -> None:
        if not self.is_apart:
            self._is_painted = True
            suffix = f" ({time.monotonic() - self._began:.0f} s)"
            room = (os.get_terminal_size(2).columns or COLUMNS) - len(suffix) - 1
            _put(f"\r{within(self.text)[: max(room, 0)]}{suffix}\x1b[K")

    def tell(self, *_: object) -> None:
        if not self.is_apart:
            _put(f"{within(self.text)}\n")

    def clear(self) -> None:
        if self._is_painted:
            _put(_CLEAR)
        self._is_painted = False


def stays() -> bool:
    """Returns True if no line may be painted again: a screen reader would read it aloud each time."""
    return os.environ.get("TERM") in (None, "", "dumb") or bool(os.environ.get("NO_COLOR"))


_line: _Line | None = None


@contextlib.contextmanager
def shown(text: str) -> Iterator[Callable[[str], None]]:
    """Show `text` and the time passed. Yields a function that changes the text. Uses may be nested."""
    global _line  # there is one terminal
    if _line is not None:
        outer, _line.text = _line.text, text
        try:
            yield _line.say
        finally:
            _line.text = outer
        return
    if not os.isatty(2):
        yield lambda text: None
        return
    _line = _Line(text)
    before = signal.signal(signal.SIGALRM, _line.tell if stays() else _line.paint)
    signal.setitimer(signal.ITIMER_REAL, DELAY, 0 if stays() else TICK)
    try:
        yield _line.say
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        _line.clear()
        _line = None


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Have output that is written inside the block begin on its own line."""
    if (line := _line) is None:
        yield
        return
    line.is_apart = True
    try:
        line.clear()
        yield
    finally:
        line.is_apart = False


def _put(text: str) -> None:
    """Write without the buffers of the stream, which may be in use when the signal comes."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(2, text.encode(sys.stderr.encoding, "replace"))
