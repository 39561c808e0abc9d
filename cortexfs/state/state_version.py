"""The version of a state: which daemons understand it, and how an older state becomes one of today.

Main path: `settle` is called by a daemon that holds the state, before it reads anything of it.

Rules: a state of a newer version is refused, and nothing of it is changed. Before a step changes something,
all that it may change is copied to before-VERSION in the state, as a whole or not at all. A daemon that is
killed meanwhile leaves the old version, and the next one takes the steps again: a step may be taken twice.
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
DRAFT = ".copy"  # of a copy that is not whole
MEND = "docs/upgrading.md says how to go back"


class StateStep(NamedTuple):
    """From one version to the next. `parts` are the names in the state that it may change."""

    parts: tuple[str, ...]
    take: Callable[[Path], None]


def _number(state: Path) -> None:
    """States had no version before the first: they are understood as they are."""


STEPS: tuple[StateStep, ...] = (StateStep((), _number),)


def settle(state: Path, steps: Sequence[StateStep] = STEPS) -> None:
    """Make the state one of the version that there are steps to. Raises EPROTO for a newer one."""
    current, found = len(steps), version(state)
    if found > current:
        why = f"{state} is of version {found}, which a newer CortexFS has written; this one knows {current}"
        raise Fault(
            "EPROTO", f"{why}: install that one again, or name another directory with --state; {MEND}"
        )
    with os_faults(f"{state} cannot be made one of version {current}"):
        for number, step in enumerate(steps[found:], found):
            _copy(state, step.parts, state / f"{COPY}{number + 1}")
            step.take(state)
            whole_files.replace(state / FILE, [f"{number + 1}\n".encode()], 0o600)


def version(state: Path) -> int:
    """Returns 0 for a state without a version."""
    data = believed.whole(state / FILE, MAX_FILE, "version of a state")
    if data is None:
        return 0
    try:
        if (number := int(data)) > 0:
            return number
    except ValueError:
        pass
    raise Fault("EPROTO", f"{state / FILE} is no version of a state; {MEND}")


def _copy(state: Path, parts: Sequence[str], to: Path) -> None:
    """Copy what is there of these. A copy that is there already was made before anything was changed."""
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
    """Returns the sockets and pipes: to read from these is to wait."""
    kinds = {name: stat.S_IFMT(os.lstat(os.path.join(folder, name)).st_mode) for name in names}
    return [name for name, kind in kinds.items() if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)]
