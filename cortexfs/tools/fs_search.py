"""fs.search: a regular expression over a tree of text files.

Rules: memory is bounded by a block, not by a file; hits stream file by file. Python's `re` can take
exponential time on some patterns, and nothing inside the process can interrupt it: such a call ends
when its caller cancels, because the daemon then ends the host that does not answer.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from typing import Annotated, NamedTuple

from pathspec import GitIgnoreSpec

from cortexfs.sdk import (
    ExecutionFailed,
    InvalidInput,
    ToolEffect,
    ToolEffectKind,
    ToolError,
    ToolRuntime,
    tool,
)
from cortexfs.tools.support.gitignore import IgnoreRules
from cortexfs.tools.support.paths import at_least, checked, opened_regular, shown, sorted_entries

BLOCK = 1 << 20  # a longer line is searched in pieces of this size
MAX_SHOWN = 500  # characters of a line
LEAD = 100  # of them before the match, where the line is cut
BATCH = 200  # lines for each piece of output
SNIFFED = 8192  # a NUL byte in the first so many means binary, as for git
_SPECIAL = set(r".^$*+?{}[]\|()")


@tool(
    name="fs.search",
    effects=[ToolEffect(ToolEffectKind.READ_FILE)],
    background_safe=True,
    emits_progress=True,
    description="""\
