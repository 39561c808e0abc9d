"""session/index: which sessions an object has, newest first, and which one was last used where.

Rules: the order is kept in memory, so that a run's end does not look at every session. All is made from the
sessions that are there; a list that an earlier life put away is believed until somebody removes something, as
a look at each of 100,000 sessions takes seconds. These calls block: they belong in a thread, one at a time.
This file must never know what a log says.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from cortexfs.sessions import disk
from cortexfs.sessions.layout import INDEX, Address, by_use, text

BY_CWD = 1000  # working directories of an object's sessions that are remembered, the ones used last
REMEMBERED = 256  # objects whose sessions' order is kept in memory


class Indexes:
    """session/index: kept in memory as an order, so that a run's end does not look at every session."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._orders: dict[Path, dict[str, None]] = {}
        self._changed: dict[Path, tuple[str, ...]] = {}
        self._believes = True  # what a list of an earlier life says

    def used(self, address: Address, cwd: str | None) -> None:
        """The session was used just now, in `cwd`; `write` when that is said of all that were."""
        above = address.parts[:-1]
        folder, order = self._order(above)
        if next(reversed(order), None) != address.session:
            order.pop(address.session, None)
            order[address.session] = None
            self._changed[folder] = above
        if cwd is not None:
            path = self._by_cwd(folder, cwd)
            if text(path) != address.session:
                self._make(above, "by-cwd")
                _make_room(path.parent)
                disk.replace(path, [address.session.encode() + b"\n"])

    def write(self) -> None:
        """Write each list once, however many of its sessions were used."""
        for folder, above in list(self._changed.items()):
            if folder in self._orders:
                self._write(folder, above, self._orders[folder])
            del self._changed[folder]

    def rebuild(self, address: Address) -> None:
        """Make list and current anew, from what is there."""
        self.forget()
        self._order(address.parts[:-1])

    def knows(self, above: tuple[str, ...]) -> bool:
        return self._root.joinpath(*above) in self._orders

    def ensure(self, above: tuple[str, ...]) -> None:
        """Have the list of a folder of sessions say what is there, whatever another life left."""
        if self._root.joinpath(*above).is_dir():
            self._order(above)

    def forget(self) -> None:
        """Somebody removed something, or the last life had a hard end: look at what is there before the next
        use."""
        self._orders.clear()
        self._believes = False

    def removed(self, address: Address, cwd: str | None) -> None:
        folder = self._root.joinpath(*address.parts).parent
        if not (folder / INDEX).is_dir():  # whoever removed it is about to remove the folder, too
            self._orders.pop(folder, None)
            return
        folder, order = self._order(address.parts[:-1])
        order.pop(address.session, None)
        self._write(folder, address.parts[:-1], order)
        if cwd and text(path := self._by_cwd(folder, cwd)) == address.session:
            path.unlink()

    def _order(self, above: tuple[str, ...]) -> tuple[Path, dict[str, None]]:
        folder = self._root.joinpath(*above)
        if folder not in self._orders:
            if len(self._orders) >= REMEMBERED:
                self.write()
                self._orders.clear()
            if kept := _kept(folder) if self._believes else []:
                self._orders[folder] = dict.fromkeys(kept)
            else:
                self._orders[folder] = dict.fromkeys(by_use(folder))
                disk.clear_graves(folder)
                self._write(folder, above, self._orders[folder])  # a crash may have left it behind
        return folder, self._orders[folder]

    def _write(self, folder: Path, above: tuple[str, ...], order: dict[str, None]) -> None:
        self._make(above)
        newest = list(reversed(order))
        disk.replace(folder / INDEX / "list", [f"{name}\n".encode() for name in newest])
        if newest:
            disk.replace(folder / INDEX / "current", [f"{newest[0]}\n".encode()])
        else:
            (folder / INDEX / "current").unlink(missing_ok=True)

    def _make(self, above: tuple[str, ...], *below: str) -> None:
        disk.make_folder(self._root, (*above, INDEX, *below))

    @staticmethod
    def _by_cwd(folder: Path, cwd: str) -> Path:
        return (
            folder / INDEX / "by-cwd" / hashlib.sha256(cwd.encode(errors="surrogateescape")).hexdigest()[:32]
        )


def _kept(folder: Path) -> list[str]:
    """The names on the list, the one that was used last at the end; none if any has come or gone since."""
    path = folder / INDEX / "list"
    with suppress(OSError):
        if path.stat(follow_symlinks=False).st_mtime_ns > folder.stat().st_mtime_ns:
            return text(path).split()[::-1]
    return []


def _make_room(by_cwd: Path) -> None:
    """Forget the directories that were used longest ago: nobody makes files here without end."""
    there = [entry for entry in os.scandir(by_cwd) if not entry.name.startswith(".")]
    if len(there) >= BY_CWD:
        there.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in there[: BY_CWD // 4]:
            os.unlink(entry)
