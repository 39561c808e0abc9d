"""One value in one file that several processes change without losing each other's changes.

Main path: `LockedStore.update` reads the value under a lock, and writes the changed value.

Rules: a file that cannot be read is a fault, and is not overwritten. A reader needs no lock, and sees the
old value or the new one. The lock is the kernel's (flock(2)), so that no lock outlives its holder.
This file must never know what a value means.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from cortexfs.core.errors import Fault, code_of, os_faults
from cortexfs.state import believed, no_links, whole_files

T = TypeVar("T")


def json(value: object) -> bytes:
    """Returns the value as indented JSON, for people to read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


class LockedStore(Generic[T]):
    """A file with one value. Each subclass says how the value is encoded."""

    what, mend = "", ""  # of the error for an unreadable file: before the path, and at the end
    most = 4 << 20  # bytes
    mode, folder_mode = 0o600, 0o700

    def __init__(self, path: Path, empty: T) -> None:
        self.path = path
        self.lock = f".{path.name}.lock"
        self._empty = empty

    def decode(self, data: bytes) -> T:
        """Returns the value. Raises ValueError if the data is no value."""
        raise NotImplementedError

    def encode(self, value: T) -> bytes:
        return json(value)

    def read(self) -> T:
        try:
            data = believed.read(self.path, self.most)
            if len(data) > self.most:
                raise self._fault("EMSGSIZE", f"it is over {self.most >> 20} MiB")
            return self.decode(data)
        except FileNotFoundError:
            return self._empty
        except OSError as problem:
            raise self._fault(code_of(problem.errno), problem.strerror or "") from None
        except (ValueError, RecursionError) as problem:  # msgspec's and tomllib's are ValueErrors
            raise self._fault("EINVAL", str(problem)) from None

    def update(self, make: Callable[[T], T]) -> None:
        """Replace the value by `make(value)`, durably."""
        with os_faults(f"{self.path} cannot be changed"):
            self.path.parent.mkdir(mode=self.folder_mode, parents=True, exist_ok=True)
            with alone(self.path.parent, self.lock):
                known = self.read()
                if (value := make(known)) != known:
                    temporary = f".{self.path.name}.new"
                    whole_files.replace(self.path, [self.encode(value)], self.mode, name=temporary)

    def _fault(self, code: str, why: str) -> Fault:
        return Fault(code, f"{self.what}{self.path} cannot be read: {why}{self.mend}")


@contextlib.contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Hold a lock on the file `name` in the folder; others wait. The file is created and stays. Only its
    owner can open it: another user who can open a file or folder can lock it for ever."""
    with no_links.held(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
