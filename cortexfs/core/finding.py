"""Search for tools by words, best first, in the daemon's list of tools (`.allowed`).

Rules: a word counts more in a name than in a description, and more as a whole word than as a part of one. A
tool with more of the words comes first. A mount may have ten thousand tools. So the text is searched as a
whole, and only the lines with the most hits are split into fields.
This file must never know where the text comes from, or who asks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

BEST = 10  # tools in an answer; to find others, a user asks with other words
LOOKED_AT = 300  # lines that are split into fields
MAX_WORDS = 32
_WORD = re.compile(r"[^\W_]+")
# Points for a word that is a whole word of the name, begins one, or is elsewhere in the name; and for a word
# that is a whole word of the description, or begins one.
IN_NAME, BEGINS_NAME, PART_OF_NAME, IN_TEXT, BEGINS_TEXT = 12, 8, 6, 3, 2


class AllowedRow(NamedTuple):
    """A line of `.allowed`. Its fields have no tabs, line ends or control characters."""

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
    """Returns the words of a question. Words of one or two letters count only if there are no longer ones."""
    words = dict.fromkeys(map(_stem, _WORD.findall(text.lower())))
    return ([word for word in words if len(word) > 2] or list(words))[:MAX_WORDS]


def best(text: str, words: Sequence[str]) -> list[AllowedRow]:
    """Returns the rows of the tools that match these words, best first."""
    small = text.lower()
    if len(small) != len(text):  # the lower case of some letters is two characters
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
    """Returns the start of each line with a word, and its score: words count, and those in its name more."""
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
    words = _WORD.findall(row.description.lower())
    if word in words:
        return IN_TEXT
    return BEGINS_TEXT if any(each.startswith(word) for each in words) else 0


def _stem(word: str) -> str:
    """Returns a word without the s of its plural, as the singular begins both forms."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
