"""The version of a state: which daemons understand it, and how an older state is brought to this version.

Main path: a daemon that holds the state calls `settle` before it reads anything of the state.

Rules: a state of a newer version is refused and not changed. Before a step changes anything, all its parts
are copied to before-VERSION in the state, as a whole or not at all. A daemon that is killed meanwhile leaves
the old version, and the next daemon takes the steps again: a step may be taken twice.
This file must never know what a daemon does with a state.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cortexfs.core.errors import Fault, os_faults
from cortexfs.state import believed, whole_files

FILE = "version"
MAX_FILE = 64
COPY = "before-"
DRAFT = ".copy"  # the suffix of an unfinished copy
MEND = "docs/upgrading.md says how to go back"


class StateStep(NamedTuple):
    """A step from one version to the next. `parts` are the names in the state that it may change."""

    parts: tuple[str, ...]
    take: Callable[[Path], None]


def _number(state: Path) -> None:
    """Change nothing: states from before the first version are understood as they are."""


STEPS: tuple[StateStep, ...] = (StateStep((), _number),)


def settle(state: Path, steps: Sequence[StateStep] = STEPS) -> None:
    """Bring the state to the version that the steps lead to. Raises EPROTO for a newer state."""
    current, found = len(steps), version(state)
    if found > current:
        why = f"{state} is of version {found}, which a newer CortexFS has written; this one knows {current}"
        raise Fault(
            "EPROTO", f"{why}: install that version again, or name another directory with --state; {MEND}"
        )
    with os_faults(f"{state} cannot be upgraded to version {current}"):
        for number, step in enumerate(steps[found:], found):
            _copy(state, step.parts, state / f"{COPY}{number + 1}")
            step.take(state)
            whole_files.replace(state / FILE, [f"{number + 1}\n".encode()], 0o600)


def version(state: Path) -> int:
    """Returns the state's version, which is 0 if the state has none."""
    data = believed.content_of(state / FILE, MAX_FILE, "version of a state")
    if data is None:
        return 0
    try:
        if (number := int(data)) > 0:
            return number
    except ValueError:
        pass
    mend = f"if this CortexFS was the last to use that state: echo {len(STEPS)} >{state / FILE}; else {MEND}"
    raise Fault("EPROTO", f"{state / FILE} does not hold the version of a state, a number; {mend}")


def _copy(state: Path, parts: Sequence[str], to: Path) -> None:
    """Copy the parts that exist. An existing copy was made before anything was changed, and stays."""
    found = [name for name in parts if os.path.lexists(state / name)]
    if not found or to.exists():
        return
    draft = to.with_name(f"{to.name}{DRAFT}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    for name in found:
        if (state / name).is_dir() and not (state / name).is_symlink():
            shutil.copytree(state / name, draft / name, symlinks=True, ignore=_neither_files_nor_folders)
        else:
            shutil.copy2(state / name, draft / name, follow_symlinks=False)
    os.sync()  # all files of the copy, before it takes its name
    whole_files.move(draft, to)


def _neither_files_nor_folders(folder: str, names: Sequence[str]) -> list[str]:
    """Returns the names of sockets and pipes: a read from these would wait."""
    kinds = {name: stat.S_IFMT(os.lstat(os.path.join(folder, name)).st_mode) for name in names}
    return [name for name, kind in kinds.items() if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)]
