"""Text of strangers, made fit for a terminal or for one line of a file.

Messages hold file names and what tools say. A terminal obeys control characters, and bidirectional
ones show another text than is there; what was meant is still to be seen once they are escaped.
"""

from __future__ import annotations

import re

MAX_LINE = 1000

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """`text` with control characters as Python writes them, but for tab and newline."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """As one line, cut where it is longer than anybody reads."""
    return escaped(" ".join(text.split()))[:MAX_LINE]
