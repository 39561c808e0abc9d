"""fs.search: a regular expression over a tree of text files.

Main path: `search` takes blocks of files from `_Files`, searches several of them at a time as a piece
(`_Batch`), and passes the lines of each file to its `_Shown`.

Rules: memory depends on the size of a block and a piece, never on that of a file; hits are streamed. Python's
`re` never runs a caller's pattern, as some take exponential time: tools/support/ripgrep.py searches.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import FileIO
from itertools import islice
from stat import S_ISDIR, S_ISREG
from typing import Annotated, NamedTuple

from pathspec import GitIgnoreSpec

from cortexfs.sdk import ExecutionFailed, InvalidInput, ToolEffect, ToolEffectKind, ToolRuntime, tool
from cortexfs.tools.support.gitignore import IgnoreRules
from cortexfs.tools.support.linear_pattern import Pattern, parsed
from cortexfs.tools.support.paths import at_least, checked, open_into, opened_regular, shown, sorted_entries
from cortexfs.tools.support.ripgrep import Ripgrep
from cortexfs.tools.support.walk import Walk

BLOCK = 1 << 20  # bytes; a longer line is searched in parts of this size
MAX_SHOWN = 500  # characters of a line that are shown
LEAD = 100  # characters shown before the match in a long line
BATCH = 200  # lines for each piece of output
TOGETHER = 16  # files open at a time
SMALL = BLOCK // TOGETHER  # a file up to this size is read in one call
SNIFFED = 8192  # a NUL within these first bytes marks a binary file, as in git
PIECE = 2 << 20  # characters searched at a time; fewer if reading takes longer than PATIENCE
PATIENCE = 0.2  # seconds


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
of Python's re, for each line by itself, but without lookahead and lookbehind, backreferences, conditions, \
atomic groups and possessive repetition, which are EINVAL; put a backslash before . ( ) [ ] { } * + ? ^ $ | \
to mean the character. Every pattern takes time in proportion to the text. No hit is empty output, no error.
Use it to find where something is defined, used or written. When there are more than max_results hits, a \
last line that begins with "..." says so.
Do not use it to find files by name (fs.glob) or to read a file that you know (fs.read).""",
)
def search(
    runtime: ToolRuntime,
    pattern: Annotated[str, "A regular expression, without lookaround and backreferences."],
    path: Annotated[str, "The directory or file to search in."] = ".",
    glob: Annotated[str | None, "Only files that match, as in *.py or src/**/*.c."] = None,
    ignore_case: Annotated[bool, "Take upper and lower case as the same."] = False,
    context: Annotated[int, "So many lines before and after each hit."] = 0,
    max_results: Annotated[int, "At most so many hits."] = 1000,
    all: Annotated[bool, "Also files that .gitignore excludes."] = False,
) -> Iterator[str]:
    at_least(0, context=context)
    at_least(1, max_results=max_results)
    expression = parsed(pattern, ignore_case)
    only = _only(glob)
    engine = Ripgrep(runtime, expression)
    batch = _Batch(expression, engine, context)
    files = _Files(checked(path), only, all)
    rest = max_results
    for lines in _found(runtime, files, batch):
        ready: list[str] = []
        for is_hit, line in lines:
            rest -= is_hit
            if rest < 0:
                yield "".join(ready)
                yield f"... there are more than {max_results} hits; narrow the search or raise max_results\n"
                return
            ready.append(line)
            if len(ready) == BATCH:
                yield "".join(ready)
                ready.clear()
        if ready:
            yield "".join(ready)
    if expression.plain is None and not engine.has_run:
        engine.hits("")  # refuses a pattern that is too large even if there is no text
    if files.unreadable:
        runtime.emit_progress(f"{files.unreadable} files and directories could not be read")


def _found(runtime: ToolRuntime, files: _Files, batch: _Batch) -> Iterator[Iterator[tuple[bool, str]]]:
    """Yields the lines of each block that has hits."""
    needed = batch.needed
    for name, blocks in files.blocks():
        if runtime.cancelled:
            raise ExecutionFailed("cancelled", "ECANCELED")
        number = 1
        for block in blocks:
            if needed in block:
                text = block.decode(errors="replace")
                yield from batch.add(name, number, text.replace("\r\n", "\n") if "\r" in text else text)
            number += block.count(b"\n")
    yield from batch.searched()


def _only(glob: str | None) -> GitIgnoreSpec | None:
    try:
        return None if glob is None else GitIgnoreSpec.from_lines([checked(glob, "glob")])
    except ValueError as error:
        raise InvalidInput(f"glob: it is not a pattern: {error}") from None


