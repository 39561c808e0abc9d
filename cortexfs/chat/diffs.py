"""The change that a call of fs.write or fs.replace would make, as a unified diff against the file here.

Rules: if a file cannot be compared, a remark says so, and the new text is shown nevertheless. The work is
bounded: the common beginning and end of two texts are not compared. If the rest is still too large, its lines
are counted instead.
This file must never know how files are read, or who looks at a diff.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple, TypeAlias

CONTEXT = 3
MAX_FILE = 512 << 10  # bytes: larger files are not compared
MAX_PAIRS = 1 << 20  # pairs of differing lines: in the worst case difflib compares all of them, for a second

Read: TypeAlias = Callable[[str], bytes]  # raises OSError; returns more than MAX_FILE bytes of a larger file
Side: TypeAlias = Literal["@", " ", "+", "-", "!"]


class DiffLine(NamedTuple):
    """A line of a diff. The side `!` marks a remark about the diff."""

    side: Side
    text: str


def of(name: str, input_: dict[str, Any], read: Read) -> list[DiffLine] | None:
    """Returns the change that a call makes, or None if its input is not valid."""
    path, diff = input_.get("path"), input_.get("diff")
    if not isinstance(path, str):
        return None
    if name == "fs.replace" and isinstance(diff, str) and not {"old", "new"} & input_.keys():
        return [DiffLine(_SIDES.get(line[:1], "!"), line) for line in _lines(diff)]
    if (found := _CHANGES[name](input_)) is None:
        return None
    bare, change = found
    try:
        before = read(path)
    except FileNotFoundError:
        return [DiffLine("!", "there is no such file yet"), *bare] if name == "fs.write" else bare
    except (OSError, ValueError) as problem:
        return [DiffLine("!", f"not compared: {getattr(problem, 'strerror', None) or problem}"), *bare]
    if len(before) > MAX_FILE or b"\0" in before:
        return [DiffLine("!", "not compared: the file is large, or no text"), *bare]
    old = before.decode(errors="replace")
    new = change(old)
    if new is None:
        return [DiffLine("!", "the text to be replaced is not in the file as it is here"), *bare]
    if new == old:
        return [DiffLine("!", "the file has that already")]
    return difference(_lines(old), _lines(new)) or [DiffLine("!", "only the newline at its end changes")]


# The change without a file, and a function from the old text of a file to the new one, None if not possible.
Change: TypeAlias = tuple[list[DiffLine], Callable[[str], str | None]]


def _written(input_: dict[str, Any]) -> Change | None:
    content = input_.get("content")
    if not isinstance(content, str) or input_.get("encoding", "utf-8") != "utf-8":
        return None
    is_added = input_.get("mode") == "append"
    return difference([], _lines(content)), lambda old: old + content if is_added else content


def _replaced(input_: dict[str, Any]) -> Change | None:
    old, new = input_.get("old"), input_.get("new")
    if not isinstance(old, str) or not isinstance(new, str) or not old:
        return None
    count = -1 if input_.get("all") is True else 1
    return difference(_lines(old), _lines(new)), lambda text: _exchanged(text, old, new, count)


def _exchanged(text: str, old: str, new: str, count: int) -> str | None:
    if "\r\n" in text and "\r\n" not in old + new:  # as fs.replace does
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    return text.replace(old, new, count) if old in text else None


_CHANGES: dict[str, Callable[[dict[str, Any]], Change | None]] = {
    "fs.write": _written,
    "fs.replace": _replaced,
}


_SIDES: dict[str, Side] = {"@": "@", "+": "+", "-": "-", " ": " "}  # of a diff that the model wrote


def difference(before: Sequence[str], after: Sequence[str]) -> list[DiffLine]:
    """Returns a unified diff, without its first two lines."""
    if not before:
        return [DiffLine("+", f"+{line}") for line in after]
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    skipped = max(start - CONTEXT, 0)
    tail = max(end - CONTEXT, 0)
    old, new = before[skipped : len(before) - tail], after[skipped : len(after) - tail]
    if len(old) * len(new) > MAX_PAIRS:
        message = f"too much to compare: {len(old):,} lines become {len(new):,}; what it puts there:"
        return [DiffLine("!", message), *(DiffLine("+", f"+{line}") for line in new)]
    lines: list[DiffLine] = []
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        first, last = group[0], group[-1]
        spans = _span(first[1], last[2], skipped), _span(first[3], last[4], skipped)
        lines.append(DiffLine("@", f"@@ -{spans[0]} +{spans[1]} @@"))
        for tag, a, b, c, d in group:
            if tag == "equal":
                lines += [DiffLine(" ", f" {line}") for line in old[a:b]]
                continue
            lines += [DiffLine("-", f"-{line}") for line in old[a:b]]
            lines += [DiffLine("+", f"+{line}") for line in new[c:d]]
    return lines


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Returns the number of lines that are the same at the beginning of both."""
    pairs = zip(first, second, strict=False)
    return next((number for number, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _span(start: int, stop: int, skipped: int) -> str:
    """Returns a range of lines as in a hunk's header. An empty range begins before its first line."""
    count, first = stop - start, start + skipped + 1
    return str(first) if count == 1 else f"{first - (not count)},{count}"


def _lines(text: str) -> list[str]:
    """Returns the lines of a text. The newline at the end begins no further line."""
    return text.removesuffix("\n").split("\n") if text else []