Search the lines of all text files in a directory tree (or of one file) for a regular expression, and \
return each hit as path:line:text, sorted by path. With context, lines around a hit come as \
path-line-text, and -- stands between groups.
What .gitignore files exclude is left out unless all is true; .git, binary files and symbolic links \
always are. Long lines are cut around the match, with … where something is missing. The syntax is that \
of Python's re, for each line by itself; put a backslash before . ( ) [ ] { } * + ? ^ $ | to mean the \
character. No hit is empty output, no error.
Use it to find where something is defined, used or written. When there are more than max_results hits, a \
last line that begins with "..." says so.
Do not use it to find files by name (fs.glob) or to read a file that you know (fs.read). Avoid nested \
repetition as in (a+)+b: it can take for ever.""",
)
def search(
    runtime: ToolRuntime,
    pattern: Annotated[str, "A regular expression."],
    path: Annotated[str, "The directory or file to search in."] = ".",
    glob: Annotated[str | None, "Only files that match, as in *.py or src/**/*.c."] = None,
    ignore_case: Annotated[bool, "Take upper and lower case as the same."] = False,
    context: Annotated[int, "So many lines before and after each hit."] = 0,
    max_results: Annotated[int, "At most so many hits."] = 1000,
    all: Annotated[bool, "Also files that .gitignore excludes."] = False,
) -> Iterator[str]:
    at_least(0, context=context)
    at_least(1, max_results=max_results)
    query = _Query(_compiled(pattern, ignore_case), _literal(pattern, ignore_case, context), context)
    walk = _Walk(checked(path), _only(glob), all)
    left = max_results
    for name, blocks in walk.files():
        if runtime.cancelled:
            raise ExecutionFailed("cancelled", "ECANCELED")
        lines: list[str] = []
        for is_hit, line in _found(name, blocks, query):
            left -= is_hit
            if left < 0:
                yield "".join(lines)
                yield f"... there are more than {max_results} hits; narrow the search or raise max_results\n"
                return
            lines.append(line)
            if len(lines) == BATCH:
                yield "".join(lines)
                lines.clear()
        if lines:
            yield "".join(lines)
    if walk.unreadable:
        runtime.emit_progress(f"{walk.unreadable} files and directories could not be read")


def _compiled(pattern: str, ignore_case: bool) -> Callable[[str], re.Match[str] | None]:
    try:
        return re.compile(pattern, re.IGNORECASE if ignore_case else 0).search
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidInput(f"pattern: it is not a regular expression: {error}") from None


def _literal(pattern: str, ignore_case: bool, context: int) -> str:
    """Returns the text that every block with a hit must hold, where that is known."""
    return "" if ignore_case or context or _SPECIAL & set(pattern) else pattern


def _only(glob: str | None) -> GitIgnoreSpec | None:
    try:
        return None if glob is None else GitIgnoreSpec.from_lines([checked(glob, "glob")])
    except ValueError as error:
        raise InvalidInput(f"glob: it is not a pattern: {error}") from None


class _Query(NamedTuple):
    search: Callable[[str], re.Match[str] | None]
    literal: str
    context: int


class _Walk:
    """The text files of a tree, sorted, each open for its turn as blocks of whole lines."""

    def __init__(self, top: str, only: GitIgnoreSpec | None, all: bool) -> None:
        self._top = top
        self._only = only
        self._all = all
        self.unreadable = 0

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        if not stat.S_ISDIR(os.stat(self._top).st_mode):
            with opened_regular(self._top) as file:
                yield self._top, self._blocks(file)
            return
        for below in self._names():
            path = os.path.join(self._top, below)
            try:
                file = opened_regular(path)
            except (OSError, ToolError):
                self.unreadable += 1
                continue
            with file:
                yield below if self._top == "." else path, self._blocks(file)

    def _names(self) -> Iterator[str]:
        """Paths from the top, directory by directory."""
        rules = IgnoreRules() if self._all else IgnoreRules.above(self._top)
        stack = [self._entered(rules, "")]
        while stack:
            entries, below, rules = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                continue
            name = below + entry.name
            if entry.name == ".git":  # a file in a linked working tree
                continue
            if entry.is_dir(follow_symlinks=False):
                if not rules.match(name + "/"):
                    try:
                        stack.append(self._entered(rules, name + "/"))
                    except OSError:
                        self.unreadable += 1
            elif entry.is_file(follow_symlinks=False) and self._wanted(name, rules):
                yield name

    def _entered(self, rules: IgnoreRules, below: str) -> tuple[Iterator[os.DirEntry[str]], str, IgnoreRules]:
        entries = sorted_entries(os.path.join(self._top, below))
        return iter(entries), below, rules if self._all else rules.within(self._top, below)

    def _wanted(self, name: str, rules: IgnoreRules) -> bool:
        return (self._only is None or self._only.match_file(name)) and not rules.match(name)

    def _blocks(self, file: FileIO) -> Iterator[bytes]:
        """A file in blocks that end with a line, unless the line is longer; nothing if it is binary."""
        rest = b""
        for number, chunk in enumerate(self._chunks(file)):
            if not number and b"\0" in chunk[:SNIFFED]:
                return
            cut = chunk.rfind(b"\n") + 1
            if not cut and len(rest) + len(chunk) < BLOCK:
                rest += chunk
                continue
            yield rest + chunk[: cut or None]
            rest = chunk[cut:] if cut else b""
        if rest:
            yield rest

    def _chunks(self, file: FileIO) -> Iterator[bytes]:
        try:
            while chunk := os.read(file.fileno(), BLOCK):
                yield chunk
        except OSError:
            self.unreadable += 1


def _found(name: str, blocks: Iterator[bytes], query: _Query) -> Iterator[tuple[bool, str]]:
    """Hits (true) and the lines around them (false), as they are to be shown."""
    name, search = shown(name), query.search
    before: deque[tuple[int, str]] = deque(maxlen=query.context)
    last, after = 0, 0
    for number, line in _lines(blocks, query.literal):
        if match := search(line):
            if query.context and last and number - len(before) > last + 1:
                yield False, "--\n"
            for earlier, text in before:
                yield False, f"{name}-{earlier}-{_cut(text, 0)}\n"
            before.clear()
            yield True, f"{name}:{number}:{_cut(line, match.start())}\n"
            last, after = number, query.context
        elif after:
            yield False, f"{name}-{number}-{_cut(line, 0)}\n"
            last, after = number, after - 1
        else:
            before.append((number, line))


def _cut(line: str, at: int) -> str:
    if len(line) <= MAX_SHOWN:
        return line
    start = max(0, min(at - LEAD, len(line) - MAX_SHOWN))
    end = start + MAX_SHOWN
    return f"{'…' * (start > 0)}{line[start:end]}{'…' * (end < len(line))}"


def _lines(blocks: Iterator[bytes], literal: str) -> Iterator[tuple[int, str]]:
    """Numbered lines; whole blocks without `literal` are passed over."""
    number = 1
    for block in blocks:
        text = block.decode(errors="replace")
        if not literal or literal in text:
            lines: Iterable[str] = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
            yield from enumerate(lines, number)
        number += block.count(b"\n")
