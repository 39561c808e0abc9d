"""Unified diffs, applied to bytes.

Rules: values in, values out. The old lines of a hunk must stand in the file exactly, newlines included. Only
their place may differ from the hunk's header, and then there must be one such place.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_HEADER = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


class BadPatch(ValueError):
    """The text is not a unified diff of one file."""


class Mismatch(ValueError):
    """The diff is for another state of the file."""


class Hunk(NamedTuple):
    start: int  # of its old lines, counted from 0
    old: list[bytes]
    new: list[bytes]


def lines_of(data: bytes) -> list[bytes]:
    """Returns the lines with their newlines, which the last line may lack."""
    *lines, last = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([last] if last else [])


def parse(diff: bytes) -> list[Hunk]:
    lines = diff.removesuffix(b"\n").split(b"\n")
    at = next((at for at, line in enumerate(lines) if line.startswith(b"@@")), len(lines))
    if at == len(lines):
        raise BadPatch("it holds no hunk, which begins with a line as @@ -1,3 +1,4 @@")
    hunks: list[Hunk] = []
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        if hunks and lines[at].startswith((b"--- ", b"diff ")):
            raise BadPatch("it changes more than one file; give one file's part at a time")
        hunk, at = _hunk(lines, at, len(hunks) + 1)
        hunks.append(hunk)
    return hunks


def _hunk(lines: list[bytes], at: int, number: int) -> tuple[Hunk, int]:
    header = _HEADER.match(lines[at])
    if not header:
        raise BadPatch(
            f"its line {at + 1} should begin hunk {number} with @@ -LINE,COUNT +LINE,COUNT @@; perhaps the "
            "counts of the hunk before are too small"
        )
    start, count, _, new_count = (1 if group is None else int(group) for group in header.groups())
    old: list[bytes] = []
    new: list[bytes] = []
    # An editor that strips white space makes an empty context line wholly empty.
    sides = {b" ": (old, new), b"": (old, new), b"\r": (old, new), b"-": (old,), b"+": (new,)}
    at += 1
    touched: tuple[list[bytes], ...] = ()
    while at < len(lines) and (len(old) < count or len(new) < new_count or lines[at].startswith(b"\\")):
        mark = lines[at][:1]
        if mark == b"\\":  # "No newline at end of file", about the line before
            for side in touched:
                side[-1] = side[-1].removesuffix(b"\n")
        elif mark in sides:
            touched = sides[mark]
            for side in touched:
                side.append((lines[at][1:] if mark != b"\r" else mark) + b"\n")
        else:
            break
        at += 1
    if (len(old), len(new)) != (count, new_count):
        raise BadPatch(
            f"hunk {number} holds {len(old)} old and {len(new)} new lines, and its header says "
            f"{count} and {new_count}"
        )
    return Hunk(start - 1 if count else start, old, new), at


def apply(data: bytes, hunks: list[Hunk]) -> tuple[bytes, list[int]]:
    """Returns the changed data, and the line (from 1) where each hunk was found."""
    lines = lines_of(data)
    out: list[bytes] = []
    places: list[int] = []
    end = shift = 0
    for number, hunk in enumerate(hunks, 1):
        place = _place(lines, hunk, end, hunk.start + shift, number)
        out += lines[end:place]
        out += hunk.new
        end, shift = place + len(hunk.old), place - hunk.start
        places.append(place + 1)
    out += lines[end:]
    if any(not line.endswith(b"\n") for line in out[:-1]):
        raise Mismatch("it would put a line without a newline in the middle of the file")
    return b"".join(out), places


def _place(lines: list[bytes], hunk: Hunk, end: int, expected: int, number: int) -> int:
    old = hunk.old
    if end <= expected <= len(lines) and lines[expected : expected + len(old)] == old:
        return expected
    if not old:
        raise Mismatch(f"hunk {number} adds lines at line {expected + 1}, and the file has {len(lines)}")
    found = [
        at
        for at in range(end, len(lines) - len(old) + 1)
        if lines[at] == old[0] and lines[at : at + len(old)] == old
    ]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(str(at + 1) for at in found[:5])
        raise Mismatch(
            f"hunk {number} does not fit at line {expected + 1}, and fits at {len(found)} others "
            f"({places}); give it more context"
        )
    raise Mismatch(f"hunk {number} fits nowhere: {_difference(lines, hunk, expected)}")


def _difference(lines: list[bytes], hunk: Hunk, expected: int) -> str:
    for at, line in enumerate(hunk.old, max(expected, 0)):
        if at >= len(lines):
            return f"the diff has a line {at + 1}, and the file ends at line {len(lines)}"
        if lines[at] != line:
            return f"line {at + 1} is {_quoted(lines[at])}, and the diff has {_quoted(line)}"
    return "its place lies before the end of the hunk before"


def _quoted(line: bytes) -> str:
    text = line.decode(errors="replace").removesuffix("\n")
    text = repr(text if len(text) <= 80 else text[:80] + "…")
    return text if line.endswith(b"\n") else f"{text} without a newline at its end"
