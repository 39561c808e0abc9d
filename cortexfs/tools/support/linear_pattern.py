"""Patterns in the syntax of Python's re, translated for an engine without backtracking.

Main path: `parsed` returns the pattern for a line of text: as `Pattern.plain` if it is mere text, else in the
syntax of ripgrep's engine as `Pattern.text`.

Rules: Python's own parser reads the pattern, so syntax and errors are Python's. A line holds no line break:
^ and \\A match its beginning, $ and \\Z its end, and a break in a pattern matches nothing. A construct that
the engine lacks is refused by name. Python's matcher is never called.
This file must never know how the engine is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as codes  # type: ignore[attr-defined]  # typeshed has neither
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from cortexfs.sdk import InvalidInput

_NOTHING = "[a&&b]"
_SURROGATES = range(0xD800, 0xE000)  # decoded text has none, and the engine refuses them
_INSTEAD = (
    "every pattern here takes time in proportion to the text, which rules that out: "
    "write the pattern without it and choose among the hits"
)
_MISSING = {
    codes.GROUPREF: "a backreference, as \\1 or (?P=name)",
    codes.GROUPREF_EXISTS: "a condition on a group, as (?(1)a|b)",
    codes.ATOMIC_GROUP: "an atomic group, (?>...)",
    codes.POSSESSIVE_REPEAT: "a possessive repetition, as a++",
    codes.FAILURE: "a negative lookahead, (?!...)",
}
_AROUND = {
    (codes.ASSERT, 1): "a lookahead, (?=...)",
    (codes.ASSERT, -1): "a lookbehind, (?<=...)",
    (codes.ASSERT_NOT, 1): "a negative lookahead, (?!...)",
    (codes.ASSERT_NOT, -1): "a negative lookbehind, (?<!...)",
}
_PLACES = {
    codes.AT_BEGINNING: "^",
    codes.AT_BEGINNING_STRING: "^",
    codes.AT_END: "$",
    codes.AT_END_STRING: "$",
}
# Inside a class. Python's words are letters, numbers and _; its spaces include four separators of ASCII.
_SETS = {
    codes.CATEGORY_DIGIT: r"\p{Nd}",
    codes.CATEGORY_NOT_DIGIT: r"\P{Nd}",
    codes.CATEGORY_SPACE: r"\s\x1c-\x1f",
    codes.CATEGORY_NOT_SPACE: r"[^\s\x1c-\x1f]",
    codes.CATEGORY_WORD: r"\p{L}\p{N}_",
    codes.CATEGORY_NOT_WORD: r"[^\p{L}\p{N}_]",
}
_ASCII_SETS = {
    codes.CATEGORY_DIGIT: "0-9",
    codes.CATEGORY_NOT_DIGIT: "[^0-9]",
    codes.CATEGORY_SPACE: r"\x09-\x0d\x20",
    codes.CATEGORY_NOT_SPACE: r"[^\x09-\x0d\x20]",
    codes.CATEGORY_WORD: "0-9A-Za-z_",
    codes.CATEGORY_NOT_WORD: "[^0-9A-Za-z_]",
}


class Pattern(NamedTuple):
    plain: str | None  # the text that a line must hold, if the pattern is mere text
    text: str


def parsed(pattern: str, ignore_case: bool) -> Pattern:
    """Raises InvalidInput."""
    try:
        tree = parser.parse(pattern, re.IGNORECASE if ignore_case else 0)
        flags = tree.state.flags
        if not flags & re.IGNORECASE and all(code is codes.LITERAL for code, _ in tree):
            return Pattern("".join(chr(value) for _, value in tree), "")
        return Pattern(None, _switched(_sequence(tree, flags), flags & re.IGNORECASE, 0))
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidInput(f"pattern: it is not a regular expression: {error}") from None


def _sequence(tree: Iterable[tuple[Any, Any]], flags: int) -> str:
    return "".join(_text(code, value, flags) for code, value in tree)


def _text(code: Any, value: Any, flags: int) -> str:
    if code in _MISSING:
        raise _missing(_MISSING[code])
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        raise _missing(_AROUND[code, value[0]])
    if code is codes.LITERAL:
        # Without case, Python equates both Turkish letters with i; with ASCII, only its letters have a case.
        is_odd = bool(flags & re.IGNORECASE) and (value in _DOTTED or bool(flags & re.ASCII))
        return _class([(code, value)], flags) if is_odd else _character(value)
    if code is codes.NOT_LITERAL:
        return _class([(codes.NEGATE, None), (codes.LITERAL, value)], flags)
    if code is codes.ANY:
        return "."
    if code is codes.IN:
        return _class(value, flags)
    if code is codes.AT:
        boundary = r"\b" if value is codes.AT_BOUNDARY else r"\B"
        return _PLACES.get(value) or (f"(?-u:{boundary})" if flags & re.ASCII else boundary)
    if code is codes.BRANCH:
        return f"(?:{'|'.join(_sequence(branch, flags) for branch in value[1])})"
    if code is codes.SUBPATTERN:
        _, added, removed, inner = value
        within = (flags | added) & ~removed
        return f"(?:{_switched(_sequence(inner, within), within & re.IGNORECASE, flags & re.IGNORECASE)})"
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        return _repeated(value, flags) + "?" * (code is codes.MIN_REPEAT)
    raise _missing(f"what Python's parser calls {code}")


def _missing(feature: str) -> InvalidInput:
    return InvalidInput(f"pattern: it has {feature}, and {_INSTEAD}")


def _switched(text: str, case: int, standing: int) -> str:
    """Switch the case sensitivity if it differs from that of the surrounding pattern."""
    if case == standing:
        return text
    return f"(?i:{text})" if case else f"(?-i:{text})"


def _repeated(value: Any, flags: int) -> str:
    least, most, inner = value
    text = _sequence(inner, flags)
    if len(inner) != 1 or inner[0][0] not in (codes.LITERAL, codes.IN, codes.ANY, codes.SUBPATTERN):
        text = f"(?:{text})"
    if most is codes.MAXREPEAT:
        return text + ("*" if not least else f"{{{least},}}")
    return f"{text}{{{least},{most}}}"


def _character(number: int) -> str:
    if number == 10 or number in _SURROGATES:
        return _NOTHING
    return chr(number) if chr(number).isalnum() else f"\\x{{{number:x}}}"


_DOTTED = frozenset(map(ord, "iI\u0130\u0131"))


def _class(items: list[tuple[Any, Any]], flags: int) -> str:
    sets = _ASCII_SETS if flags & re.ASCII else _SETS
    negated, parts = False, []
    for code, value in items:
        if code is codes.NEGATE:
            negated = True
        elif code is codes.CATEGORY:
            parts.append(sets[value])
        else:
            first, last = value if code is codes.RANGE else (value, value)
            parts += _ranges(first, last)
            if flags & re.IGNORECASE:
                parts += _cases(first, last, flags)
    if not parts:
        return "." if negated else _NOTHING
    text = f"[{'^' * negated}{''.join(parts)}]"
    return f"(?-i:{text})" if flags & re.IGNORECASE and flags & re.ASCII else text


def _ranges(first: int, last: int) -> list[str]:
    """Returns the range without line breaks and surrogates."""
    found = []
    for low, high in ((0, 9), (11, _SURROGATES.start - 1), (_SURROGATES.stop, 0x10FFFF)):
        low, high = max(low, first), min(high, last)
        if low <= high:
            found.append(f"\\x{{{low:x}}}-\\x{{{high:x}}}")
    return found


def _cases(first: int, last: int, flags: int) -> list[str]:
    if not flags & re.ASCII:
        return [_character(number) for number in _DOTTED] if any(first <= n <= last for n in _DOTTED) else []
    found = []
    for low, high, other in ((65, 90, 32), (97, 122, -32)):
        low, high = max(low, first), min(high, last)
        if low <= high:
            found += _ranges(low + other, high + other)
    return found
