"""Versions and version ranges as npm reads them, and the versions that a range takes.

A version is MAJOR.MINOR.PATCH[-PRERELEASE][+BUILD]. A range has alternatives, joined by ||. An alternative
has comparators that must all hold: 1.2.3, =, >, >=, <, <=, ~1.2 (patches), ^1.2 (nothing breaking), partial
versions (1, 1.x, *) and 1.2 - 2.3. An alternative takes a prerelease only if one of its comparators names a
prerelease of the same MAJOR.MINOR.PATCH: ^1.2.3 does not take 1.3.0-beta.

Rules: texts that npm refuses are refused, and so are ambiguous ones (1.x.3, ==1). Every range becomes plain
comparators once, when it is parsed.
This file must never know the software that has a version.
"""

from __future__ import annotations

import operator
import re
from typing import TypeAlias

import msgspec

from cortexfs.core.errors import Fault

MAX_LENGTH = 256  # characters, npm's limit for a version; no person writes longer ranges
MAX_NUMBER = (1 << 53) - 1  # JavaScript is exact up to here, so that npm compares the same numbers

_NUMBER = r"(?:0|[1-9][0-9]*)"
_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][a-zA-Z0-9-]*)"
_TAIL = (
    rf"(?:-(?P<pre>{_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+(?P<build>[a-zA-Z0-9-]+(?:\.[a-zA-Z0-9-]+)*))?"
)
_VERSION = re.compile(rf"(?P<numbers>{_NUMBER}\.{_NUMBER}\.{_NUMBER}){_TAIL}")
_PART = r"(?:0|[1-9][0-9]*|[xX*])"
_PARTIAL = re.compile(rf"v?(?:(?P<numbers>{_PART}(?:\.{_PART}){{2}}){_TAIL}|(?P<few>{_PART}(?:\.{_PART})?))")
_COMPARATOR = re.compile(r"(?P<operator>~>?|\^|[<>]=?|=?)(?P<partial>.*)")
# A space may follow an operator.
_APART = re.compile(r"(~>?|\^|[<>]=?|=)\s+")
_HYPHEN = re.compile(r"(\S+)\s+-\s+(\S+)")

Numbers: TypeAlias = tuple[int, int, int]


class Version(msgspec.Struct, frozen=True):
    numbers: Numbers
    prerelease: tuple[int | str, ...] = ()
    build: str = ""  # does not count in comparisons

    @property
    def key(self) -> tuple[object, ...]:
        """Returns the key of semver's order: numbers, then prereleases first, their numbers before words."""
        words = tuple((isinstance(word, str), word) for word in self.prerelease)
        return self.numbers, not self.prerelease, words

    def __str__(self) -> str:
        text = ".".join(map(str, self.numbers))
        text += "-" + ".".join(map(str, self.prerelease)) if self.prerelease else ""
        return f"{text}+{self.build}" if self.build else text


Comparator: TypeAlias = tuple[str, Version]
Range: TypeAlias = tuple[tuple[Comparator, ...], ...]

_COMPARE = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_NEVER: tuple[Comparator, ...] = (("<", Version((0, 0, 0), (0,))),)


def parse(text: str) -> Version:
    """Returns the version of a text. Raises EINVAL for any other text."""
    found = _VERSION.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if not found:
        raise Fault("EINVAL", f"{text[:MAX_LENGTH]!r} is not a version like 1.2.3 or 1.2.3-beta.1")
    return _version([int(number) for number in found["numbers"].split(".")], found["pre"], found["build"])


def parse_range(text: str) -> Range:
    """Returns the range of a text. Raises EINVAL with the wrong part."""
    if len(text) > MAX_LENGTH:
        raise Fault("EINVAL", f"the range is longer than {MAX_LENGTH} characters")
    alternatives = tuple(_alternative(part.strip()) for part in text.split("||"))
    return ((),) if () in alternatives else alternatives  # as in npm: beside *, no alternative counts


def satisfies(version: Version, range_: Range) -> bool:
    return any(_holds(version, comparators) for comparators in range_)


def _holds(version: Version, comparators: tuple[Comparator, ...]) -> bool:
    if not all(_COMPARE[sign](version.key, bound.key) for sign, bound in comparators):
        return False
    return not version.prerelease or any(
        bound.prerelease and bound.numbers == version.numbers for _, bound in comparators
    )


def _alternative(text: str) -> tuple[Comparator, ...]:
    if hyphen := _HYPHEN.fullmatch(text):
        return _spread(">=", hyphen[1]) + _spread("<=", hyphen[2])
    comparators: tuple[Comparator, ...] = ()
    for word in _APART.sub(r"\1", text).split():
        found = _COMPARATOR.fullmatch(word)
        assert found  # the last group matches any text
        comparators += _spread(found["operator"], found["partial"])
    return comparators


def _spread(sign: str, text: str) -> tuple[Comparator, ...]:
    """Returns one comparator of a range as plain comparators: () if it takes every version."""
    known, full = _partial(text)
    if not known:
        return _NEVER if sign in ("<", ">") else ()
    low = full or _version(known + [0] * (3 - len(known)))
    if full and (sign or "=") in _COMPARE:
        return ((sign or "=", low),)
    successor = _successor(known, _CHANGES.get(sign, _last)(known))
    high = _version(successor, "0")  # -0 sorts before every prerelease of the next version
    return {
        ">": ((">=", _version(successor)),),
        ">=": ((">=", low),),
        "<": (("<", _version(list(low.numbers), "0")),),
        "<=": (("<", high),),
    }.get(sign, ((">=", low), ("<", high)))


def _partial(text: str) -> tuple[list[int], Version | None]:
    """Returns the numbers before the first x, and the version if the text is a whole version."""
    found = _PARTIAL.fullmatch(text)
    if not found:
        raise Fault("EINVAL", f"{text!r} is not a version like 1.2.3, nor the beginning of one like 1.2")
    parts = (found["numbers"] or found["few"]).split(".")
    known = [int(part) for part in parts if part not in "xX*"]
    if any(part not in "xX*" for part in parts[len(known) :]):
        raise Fault("EINVAL", f"{text!r} has a number after an x")
    return known, _version(known, found["pre"], found["build"]) if len(known) == 3 else None


def _version(numbers: list[int], prerelease: str | None = None, build: str | None = None) -> Version:
    if max(numbers) > MAX_NUMBER:
        raise Fault("EINVAL", f"{max(numbers)} is too large for a part of a version")
    words = prerelease.split(".") if prerelease else []
    major, minor, patch = numbers
    return Version(
        (major, minor, patch), tuple(int(word) if word.isdigit() else word for word in words), build or ""
    )


def _successor(known: list[int], at: int) -> list[int]:
    """Returns the numbers of the next version that differs at this place."""
    return [*known[:at], known[at] + 1, *[0] * (2 - at)]


def _last(known: list[int]) -> int:
    return len(known) - 1


def _first_set(known: list[int]) -> int:
    """Returns the place that ^ keeps: that of the leftmost number that is not zero."""
    return next((at for at, number in enumerate(known) if number), _last(known))


def _minor(known: list[int]) -> int:
    return min(1, _last(known))


_CHANGES = {"^": _first_set, "~": _minor, "~>": _minor}
