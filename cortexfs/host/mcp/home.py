"""The home of a program that is an MCP server, for the user as whom it runs. It lies beside the state, and
holds the program's downloads and files (host/call/plugin_state.py).

    .start    locked while a server starts; says whether one was cut, and whether one has ever greeted
    .errors   the standard error of the server that started last

Rules: HOME stays the user's own if the user can write there, as servers look there for the user's settings.
Otherwise it is this home. Caches are in this home, so that no two servers fill the same one. One server
starts at a time. Files of an interrupted start are removed before the next, unless a server has greeted in
this home.
This file must never know what a server is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from io import FileIO

import anyio

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import ERRORS

LOCK = ".start"
MAX_ERRORS = 256 << 10  # of one server; more is only in the daemon's log
TEMPORARY = "/tmp"
# A server that installs itself takes what its cache has, and does not try for minutes.
WITHOUT_NETWORK = {"npm_config_offline": "true", "UV_OFFLINE": "1"}
# What npm says of a newer npm would stand where a server's last words say why it has ended.
WITHOUT_NOTICE = {"npm_config_update_notifier": "false"}
LOCK_SECONDS = 1000.0  # the longest start of another server of this home
_CUT, _GREETED = b"cut", b"greeted"  # the content of LOCK during a first start, and from its greeting on
_PAUSE = 0.1
_WRITTEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ServerHome:
    """The home during one start. Without a path there is none, and nothing is kept."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock: FileIO | None = None
        self._errors: FileIO | None = None
        self._room = MAX_ERRORS

    def variables(self, user: Mapping[str, str]) -> dict[str, str]:
        """Returns the environment of its server, for a user with `user`."""
        if not self.path:
            return dict(user)
        own = {"XDG_CACHE_HOME": f"{self.path}/.cache", "npm_config_cache": f"{self.path}/.npm"}
        own |= WITHOUT_NOTICE
        if not is_usable(user.get("HOME", "")):
            own["HOME"] = self.path
        if not has_network():
            own |= WITHOUT_NETWORK
        if temporary := temporary_of(self.path):
            own["TMPDIR"] = temporary
        return {**user, **own}

    async def claim(self) -> None:
        """Wait until no other server starts in this home, and prepare it for this one."""
        if not self.path:
            return
        try:
            self._lock = await _alone(f"{self.path}/{LOCK}")
            mark = self._lock.read(len(_GREETED))
            if mark == _CUT:
                self._clear()
            if mark != _GREETED:
                self._note(_CUT)
            self._errors = _open_file(f"{self.path}/{ERRORS}", os.O_TRUNC)
        except OSError as error:
            self.leave()
            raise Fault("EHOSTDOWN", f"its home {self.path} cannot be used: {error.strerror}") from None

    def keep_output(self, output: bytes) -> None:
        """Keep output of the server's standard error."""
        if self._errors is not None and self._room > 0:
            with contextlib.suppress(OSError):  # a full disk is no fault of its server
                self._room -= self._errors.write(output[: self._room]) or 0

    def note_greeting(self) -> None:
        self._settle(_GREETED)

    def note_failure(self) -> None:
        """The server ended by itself, so its downloads are complete."""
        self._settle(b"")

    def leave(self) -> None:
        """Close the files. May be repeated."""
        for file in (self._lock, self._errors):
            if file is not None:
                file.close()
        self._lock = self._errors = None

    def _settle(self, mark: bytes) -> None:
        if self._lock is not None:
            self._lock.seek(0)
            if self._lock.read(len(_GREETED)) != _GREETED:
                self._note(mark)
            self._lock.close()
            self._lock = None

    def _note(self, mark: bytes) -> None:
        assert self._lock is not None
        with contextlib.suppress(OSError):
            self._lock.seek(0)
            self._lock.truncate()
            self._lock.write(mark)

    def _clear(self) -> None:
        for name in os.listdir(self.path):
            path = f"{self.path}/{name}"
            if name == LOCK:
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def has_network() -> bool:
    """Returns False if a view has closed it."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def temporary_of(home: str) -> str:
    """Returns the folder for temporary files, and sets it for this host, too; "" if it is the usual one."""
    if not home or is_usable(TEMPORARY):
        return ""
    with contextlib.suppress(OSError):
        os.makedirs(f"{home}/tmp", 0o700, exist_ok=True)
    tempfile.tempdir = f"{home}/tmp"
    return f"{home}/tmp"


def is_usable(folder: str) -> bool:
    """Returns True if this process can make files there. access(2) would not do, as it does not know a view
    that closes the folder."""
    if not folder.startswith("/"):
        return False
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        no_such_files = error.errno in (errno.EOPNOTSUPP, errno.EISDIR)
        return no_such_files and os.access(folder, os.W_OK | os.X_OK)
    return True


def _open_file(path: str, flags: int = 0) -> FileIO:
    """Open a file of a home, but no pipe: the server may have put one there, which would block its reader."""
    file = FileIO(os.open(path, _WRITTEN | flags, 0o600), "r+")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, f"{path} is no regular file")
    return file


async def _alone(path: str) -> FileIO:
    """Returns the file at `path`, once no other process has it locked."""
    file = _open_file(path)
    try:
        end = time.monotonic() + LOCK_SECONDS
        while not _try_lock(file):
            if time.monotonic() > end:
                raise Fault("EHOSTDOWN", f"the start that has locked {path} does not end")
            await anyio.sleep(_PAUSE)
    except BaseException:
        file.close()
        raise
    return file


def _try_lock(file: FileIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
