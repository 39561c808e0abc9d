"""The removal of sessions' files. Sessions that are removed together share the syncs and the lists.

Rules: everything here blocks and belongs in a thread, while nothing is written. The name of a removed session
is free at once and for good, even if the daemon dies meanwhile. One session that cannot be removed keeps none
of the others. A full disk keeps none: the lists are written when the files are gone, else with the next list.
This file must never know tasks, nor who removes a session.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cortexfs.core.errors import bare
from cortexfs.sessions import disk, layout
from cortexfs.sessions.beside import Indexes
from cortexfs.sessions.layout import EVENTS, Address
from cortexfs.sessions.quota import size_of

TOGETHER = 128  # sessions in a turn, for which writers of other sessions wait


class Removal:
    """A session that is to be removed, and the outcome."""

    def __init__(self, address: Address, folder: Path) -> None:
        self.address = address
        self.folder = folder
        self.is_over = False
        self.cwd = ""
        self.size: int | None = None  # of its files, as far as they counted
        self.error: OSError | None = None


def discard(removals: Iterable[Removal], descriptors: disk.Descriptors, indexes: Indexes) -> None:
    """Remove the sessions' files, and set the outcomes."""
    buried: dict[Path, dict[Removal, Path]] = {}  # by the folder above
    for each in removals:
        each.is_over = True
        try:
            each.size = size_of(each.folder)
            each.cwd = layout.text(each.folder / "cwd")
            buried.setdefault(each.folder.parent, {})[each] = disk.bury(each.folder)
        except OSError as error:
            each.error = bare(error)
    for above, graves in buried.items():
        try:
            disk.sync_path(above)
        except OSError as error:
            for each in graves:
                each.error = bare(error)
        for each, grave in graves.items():
            descriptors.forget(each.folder / EVENTS)
            shutil.rmtree(grave, ignore_errors=True)
            with suppress(OSError):
                indexes.removed(each.address, each.cwd)
    with suppress(OSError):
        indexes.write()
