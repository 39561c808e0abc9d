"""A view without the paths that no agent may have, whatever its view shows: above all the daemon's own files.

    carved(view, caps)         the view, in which no path at or below a cap's gives more than the cap

Landlock only adds rights from the root down: a folder that is shown shows all that is in it. So of a folder
with a capped path in it, or with hidden names (HIDES, core/value_formats.py), only the names and the other
entries of this moment are shown: nothing can be made, renamed or removed there.

Rules: this runs as the caller. Paths are resolved first, so that a link does not lead around a cap. Code that
opens them afterwards has to check that they are still the same. A cap that ends in `*` is for all paths that
begin so.
This file must never know why a path is capped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from cortexfs.core.errors import Fault
from cortexfs.core.value_formats import HIDES, is_below
from cortexfs.linux.landlock import NAMES

View = Sequence[tuple[str, str]]

MOST = 20_000  # entries beside a cap: each costs the start of a host some µs


def carved(view: View, caps: View) -> list[tuple[str, str]]:
    """Both are pairs of an absolute path and letters of "rwx". Raises EACCES if it would take too long."""
    plain = [(_resolved(path), letters) for path, letters in caps]
    hiding = [os.path.realpath(path) for path, letters in view if letters == HIDES]
    found: list[tuple[str, str]] = []
    for path, letters in ((os.path.realpath(path), letters) for path, letters in view if letters != HIDES):
        hidden = [cap for folder in hiding if is_below(folder, path) for cap in _hidden(folder)]
        for entry in _visible_paths(path, letters, [*plain, *hidden]):
            found.append(entry)
            if len(found) > MOST:
                why = f"over {MOST} files lie beside folders that are hidden from it"
                raise Fault("EACCES", f"an agent cannot work in {path}: {why}; use a folder of its own")
    return found


def _resolved(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name) if name.endswith("*") else os.path.realpath(path)


def _hidden(folder: str) -> Iterator[tuple[str, str]]:
    """Returns caps for the hidden names of a folder, and for the targets of hidden links: a `.bashrc` is the
    shell's wherever it lies. A link to the folder itself, or above it, hides nothing."""
    yield f"{folder}/.*", ""
    for entry in (os.path.join(folder, name) for name in _names(folder) if name.startswith(".")):
        if os.path.islink(entry) and not is_below(folder, target := os.path.realpath(entry)):
            yield target, ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # closed to the caller, so nothing of it could be shown
        return []


def _is_of(path: str, cap: str) -> bool:
    return path.startswith(cap[:-1]) if cap[-1] == "*" else path.startswith(cap) and is_below(path, cap)


def _is_within(cap: str, folder: str) -> bool:
    return cap.startswith(folder) and cap != folder and is_below(os.path.dirname(cap), folder)


def _visible_paths(path: str, letters: str, caps: View) -> Iterator[tuple[str, str]]:
    above = [most for capped, most in caps if _is_of(path, capped)]
    letters = "".join(letter for letter in letters if all(letter in most for most in above))
    if not any(_is_within(capped, path) and set(letters) - set(most) for capped, most in caps):
        if letters:
            yield path, letters
        return
    if "r" in letters:
        yield path, NAMES
    for name in _names(path):
        entry = os.path.join(path, name)
        if not os.path.islink(entry):  # a link's target is shown at its own path, or not
            yield from _visible_paths(entry, letters, caps)
