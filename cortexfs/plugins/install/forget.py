"""The remains of a plugin when its files are gone: what it has kept, and what was decided about it.

This file must never know what either of them says.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cortexfs.core import names
from cortexfs.core.errors import Fault, code_of
from cortexfs.plugins.install.decisions import DecisionStore
from cortexfs.state.beside import kept_of


def forget(state: Path, name: str) -> None:
    """Remove all of it, of all users."""
    DecisionStore(state).forget(name)
    kept = kept_of(state) / names.check(name)
    aside = kept.with_name(f".{name}")  # so that a host that still ends makes no new file there
    try:
        if aside.is_dir():  # of one that was killed
            shutil.rmtree(aside)
        if kept.is_dir():
            kept.rename(aside)
            shutil.rmtree(aside)
    except OSError as problem:
        where = problem.filename or kept
        raise Fault(code_of(problem.errno), f"{where} cannot be removed: {problem.strerror}") from None