class _Block(NamedTuple):
    name: str
    number: int  # of the first line
    text: str


class _Batch:
    """Blocks of files that are searched together."""

    def __init__(self, expression: Pattern, engine: Ripgrep, context: int) -> None:
        self._plain = expression.plain
        self._engine = engine
        self._context = context
        self._blocks: list[_Block] = []
        self._size = 0
        self._due = 0.0
        self._printer: _Shown | None = None
        self.needed = b""  # bytes that each block with a hit holds, if known
        if expression.plain is not None and not context and "\ufffd" not in expression.plain:
            self.needed = expression.plain.encode(errors="replace")

    def add(self, name: str, number: int, text: str) -> Iterator[Iterator[tuple[bool, str]]]:
        plain = self._plain
        if plain is not None:
            if self._context or plain in text:
                lines = _lines(text)
                hits = {at for at, line in enumerate(lines) if plain in line}
                yield self._file(name).lines(number, lines, hits)
            return
        if not self._blocks:
            self._due = time.monotonic() + PATIENCE
        self._blocks.append(_Block(name, number, text))
        self._size += len(text)
        if self._size >= PIECE or time.monotonic() >= self._due:
            yield from self.searched()

    def searched(self) -> Iterator[Iterator[tuple[bool, str]]]:
        if not self._blocks:
            return
        blocks, self._blocks, self._size = self._blocks, [], 0
        texts = [block.text + "\n" * (not block.text.endswith("\n")) for block in blocks]
        hits = deque(self._engine.hits("".join(texts)))
        first = 0
        for name, number, text in blocks:
            if not hits and not self._context:
                return
            past = first + text.count("\n") + (not text.endswith("\n"))
            matches = set()
            while hits and hits[0] < past:
                matches.add(hits.popleft() - first)
            if matches or self._context:
                yield self._file(name).lines(number, _lines(text), matches)
            first = past

    def _file(self, name: str) -> _Shown:
        """Returns the `_Shown` of a file. The blocks of a file are consecutive."""
        if self._printer is None or self._printer.path != name:
            self._printer = _Shown(name, self._context, self._engine.leads)
        return self._printer


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n")


class _Looked(NamedTuple):
    """A directory, as runs of consecutive files, each followed by a subdirectory."""

    runs: Iterator[tuple[list[str], str | None]]
    rules: IgnoreRules
    depth: int  # characters in its path from the top


