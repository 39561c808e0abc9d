"""The tools of an agent: names, and patterns for all names that fit them now.

Rules: a pattern is expanded when it is written, so that no agent gets a later tool unasked. A pattern that
fits no tool is a mistake. A name of no tool is not a mistake, as its plugin may be disabled.
This file must never know who writes, or which tools policy allows an agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from cortexfs.core import value_formats
from cortexfs.core.errors import Fault

MAX_PATTERNS = 64  # limited, as each pattern is compared with every tool

_MAGIC = re.compile(r"[*?\[\]!]")


def is_pattern(word: str) -> bool:
    return bool(_MAGIC.search(word))


def fitting(pattern: str, known: Iterable[str]) -> list[str]:
    """Returns the tools that fit a pattern (fnmatch(3): * ? [abc] [!abc]), sorted. Raises EINVAL for none."""
    names = sorted(known)
    if found := [name for name in names if fnmatchcase(name, pattern)]:
        return found
    raise Fault("EINVAL", f"no tool fits {pattern!r}{near(pattern, names)}")


def near(word: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence: "; did you mean X?" or nothing."""
    found = get_close_matches(_MAGIC.sub("", word)[:100], list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def expanded(data: bytes, known: Iterable[str]) -> bytes:
    """Returns the value of `tools`, with names in the place of patterns. A pattern does not repeat a name
    that is there already. Other mistakes stay, and are found by the check of the value."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    if sum(map(is_pattern, lines)) > MAX_PATTERNS:
        raise Fault("EINVAL", f"more than {MAX_PATTERNS} lines are patterns; write names")
    names = sorted(known)
    entries = {line for line in lines if not is_pattern(line)}
    found: list[str] = []
    for number, line in enumerate(lines, 1):
        matches = [name for name in _line(number, line, names) if name not in entries]
        entries.update(matches)
        found += matches if is_pattern(line) else [line]
    return "\n".join(found).encode("utf-8", "surrogateescape")


def _line(number: int, line: str, names: list[str]) -> list[str]:
    try:
        return fitting(line, names) if is_pattern(line) else []
    except Fault as fault:
        raise value_formats.refuse(number, fault.message) from None
