"""The descriptions of plugins, kept on the disk, so that a daemon need not ask for them at each start.

Descriptions are kept for plugins of code with a digest of their files (`hostcalls.Plugin.files`). To ask one
takes a process and the time to load it, from ten milliseconds to a hundred, and there may be a thousand. The
built-in tools are such a plugin, so that a mount does not wait for the fork server. A server is asked each
time, as its tools are not in its plugin's files.

Rules: the key of a description is all that the host was sent, with the digest of the plugin's files, and the
surroundings: this version of the program, the interpreter, the packages. Of packages only names, sizes and
times are read, and no code of them runs. Only files that no other user could have written count, and their
reader checks them like a new description. An odd or missing file means that the plugin is asked. A
description that cannot be written is not kept.
This file must never know the meaning of a description.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import sys
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

import msgspec

from cortexfs.core import hostcalls
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.state import stamps, whole_files
from cortexfs.version import VERSION

FOLDER = "descriptions"
KINDS = ("python", hostcalls.NATIVE, hostcalls.WASM, hostcalls.ESM)
MAX_FILE = 16 << 20


class _Answer(msgspec.Struct, frozen=True):
    asked: str
    said: msgspec.Raw


class Descriptions:
    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER
        self._around = _surroundings()

    def renew(self) -> None:
        """Look at the surroundings of plugins again."""
        self._around = _surroundings()

    def key(self, plugin: hostcalls.Plugin) -> str:
        """Returns the key of a plugin's description, or "" if it is not kept."""
        if plugin.kind not in KINDS or not plugin.files:
            return ""
        return hashlib.sha256(self._around + b"\0" + msgspec.msgpack.encode(plugin)).hexdigest()

    def get(self, name: str, key: str) -> bytes | None:
        try:
            answer = msgspec.json.decode(_read(self._folder / name), type=_Answer)
        except (OSError, *UNREADABLE):
            return None
        return bytes(answer.said) if answer.asked == key else None

    def put(self, name: str, key: str, description: bytes) -> None:
        """Keep a description if possible. A full disk is no fault."""
        if _surroundings() != self._around:  # they changed: the description may be of the old or the new ones
            return
        data = msgspec.json.encode(_Answer(key, msgspec.Raw(description)))
        if len(data) <= MAX_FILE:
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700, exist_ok=True)
                whole_files.replace(self._folder / name, [data], 0o600, name=f".{name}", durable=False)

    def sweep(self, names: Collection[str]) -> None:
        """Remove the descriptions of plugins that are not among `names`."""
        for name in os.listdir(self._folder) if self._folder.is_dir() else ():
            if name not in names:
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink()


def _read(path: Path) -> bytes:
    """Reads a file that no other user can have written. Raises OSError for any other file."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(path)
        if status.st_size > MAX_FILE:
            raise OSError(path)
        return file.read(MAX_FILE)


def _surroundings() -> bytes:
    words = (VERSION, sys.version, platform.machine(), str(os.geteuid()), every_mark())
    return "\0".join(words).encode()


MAX_FILES = 4096  # of one package: each load of plugins looks at them
_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")


def every_mark() -> str:
    """Returns a mark of the installed packages, which each change by a package manager changes."""
    found = [f"{place}/{name}" for place in sys.path for name in _listed(place) if name.endswith(_INSTALLED)]
    return stamps.of_files(found)


def own_mark() -> str:
    """Returns a mark of our own files that make the built-in tools' description."""
    top = Path(__file__).parent.parent
    folders = (os.walk(top / name) for name in ("core", "host", "sdk", "tools"))
    found = (f"{place}/{name}" for folder in folders for place, _, names in folder for name in names)
    return stamps.of_files(sorted(path for path in found if path.endswith(".py")))


def mark(name: str, location: str, module: str) -> str:
    """Returns a mark of the files of the package with this module, or "" if they are unknown."""
    package = next(iter(metadata.distributions(name=name, path=[location])), None)
    if package is None or package.read_text("RECORD") is None:
        return ""
    files = package.files or ()
    tops = {file.parts[0].partition(".")[0] for file in files if file.parts}
    if module.partition(".")[0] not in tops or len(files) > MAX_FILES:
        return ""
    return stamps.of_files(str(package.locate_file(file)) for file in files)


def _listed(place: str) -> list[str]:
    try:
        return sorted(os.listdir(place))
    except OSError:  # the entry is an archive, or does not exist
        return []
