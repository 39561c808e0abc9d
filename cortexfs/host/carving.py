"""A view without what no agent is to have, whatever its view shows: the daemon's own files, above all.

    carved(view, caps)         the view, in which no path at or below a cap's gives more than the cap

Landlock only adds rights from the root down: a folder that is shown shows all that is in it. So a folder
that holds something capped is shown by what else is in it, as it is now, and of itself its names only.

Rules: this runs as the caller. Paths are resolved first, so that a link does not lead around a cap; whoever
opens them afterwards has to look whether they still are what they were.
This file must never know why a path is capped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from cortexfs.core.errors import Fault
from cortexfs.core.formats import is_below

View = Sequence[tuple[str, str]]

NAMES = "n"  # the letter for a folder's names alone (landlock.py)
MOST = 20_000  # entries beside a cap: each costs the start of a host some µs


def carved(view: View, caps: View) -> list[tuple[str, str]]:
    """Both as pairs of an absolute path and letters of "rwx"; EACCES where it would take too long."""
    plain = [(os.path.realpath(path), letters) for path, letters in caps]
    found: list[tuple[str, str]] = []
    for path, letters in view:
        for entry in _shown(os.path.realpath(path), letters, plain):
            found.append(entry)
            if len(found) > MOST:
                why = f"there are over {MOST} files beside what an agent may not see"
                raise Fault("EACCES", f"an agent cannot work in {path}: {why}; use a folder of its own")
    return found


def _is_within(path: str, folder: str) -> bool:
    return path != folder and is_below(path, folder)


def _shown(path: str, letters: str, caps: View) -> Iterator[tuple[str, str]]:
    above = [most for capped, most in caps if is_below(path, capped)]
    letters = "".join(letter for letter in letters if all(letter in most for most in above))
    if not any(_is_within(capped, path) and set(letters) - set(most) for capped, most in caps):
        if letters:
            yield path, letters
        return
    if "r" in letters:
        yield path, NAMES
    try:
        names = os.listdir(path)
    except OSError:  # closed to the caller, so that there is nothing to show of it
        return
    for name in names:
        entry = os.path.join(path, name)
        if not os.path.islink(entry):  # what it leads to is shown where it is, or not
            yield from _shown(entry, letters, caps)
