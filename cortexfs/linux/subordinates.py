"""Subordinate uids: a user can be each of a whole range of uids in a user namespace (subuid(5)).

    person_of(200005)    -> 200000, with a line `somebody:200000:65536` of the table

Rules: a limit for each user counts these uids as one user, or one user would have 65,536 shares. The owner of
a file is still the uid itself. Root's ranges do not count, as root can be every user.
This file must never know what is limited.
"""

from __future__ import annotations

import functools
import re
from contextlib import suppress
from pathlib import Path

TABLE = "/etc/subuid"
_RANGE = re.compile(r"^(?!root:|0:)[^:\n]*:(\d{1,10}):(\d{1,10})$", re.MULTILINE)


@functools.lru_cache(maxsize=4096)
def person_of(uid: int) -> int:
    """Returns the uid for which limits count: the first of the range that has `uid`, or else `uid`."""
    text = ""
    with suppress(OSError):
        text = Path(TABLE).read_text(errors="replace")
    ranges = [(int(first), int(count)) for first, count in _RANGE.findall(text)]
    return next((first for first, count in ranges if first <= uid < first + count), uid)
