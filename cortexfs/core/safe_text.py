"""Text of strangers, made fit for a terminal or for one line of a file.

Messages hold file names and what tools say. A terminal obeys control characters, and others show another
text than is there: format characters turn its direction, ignorable ones take no room, marks strike out what
stands before them. What was meant is still to be seen once they are escaped.

Rules: `escaped` is for what somebody decides by, and lets nothing pass that cannot be told from something
else. `prose` is for what is only read, where words need their joiners and emoji their variants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MAX_LINE = 1000
MAX_LAST = 600  # characters of what a process printed, in the sentence that it has ended
KEPT_LAST = 4 << 10  # bytes of it, among which these are looked for
_TRACE = "Traceback (most recent call last):"
_OF_GROUP = r" +[|+] ?"  # the margin of an exception group

# Default_Ignorable_Code_Point of Unicode 16.0, DerivedCoreProperties.txt, but for what prose needs.
_IGNORABLE = (
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Zero-width joiner and non-joiner, and the variants of a sign as text and as a picture.
_JOINING = r"\u200c\u200d\ufe0e\ufe0f"
# Compiled when there is something to escape, which takes longer than most commands have to say.
UNSEEN = rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufff9-\ufffb{_IGNORABLE}]"
_NEVER = rf"[{_IGNORABLE}{_JOINING}]"


def _written(char: str) -> str:
    return ascii(char)[1:-1]


def prose(text: str) -> str:
    """`text` with control characters and what hides or turns text as Python writes them."""
    return text if _is_plain(text) else re.sub(UNSEEN, lambda found: _written(found[0]), text)


def escaped(text: str, write: Callable[[str], str] = _written) -> str:
    """`text` with all that is not seen for what it is as `write` has it, but for tab and newline."""
    if _is_plain(text):
        return text
    if text.isascii():
        return re.sub(UNSEEN, lambda found: write(found[0]), text)
    shown, before = [], ""
    for char in text:
        is_seen = char in "\t\n" or _is_seen(char, before)
        shown.append(char if is_seen else write(char))
        before = char if is_seen else ""
    return "".join(shown)


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_seen(char: str, before: str) -> bool:
    if char.isascii() or not char.isprintable():
        return char.isprintable()
    return not re.match(_NEVER, char) and (_carries(before) or not _is_mark(char))


def _carries(before: str) -> bool:
    """Returns True where a mark may stand: on a letter it makes another one, on a sign it hides the sign."""
    return before.isalnum() or not (before.isascii() or before.isspace())


def _is_mark(char: str) -> bool:
    from unicodedata import category  # a library that most who start never need

    return category(char).startswith("M")


def within(text: str) -> str:
    """As a part of one line, with all that it holds."""
    return escaped(text).replace("\n", "\\n").replace("\t", "\\t")


def one_line(text: str) -> str:
    """As one line, cut where it is longer than anybody reads."""
    return escaped(" ".join(text.split())[:MAX_LINE])[:MAX_LINE]


def quoted(text: str) -> str:
    """Returns a person's words, told apart from the answers."""
    return "\n".join(f"> {line}" for line in text.split("\n"))


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# A host ends with it what it prints of a call that is over, so that it is not the last word of another.
PAST = "\x1e"


def last_words(printed: bytes) -> str:
    """The end of the sentence that a process has ended: the last of what it printed, if that is anything.

    It has whole lines, as many as there is room for, and not those of a stack.
    """
    lines = printed[-KEPT_LAST:].decode(errors="replace").strip("\n").split("\n")
    told, is_cut = "", len(printed) >= KEPT_LAST
    for line in reversed(lines[is_cut:] or lines):
        line = re.sub(f"^{_OF_GROUP}", "", line)
        if _TRACE in line or (told and len(line) + len(told) >= MAX_LAST):
            break
        if not line[:1].isspace() and any(map(str.isalpha, line)):
            told = f"{line} {told}"
    said = one_line(told or "".join(lines[-1:]))
    return f"; it printed last: {said}" if said else ""


def misfits(errors: Iterable[Mapping[str, Any]]) -> str:
    """A sentence's end of what pydantic finds wrong, each with `loc` and `msg`."""
    found = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors)
    return one_line("; ".join(found))
