"""fs.glob: paths that match a pattern, found in one walk.

Rules: the pattern is a list of parts, and the walk keeps the set of parts that may match next. So each
directory is read once, however many ** the pattern has, and no path is found twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import translate
from functools import partial
from typing import Annotated, NamedTuple

from cortexfs.sdk import InvalidInput, ToolEffect, ToolEffectKind, ToolRuntime, tool
from cortexfs.tools.support.paths import at_least, checked, shown, sorted_entries
from cortexfs.tools.support.walk import Walk

_MAGIC = re.compile(r"[*?\[]")
_ANY = None  # stands for **: any number of directories


@tool(
    name="fs.glob",
    effects=[ToolEffect(ToolEffectKind.READ_FILE)],
    background_safe=True,
    emits_progress=True,
    description="""\
Find files and directories by name: one path on each line, directories with a slash at the end, sorted \
directory by directory. Paths begin with the given path, so that other tools can take them as they are.
In the pattern, * stands for anything within one name, ? for one character, [abc] and [!abc] for one of \
a set, and ** for any number of directories (src/**/*.py). Names that begin with a dot match only where \
the pattern has the dot, unless all is true. ** does not go through symbolic links. A pattern that ends \
in / finds directories only.
Use it to find files whose names you know in part. When there are more than max_results, a last line \
that begins with "..." says so.
Do not use it to search in contents (fs.search). There are no {a,b} alternatives: call it for each.""",
)
def glob(
    runtime: ToolRuntime,
    pattern: Annotated[str, "What to find, as in **/*.py."],
    path: Annotated[str, "The directory to search in."] = ".",
    max_results: Annotated[int, "At most so many paths."] = 1000,
    all: Annotated[bool, "* ? and ** also match names that begin with a dot."] = False,
) -> Iterator[str]:
    at_least(1, max_results=max_results)
    words = [word for word in checked(pattern, "pattern").split("/") if word not in ("", ".")]
    if pattern.startswith("/"):
        path = "/"
    while len(words) > 1 and not _MAGIC.search(words[0]):
        word = words.pop(0)
        path = word if path == "." else os.path.join(checked(path), word)
    if not words or ".." in words:
        raise InvalidInput("pattern: name what to find; .. can stand only at its beginning")
    search = _Search(words, pattern.endswith("/"), all)
    for found, piece in enumerate(search.paths(checked(path))):
        if found == max_results:
            yield f"... there are more than {max_results}; narrow the pattern or raise max_results\n"
            break
        yield piece
    if search.walk.unreadable:
        runtime.emit_progress(f"{search.walk.unreadable} directories could not be read")


class _Entry(NamedTuple):
    name: str
    is_directory: bool
    is_link: bool


class _Search:
    """One walk. A state is the index of the part that may match next."""

    def __init__(self, words: list[str], only_directories: bool, all: bool) -> None:
        if words[-1] == "**":
            words = [*words, "*"]
        self._parts = [_ANY if word == "**" else re.compile(translate(word)) for word in words]
        self._dotted = [all or word.startswith(".") for word in words]
        self._all = all
        self._only_directories = only_directories
        self.walk = Walk[tuple[Iterator[_Entry], set[int]]]()

    def paths(self, top: str) -> Iterator[str]:
        walk, lead = self.walk, "" if top == "." else os.path.join(top, "")
        walk.start(top, partial(_listing, states=self._closed({0})))
        while walk.is_within:
            entries, states = walk.result
            entry = next(entries, None)
            if entry is None:
                walk.leave()
                continue
            on = {state + 1 for state in states if self._matches(state, entry.name)}
            if len(self._parts) in on and (entry.is_directory or not self._only_directories):
                yield f"{shown(lead + walk.below + entry.name)}{'/' * entry.is_directory}\n"
            if entry.is_directory and (below := self._below(entry, states, on)):
                walk.enter(entry.name, partial(_listing, states=below), through_link=entry.is_link)

    def _below(self, entry: _Entry, states: set[int], on: set[int]) -> set[int]:
        """Returns the states inside a directory. A part that names a link leads through it. ** does not, as a
        loop of links would have no end."""
        below = on - {len(self._parts)}
        if not entry.is_link and (self._all or not entry.name.startswith(".")):
            below |= {state for state in states if self._parts[state] is _ANY}
        return self._closed(below)

    def _matches(self, state: int, name: str) -> bool:
        part = self._parts[state]
        return part is not _ANY and (self._dotted[state] or name[0] != ".") and bool(part.match(name))

    def _closed(self, states: set[int]) -> set[int]:
        """Add the parts behind each **, which may stand for no directory."""
        for state, part in enumerate(self._parts):
            if state in states and part is _ANY:
                states = states | {state + 1}
        return states


def _listing(folder: int, states: set[int]) -> tuple[Iterator[_Entry], set[int]]:
    entries = sorted_entries(folder)
    return iter([_Entry(each.name, _is_directory(each), each.is_symlink()) for each in entries]), states


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False
