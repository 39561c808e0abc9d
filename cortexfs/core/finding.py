"""The tools that have to do with some words, best first, from what the daemon tells of them (`.allowed`).

Rules: a word counts more in a name than in a description, and whole more than as a part; a tool with more of
the words comes first. A mount may have ten thousand tools: text is searched as a whole, and only the lines
that promise most are taken apart.
This file must never know how the text comes, or who asks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

BEST = 10  # of a mount with very many; who wants others says other words
LOOKED_AT = 300  # lines that are taken apart
MAX_WORDS = 32
_WORD = re.compile(r"[^\W_]+")
# Points for a word: it is one of the name's, one begins with it, it is in the name; so in the description.
IN_NAME, BEGINS_NAME, PART_OF_NAME, IN_TEXT, BEGINS_TEXT = 12, 8, 6, 3, 2


class AllowedRow(NamedTuple):
    """Fields without tabs, line ends or control characters."""

    object: str  # its path below the root
    status: str
    origin: str
    sentence: str  # the first of its description
    rest: str

    @property
    def description(self) -> str:
        return f"{self.sentence} {self.rest}".rstrip()

    @property
    def name(self) -> str:
        return self.object.rpartition("/")[2]


def rows(text: str) -> list[AllowedRow]:
    return [AllowedRow(*line.split("\t")) for line in text.splitlines()]


def words_of(text: str) -> list[str]:
    """The words of a question, those of one or two letters where there are no others."""
    said = dict.fromkeys(map(_stem, _WORD.findall(text.lower())))
    return ([word for word in said if len(word) > 2] or list(said))[:MAX_WORDS]


def best(text: str, words: Sequence[str]) -> list[AllowedRow]:
    """The rows of the tools that have to do with these words, best first."""
    small = text.lower()
    if len(small) != len(text):  # as some letters are two then
        small = text.encode().lower().decode()
    hits = _hits(small, words)
    promising = sorted(hits, key=lambda start: (-hits[start], start))[:LOOKED_AT]
    found = []
    for start in promising:
        row = AllowedRow(*text[start : text.index("\n", start)].split("\t"))
        points = [_points(word, row) for word in words]
        found.append((-sum(map(bool, points)), -sum(points), row))
    return [row for number, _, row in sorted(found) if number][:BEST]


def _hits(small: str, words: Sequence[str]) -> dict[int, int]:
    """The places where lines with a word begin, and their worth: words, and then those in names."""
    found: dict[int, int] = {}
    for word in words:
        at = small.find(word)
        while at >= 0:
            start, name_end = small.rfind("\n", 0, at) + 1, small.find("\t", at)
            in_name = small.find("\t", start) == name_end
            found[start] = found.get(start, 0) + MAX_WORDS + in_name
            at = small.find(word, small.find("\n", at))
    return found


def _points(word: str, row: AllowedRow) -> int:
    name = row.name.lower()
    parts = _WORD.findall(name)
    if word in parts:
        return IN_NAME
    if any(part.startswith(word) for part in parts):
        return BEGINS_NAME
    if word in name:
        return PART_OF_NAME
    said = _WORD.findall(row.description.lower())
    if word in said:
        return IN_TEXT
    return BEGINS_TEXT if any(one.startswith(word) for one in said) else 0


def _stem(word: str) -> str:
    """A word of the question without the ending of its plural, as others begin with that as well."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
