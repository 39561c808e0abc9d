"""The tree's files on disk: control values, aliases and homes, under <state>/tree.

    tool/fs.read.d/policy              a written control
    tool/fs.read.d/.absent.policy      a control that was removed (a policy still counts)
    tool/fs.read.d/.new.policy.7       the draft of an open file, until that is closed
    agent/home/1000/mine.d/tools       a control of an agent or tool in somebody's home
    model/home/1000/mine/m1.d/effort   a control of a model there
    links/model/main -> /ctx/model/p/m an alias, as a link
    links/home/<uid>/<class>/          homes, with their aliases

Links have a branch of their own, so that no alias ever stands where a control's folder would be.

Rules: the layout mirrors the tree, so that a person can read and repair it. A change and its folder are
on disk before the method returns. Whenever the daemon dies, a change is on disk as a whole or not at all.
A file that cannot be understood stays untouched, with a line in the log. These calls block: they belong
in a thread, and the caller lets only one run at a time.
This file must never know inodes or the kernel.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.registry import OWN, Key, plain
from cortexfs.core.tree import controls, places
from cortexfs.core.tree.written_values import Written
from cortexfs.state import believed, no_links, whole_files

LINKS = "links"
ABSENT = ".absent."
NEW = ".new."

log = logging.getLogger("cortexfs.state.control_store")


class KeptAlias(msgspec.Struct, frozen=True):
    folder: tuple[str, ...]  # ("model",) or ("home", "1000", "model")
    name: str
    target: bytes
    mtime: int


class StoredTree(msgspec.Struct, frozen=True):
    homes: list[int]
    aliases: list[KeptAlias]
    values: dict[Key, dict[str, Written]]


class Draft(NamedTuple):
    path: Path
    data: bytes


class ControlStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    # Reading, once at start.

    def load(self) -> StoredTree:
        tree = StoredTree([], [], {})
        for class_ in names.CLASSES:
            self._load_class((class_,), tree)
            self._load_aliases((class_,), tree)
        for class_ in OWN:
            for home in self._entries(self._root / class_ / "home"):
                self._load_class((class_, "home", home.name), tree)
        for home in self._entries(self._root / "model" / "home"):
            for provider in self._entries(home) if not home.name.endswith(".d") else ():
                self._load_class(("model", "home", home.name, provider.name), tree)
        for home in self._entries(self._root / LINKS / "home"):
            with self._tolerated(home):
                tree.homes.append(places.uid_of(home.name))
                for class_ in names.CLASSES:
                    self._load_aliases(("home", home.name, class_), tree)
        return tree

    def _load_class(self, folder: tuple[str, ...], tree: StoredTree) -> None:
        """Load the `.d` folders; those of models lie one level down, by provider."""
        for entry in self._entries(self._root.joinpath(*folder)):
            if entry.name.endswith(".d"):
                self._load_values((folder[0], "/".join((*folder[1:], entry.name[:-2]))), entry, tree)
            elif folder == ("model",):
                self._load_class((*folder, entry.name), tree)

    def _load_aliases(self, folder: tuple[str, ...], tree: StoredTree) -> None:
        for entry in self._entries(self._root.joinpath(LINKS, *folder)):
            with self._tolerated(entry):
                target = os.fsencode(entry.readlink())
                places.check_alias(entry.name, target)
                tree.aliases.append(KeptAlias(folder, entry.name, target, entry.lstat().st_mtime_ns))

    def _load_values(self, key: Key, folder: Path, tree: StoredTree) -> None:
        with self._tolerated(folder):
            names.check_object(*plain(key))
            entries = {entry.name: entry for entry in self._entries(folder)}
            for control in controls.CONTROLS[key[0]]:
                absent, entry = entries.get(ABSENT + control.name), entries.get(control.name)
                if absent:
                    value = Written(None, absent.lstat().st_mtime_ns, absent=True)
                    tree.values.setdefault(key, {})[control.name] = value
                if entry and control.check and (control.holds or not absent):
                    with self._tolerated(entry):
                        data = controls.judge(control, self._read(entry))
                        value = Written(data, entry.stat().st_mtime_ns, bool(absent))
                        tree.values.setdefault(key, {})[control.name] = value

    def _read(self, entry: Path) -> bytes:
        try:
            return believed.read(entry, controls.MAX_VALUE)
        except believed.UntrustedFile as fault:  # earlier versions let the umask choose the files' modes
            why = f"{fault.message}; for all files there: chmod -R go-w {self._root}"
            raise believed.UntrustedFile(fault.code, why) from None

    @contextlib.contextmanager
    def _tolerated(self, path: Path) -> Iterator[None]:
        try:
            yield
        except believed.UntrustedFile:  # the control's default might allow more
            raise
        except (Fault, OSError) as error:
            log.warning("%s is ignored: %s", path, error)

    def _entries(self, folder: Path) -> list[Path]:
        """Returns the entries of a folder. Removes unfinished drafts that a crash left."""
        try:
            believed.folder(folder)
            entries = sorted(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        for entry in entries:
            if entry.name.startswith(NEW) and not stat.S_ISDIR(entry.lstat().st_mode):
                entry.unlink(missing_ok=True)
        return [entry for entry in entries if not entry.name.startswith(NEW)]

    # Writing.

    def draft(self, key: Key, name: str, number: int, data: bytes) -> Draft:
        """Write what may become the value to the disk, so that the disk has room for it."""
        with whole_files.draft(self._control_folder(key) / name, f"{NEW}{name}.{number}") as path:
            whole_files.write(path, [data], 0o644)
        return Draft(path, data)

    def put_value(self, key: Key, name: str, data: bytes, draft: Draft | None = None) -> None:
        folder = self._control_folder(key)
        with whole_files.draft(folder / name, NEW + name) as new:
            if draft and draft.data == data and draft.path.exists():
                new = draft.path
            else:
                whole_files.write(new, [data], 0o644)
            # The mark goes first: if we die in between, the value counts that counted while it was absent.
            (folder / (ABSENT + name)).unlink(missing_ok=True)
            whole_files.move(new, folder / name)

    def remove_value(self, key: Key, name: str, *, holds: bool) -> None:
        folder = self._control_folder(key)
        (folder / (ABSENT + name)).touch()
        if not holds:
            (folder / name).unlink(missing_ok=True)
        whole_files.sync(folder)

    def reset_value(self, key: Key, name: str) -> None:
        self._unlink(key, name, ABSENT + name)

    def restore_value(self, key: Key, name: str) -> None:
        self._unlink(key, ABSENT + name)

    def _unlink(self, key: Key, *names: str) -> None:
        folder = self._control_folder(key)
        for name in names:
            (folder / name).unlink(missing_ok=True)
        whole_files.sync(folder)

    def drop_values(self, key: Key) -> None:
        """Remove all written values of an object that is gone. Files that somebody else put there stay."""
        folder = self._root.joinpath(key[0], *f"{key[1]}.d".split("/"))
        if not folder.is_dir():
            return
        with no_links.folder(self._root, folder.parent.relative_to(self._root), 0o700) as above:
            with no_links.folder(above, folder.name, 0o700) as held:
                drafts = [name for name in os.listdir(held) if name.startswith(NEW)]
                written = [control.name for control in controls.CONTROLS[key[0]]]
                for name in (*drafts, *written, *(ABSENT + name for name in written)):
                    (held / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                (above / folder.name).rmdir()
            whole_files.sync(above)

    def put_alias(self, folder: tuple[str, ...], name: str, target: bytes) -> None:
        whole_files.link(self._folder(LINKS, *folder) / name, target, NEW + name)

    def remove_alias(self, folder: tuple[str, ...], name: str) -> None:
        place = self._folder(LINKS, *folder)
        (place / name).unlink(missing_ok=True)
        whole_files.sync(place)

    def move_alias(self, old: tuple[str, ...], name: str, new: tuple[str, ...], new_name: str) -> None:
        source, target = self._folder(LINKS, *old), self._folder(LINKS, *new)
        (source / name).rename(target / new_name)
        whole_files.sync(target)
        whole_files.sync(source)

    def put_home(self, uid: int) -> None:
        self._folder(LINKS, "home", str(uid))

    def _control_folder(self, key: Key) -> Path:
        return self._folder(key[0], *(key[1] + ".d").split("/"))

    def _folder(self, *parts: str) -> Path:
        """Returns the folder. Creates missing folders, and syncs the parent of each new one."""
        folder = self._root
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in parts:
            parent, folder = folder, folder / part
            if not folder.is_dir():
                folder.mkdir(mode=0o700)
                whole_files.sync(parent)
        return folder