class _Files:
    """The text files of a tree in order, as blocks of whole lines."""

    def __init__(self, top: str, only: GitIgnoreSpec | None, all: bool) -> None:
        self._top = top
        self._only = only
        self._all = all
        self._walk = Walk[_Looked]()

    @property
    def unreadable(self) -> int:
        return self._walk.unreadable

    def blocks(self) -> Iterator[tuple[str, Iterable[bytes]]]:
        if not S_ISDIR(os.stat(self._top).st_mode):
            with opened_regular(self._top) as file:
                yield self._top, self._blocks(file, b"")
            return
        for paths, files in self._opened():
            try:
                yield from zip(paths, self._read(files), strict=True)
            finally:
                for file in files:
                    file.close()

    def _opened(self) -> Iterator[tuple[list[str], list[FileIO]]]:
        """Yields TOGETHER files at a time, opened while their directory is open."""
        top = "" if self._top == "." else os.path.join(self._top, "")
        paths: list[str] = []
        files: list[FileIO] = []
        for below, listing in self._listings():
            names = iter(listing)
            while part := list(islice(names, TOGETHER - len(files))):
                paths += [f"{top}{below}{name}" for name in self._open(files, part)]
                if len(files) == TOGETHER:
                    yield paths, files
                    paths, files = [], []
        yield paths, files

    def _open(self, files: list[FileIO], names: list[str]) -> list[str]:
        """Open these files, and return the names of the opened ones."""
        before = len(files)
        while (count := len(files) - before) < len(names):
            try:
                open_into(files, self._walk.folder, names[count:])
            except OSError:
                self._walk.unreadable += 1
                del names[len(files) - before]
        return names

    def _read(self, files: list[FileIO]) -> Iterator[Iterable[bytes]]:
        """Yields the blocks of each file. Small files, which are the most, are read in one call."""
        numbers = list(map(FileIO.fileno, files))
        sizes = [status.st_size if S_ISREG(status.st_mode) else -1 for status in map(os.fstat, numbers)]
        texts: list[bytes] = []
        with suppress(OSError):  # reading the failed file in blocks reports it
            texts.extend(map(os.read, numbers, [size + 1 if 0 < size <= SMALL else 0 for size in sizes]))
        texts += [b""] * (len(files) - len(texts))
        for file, size, text in zip(files, sizes, texts, strict=True):
            if size < 0:
                self._walk.unreadable += 1
                yield ()
            elif text and len(text) == size:
                yield () if b"\0" in text[:SNIFFED] else (text,)
            else:  # the file is large, is being written, or has no size
                yield self._blocks(file, text)

    def _listings(self) -> Iterator[tuple[str, list[str]]]:
        """Yields the path of the walk's directory from the top, and names of files in it."""
        walk = self._walk
        above = IgnoreRules() if self._all else IgnoreRules.above(self._top)
        walk.start(self._top, partial(self._listing, rules=above, depth=0))
        while walk.is_within:
            runs, rules, depth = walk.result
            names, name = next(runs)
            has_rules = rules.file is not None
            below = walk.below if names or has_rules else ""
            if self._only is not None:
                names = [each for each in names if self._only.match_file(below + each)]
            if has_rules:
                names = [each for each in names if not rules.match(below + each)]
            if names:
                yield below, names
            if name is None:
                walk.leave()
            elif not has_rules or not rules.match(f"{below}{name}/"):
                walk.enter(name, partial(self._listing, rules=rules, depth=depth + len(name) + 1))

    def _listing(self, folder: int, rules: IgnoreRules, depth: int) -> _Looked:
        runs: list[tuple[list[str], str | None]] = []
        names: list[str] = []
        for entry in sorted_entries(folder):
            if entry.name == ".git":  # a file in a linked working tree
                continue
            if entry.is_dir(follow_symlinks=False):
                runs.append((names, entry.name))
                names = []
            elif entry.is_file(follow_symlinks=False):
                names.append(entry.name)
        runs.append((names, None))
        return _Looked(iter(runs), rules if self._all else rules.within(folder, depth), depth)

    def _blocks(self, file: FileIO, start: bytes) -> Iterator[bytes]:
        """Yields a file in blocks of whole lines; a longer line is split. `start` has been read already.
        Yields nothing for a binary file."""
        rest = b""
        for number, chunk in enumerate(self._chunks(file, start)):
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

    def _chunks(self, file: FileIO, start: bytes) -> Iterator[bytes]:
        """Yields chunks, the first of SNIFFED bytes at least. Reads each byte once, as some files cannot
        seek."""
        try:
            while len(start) < SNIFFED and (more := os.read(file.fileno(), BLOCK)):
                start += more
            if start:
                yield start
            while chunk := os.read(file.fileno(), BLOCK):
                yield chunk
        except OSError:
            self._walk.unreadable += 1


class _Shown:
    """The shown lines of one file: hits (True) and the lines around them (False)."""

    def __init__(self, name: str, context: int, leads: Callable[[list[str]], list[int]]) -> None:
        self.path = name
        self._name = shown(name)
        self._context = context
        self._leads = leads
        self._before: deque[tuple[int, str]] = deque(maxlen=context)
        self._last, self._after = 0, 0

    def lines(self, first: int, lines: list[str], hits: set[int]) -> Iterator[tuple[bool, str]]:
        # The matching lines by index. The start of the match is needed for long lines only.
        found = {at: lines[at] for at in sorted(hits)}
        if long := [at for at, line in found.items() if len(line) > MAX_SHOWN]:
            for at, lead in zip(long, self._leads([lines[at] for at in long]), strict=True):
                found[at] = _cut(lines[at], lead)
        if not self._context:
            for at, line in found.items():
                yield True, f"{self._name}:{first + at}:{line}\n"
            return
        name, before = self._name, self._before
        for at, line in enumerate(lines):
            number = first + at
            if at in found:
                if self._last and number - len(before) > self._last + 1:
                    yield False, "--\n"
                for earlier, text in before:
                    yield False, f"{name}-{earlier}-{_cut(text, 0)}\n"
                before.clear()
                yield True, f"{name}:{number}:{found[at]}\n"
                self._last, self._after = number, self._context
            elif self._after:
                yield False, f"{name}-{number}-{_cut(line, 0)}\n"
                self._last, self._after = number, self._after - 1
            else:
                before.append((number, line))


def _cut(line: str, at: int) -> str:
    if len(line) <= MAX_SHOWN:
        return line
    start = max(0, min(at - LEAD, len(line) - MAX_SHOWN))
    end = start + MAX_SHOWN
    return f"{'…' * (start > 0)}{line[start:end]}{'…' * (end < len(line))}"
