"""A walk of a tree in which another user may replace a directory by a link at any moment.

    walk = Walk()
    walk.start(top, look)
    while walk.is_within:
        ... walk.result ...                        the result of `look` for the directory
        walk.enter(name, look)  or  walk.leave()

Main path: each directory is opened by its name in the open directory above it, and through a link only with
`through_link`. `look` gets its descriptor, by which files in it are opened.

Rules: a tree may be deeper than the limits of open files and of paths. So few directories stay open: the top,
the last HELD, and those with a link below. Any other is opened again as the ".." of the directory below it.
If that leads elsewhere by now, the rest of the directory is skipped and counted.
This file must never know what is looked for.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from cortexfs.tools.support.paths import MAX_LINKS, SAFE

T = TypeVar("T")
HELD = 8  # a host's calls share a limit of open files


class _Directory(Generic[T]):
    def __init__(self, name: str, folder: select.epoll, through_link: bool) -> None:
        self.name = name
        self.folder: select.epoll | None = folder
        self.through_link = through_link
        self.identity = (0, 0)  # while it is not open
        self.result: T


class Walk(Generic[T]):
    """The directories from the top to the present one, each with the result of `look`."""

    def __init__(self) -> None:
        self.unreadable = 0
        self._way: list[_Directory[T]] = []

    def start(self, top: str, look: Callable[[int], T]) -> None:
        """Begin at `top`, which may be a link. Raises OSError."""
        self._push("", _opened(top, 0, None), look, False)

    @property
    def is_within(self) -> bool:
        return bool(self._way)

    @property
    def result(self) -> T:
        return self._way[-1].result

    @property
    def folder(self) -> int:
        """The descriptor of the present directory, valid until the next step."""
        assert self._way[-1].folder is not None
        return self._way[-1].folder.fileno()

    @property
    def below(self) -> str:
        """The path from the top, "" or with a slash at its end. Computed on demand, as it may be long."""
        return "".join(f"{directory.name}/" for directory in self._way[1:])

    def enter(self, name: str, look: Callable[[int], T], *, through_link: bool = False) -> None:
        """Go into a directory. If it cannot be read, count it and stay."""
        try:
            if through_link and sum(directory.through_link for directory in self._way) >= MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
            folder = _opened(name, 0 if through_link else os.O_NOFOLLOW, self.folder)
            self._push(name, folder, look, through_link)
        except OSError:
            self.unreadable += 1

    def leave(self) -> None:
        folder = self._way.pop().folder
        while self._way and self._way[-1].folder is None:
            if self._reopened(self._way[-1], folder):
                return
            self.unreadable += 1
            self._way.pop()

    def _push(self, name: str, folder: select.epoll, look: Callable[[int], T], through_link: bool) -> None:
        entered = _Directory[T](name, folder, through_link)
        entered.result = look(folder.fileno())
        self._way.append(entered)
        if len(self._way) > HELD + 1:
            far, below = self._way[-HELD - 1], self._way[-HELD]
            if far.folder is not None and not below.through_link:
                far.identity = _identity(far.folder)
                far.folder = None

    def _reopened(self, directory: _Directory[T], folder: select.epoll | None) -> bool:
        assert folder is not None  # it was the deepest
        try:
            above = _opened("..", 0, folder.fileno())
            if _identity(above) == directory.identity:
                directory.folder = above
                return True
        except OSError:
            pass
        return False


def _opened(name: str, flags: int, above: int | None) -> select.epoll:
    """Returns a directory's descriptor as an object that closes itself (paths.owned). FileIO takes no
    directory, and an epoll object takes any descriptor."""
    opens = partial(os.open, dir_fd=above)
    return next(map(select.epoll.fromfd, map(opens, [name], [os.O_RDONLY | os.O_DIRECTORY | flags | SAFE])))


def _identity(folder: select.epoll) -> tuple[int, int]:
    found = os.fstat(folder.fileno())
    return found.st_dev, found.st_ino
