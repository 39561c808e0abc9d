"""Untrusted text, made fit for a terminal or for one line of a file.

Messages hold file names and output of tools. A terminal obeys control characters. Other characters make a
text look like another: format characters turn its direction, ignorable ones take no room, marks strike out
the character before them, or cover lines as a pile. Once they are escaped, a reader sees the text as it is.

Rules: `escaped` is for text by which a user decides. It passes no character that can be taken for another.
`prose` is for text that is only read: there words need their joiners, and emoji their variants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MAX_LINE = 1000
MAX_LAST = 600  # characters of a process's output, in the sentence that it has ended
KEPT_LAST = 4 << 10  # bytes of its output, from which these characters are taken
_TRACE = "Traceback (most recent call last):"
_OF_GROUP = r" +[|+] ?"  # the margin of an exception group

# Default_Ignorable_Code_Point of Unicode 16.0, DerivedCoreProperties.txt, except _JOINING, for prose.
_IGNORABLE = (
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Zero-width joiner and non-joiner, and the selectors that show a sign as text or as a picture.
_JOINING = r"\u200c\u200d\ufe0e\ufe0f"
# Compiled only for text that needs it, as this takes longer than the output of most commands.
UNSEEN = rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufff9-\ufffb{_IGNORABLE}]"
_BLANK = "\u2800\U0001d159"  # printable, and look like a space
_NEVER = rf"[{_IGNORABLE}{_JOINING}]"
_MAX_MARKS = 4  # on one letter, as Hebrew has
_OVERLAY = 1  # the combining class of marks that strike out a letter


def _written(char: str) -> str:
    return ascii(char)[1:-1]


def prose(text: str) -> str:
    """Returns `text` with Python's escapes for control characters and characters that hide or turn text."""
    return text if _is_plain(text) else re.sub(UNSEEN, lambda found: _written(found[0]), text)


def escaped(text: str, write: Callable[[str], str] = _written) -> str:
    """Returns `text` with `write(char)` for each invisible or misleading `char`. Tabs and newlines stay."""
    if _is_plain(text):
        return text
    if text.isascii():
        return re.sub(UNSEEN, lambda found: write(found[0]), text)
    parts, before, marks = [], "", 0
    for char in text:
        marks = marks + 1 if _is_mark(char) else 0
        is_seen = char in "\t\n" or (marks <= _MAX_MARKS and _is_seen(char, before))
        parts.append(char if is_seen else write(char))
        before = char if is_seen else ""
    return "".join(parts)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_seen(char: str, before: str) -> bool:
    if char.isascii() or not char.isprintable():
        return char.isprintable()
    if re.match(_NEVER, char) or char in _BLANK:
        return False
    return not _is_mark(char) or (_carries(before) and not _covers(char))


def _carries(before: str) -> bool:
    """Returns True if a mark may follow `before`: it makes another letter of a letter, but hides a sign."""
    return before.isalnum() or not (before.isascii() or before.isspace())


def _is_mark(char: str) -> bool:
    if char.isascii() or char.isalnum():
        return False
    from unicodedata import category  # imported here, as most processes never need this library

    return category(char).startswith("M")


def _covers(mark: str) -> bool:
    """Returns True if the mark lies on its letter, or around it, and hides it."""
    from unicodedata import category, combining  # as above

    return combining(mark) == _OVERLAY or category(mark) == "Me"


def within(text: str) -> str:
    """Returns `text` as part of one line, with nothing left out."""
    return escaped(text).replace("\n", "\\n").replace("\t", "\\t")


def one_line(text: str) -> str:
    """Returns `text` as one line of at most MAX_LINE characters."""
    return escaped(" ".join(text.split())[:MAX_LINE])[:MAX_LINE]


def quoted(text: str) -> str:
    """Returns a person's words with marks that set them apart from the answers."""
    return "\n".join(f"> {line}" for line in text.split("\n"))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# Ends all that a host prints about a call that is over, so that it is not taken for later last words.
PAST = "\x1e"


def last_words(output: bytes) -> str:
    """Returns the end of the sentence that a process has ended: its last output, or nothing if it had none.

    The output is cut to whole lines, as many as fit, without those of a traceback.
    """
    lines = output[-KEPT_LAST:].decode(errors="replace").strip("\n").split("\n")
    words, is_cut = "", len(output) >= KEPT_LAST
    for line in reversed(lines[is_cut:] or lines):
        line = re.sub(f"^{_OF_GROUP}", "", line)
        if _TRACE in line or (words and len(line) + len(words) >= MAX_LAST):
            break
        if not line[:1].isspace() and any(map(str.isalpha, line)):
            words = f"{line} {words}"
    end = one_line(words or "".join(lines[-1:]))
    return f"; it printed last: {end}" if end else ""


def misfits(errors: Iterable[Mapping[str, Any]]) -> str:
    """Returns the end of a sentence with the errors that pydantic found, each with `loc` and `msg`."""
    found = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors)
    return one_line("; ".join(found))
