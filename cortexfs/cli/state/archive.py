"""A state and its configuration as one file: a compressed tar.

    cortexfs-state.json    the facts about the archive
    state/...              all but secrets, files that a daemon makes anew, and its reports about itself
    config/...             config.toml, providers and the rest
    cortexfs-end           the end of a whole archive

Rules: each file in the archive is as it was at one moment, as a daemon replaces files or only appends to
logs. Of a growing log, the archive has all whole lines. A reader trusts no name in an archive. Nothing is
written outside of the passed folder, through a link, or with a mode that lets others write. No more is
written than there is room for.
This file must never know which processes run.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import math
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Literal

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.state import no_links, state_version
from cortexfs.state.directories import Places
from cortexfs.version import VERSION

HEAD, END = "cortexfs-state.json", "cortexfs-end"
MAX_HEAD = 4096
MAX_READ = 1 << 20  # bytes at once
BLOCK = 4096  # bytes on a disk that even an empty file takes
TOPS = {"state": "the state", "config": "the configuration"}
SECRETS = "secrets"
TEAM = "team"
DRAFT = ".import-"  # the prefix of an archive's folder while it is read
# Files that a daemon makes anew, or that are about the running daemon.
LEFT_OUT = ("lock", "descriptions", "daemon.log", "daemon.log.1", "trace.jsonl")
LOG = ".jsonl"
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Errors of tarfile for a broken archive, and of the system for an impossible time or name.
_NONE = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError, OverflowError)


class ArchiveHead(msgspec.Struct, frozen=True):
    format: Literal[1]
    version: str
    state_version: int
    secrets: bool


def write(file: BinaryIO, where: Places, *, secrets: bool) -> int:
    """Write an archive. Returns the number of its files."""
    head = ArchiveHead(1, VERSION, state_version.version(where.state), secrets)
    count = 0
    with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.PAX_FORMAT) as packed:
        data = msgspec.json.encode(head)
        packed.addfile(_member(HEAD, stat.S_IFREG | 0o600, len(data)), io.BytesIO(data))
        for top, base in (("state", where.state), ("config", where.config)):
            for place, folder, name in _found(base, secrets=secrets):
                count += _add(packed, folder, name, str(PurePosixPath(top, place, name)))
        packed.addfile(_member(END, stat.S_IFREG | 0o600, 0))
    return count


def _found(base: Path, *, secrets: bool) -> Iterator[tuple[PurePosixPath, int, str]]:
    """Yields all entries below, folders before their contents: their place, a descriptor of their folder, and
    a name. Descriptors are used, as a compromised daemon could replace a folder by a link. The base itself
    may be a link of its owner's."""
    for above, folders, names, descriptor in os.fwalk(f"{base}/.", onerror=_raise):
        place = PurePosixPath(os.path.relpath(above, base))
        folders[:] = [name for name in sorted(folders) if secrets or not is_secret(place / name)]
        if not place.parts:
            folders[:] = [name for name in folders if not stays(name)]
            names = [name for name in names if not stays(name)]
        yield from ((place, descriptor, name) for name in sorted([*folders, *names]))


def _raise(problem: OSError) -> None:
    """Raises the error, as a folder that cannot be read is not empty. A folder that has just gone is no
    error."""
    if not isinstance(problem, FileNotFoundError):
        raise problem


def is_secret(place: PurePosixPath) -> bool:
    """Returns True for the folders of keys: the daemon's, the team's, and those of users' own providers."""
    return place.parts in ((SECRETS,), (TEAM,)) or (place.match(f"own/*/{SECRETS}") and len(place.parts) == 3)


def stays(name: str) -> bool:
    """Returns True for an entry of the state that is neither exported nor replaced."""
    return name in LEFT_OUT or name.startswith((state_version.COPY, DRAFT))


def _add(packed: tarfile.TarFile, folder: int, name: str, path: str) -> int:
    """Add a file, folder or link that is still there. Returns 1 for a file."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            member = _member(path, status.st_mode, 0, status.st_mtime)
            member.linkname = os.readlink(name, dir_fd=folder)
            packed.addfile(member)
        elif stat.S_ISDIR(status.st_mode):
            packed.addfile(_member(path, status.st_mode, 0, status.st_mtime))
        elif stat.S_ISREG(status.st_mode):
            with (
                no_links.held(name, _FILE, folder) as descriptor,
                open(descriptor, "rb", closefd=False) as data,
            ):
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    return 0
                size = _size_of_lines(descriptor, status.st_size) if name.endswith(LOG) else status.st_size
                packed.addfile(_member(path, status.st_mode, size, status.st_mtime), data)
        return int(stat.S_ISREG(status.st_mode))
    return 0


def _size_of_lines(descriptor: int, size: int) -> int:
    """Returns the number of bytes of a log up to its last whole line."""
    end = size
    while end:
        start = max(0, end - (1 << 16))
        if (place := os.pread(descriptor, end - start, start).rfind(b"\n")) >= 0:
            return start + place + 1
        end = start
    return 0


def _member(name: str, mode: int, size: int, mtime: float = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    kinds = {stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFDIR: tarfile.DIRTYPE}
    member.type = kinds.get(stat.S_IFMT(mode), tarfile.REGTYPE)
    member.mode, member.size, member.mtime = stat.S_IMODE(mode), size, mtime
    return member


class _Unpacked(gzip.GzipFile):
    """An unpacked archive with limited reads. A name in it may claim any length, and Python would read it at
    once, or piece by piece since 3.14."""

    allowance: float = MAX_READ  # bytes that may be read before the data of the next member

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= min(MAX_READ, self.allowance):
            raise EOFError("a name in it is too long")
        self.allowance -= size
        return super().read(size)


def _next(packed: tarfile.TarFile, data: _Unpacked) -> tarfile.TarInfo | None:
    data.allowance = MAX_READ
    found = packed.next()
    data.allowance = math.inf
    return found


def read(file: BinaryIO, into: Path, room: int) -> ArchiveHead:
    """Write an archive into an empty folder. Raises EINVAL if it is broken, or has a forbidden entry. Raises
    ENOSPC before it would take more than `room` bytes of a disk."""
    try:
        with _Unpacked(fileobj=file) as data, tarfile.open(fileobj=data, mode="r:") as packed:
            head = _head(packed, _next(packed, data))
            folders = {into / top for top in TOPS}
            for folder in folders:
                folder.mkdir(mode=0o700)
            while member := _next(packed, data):
                if member.name == END:
                    return head
                room -= max(member.size, BLOCK)
                if room < 0:
                    why = "the archive unpacks to more than half of what is free on the disk of the state"
                    raise Fault("ENOSPC", f"{why}; nothing was imported")
                _extract(packed, member, into, folders)
                packed.members.clear()  # type: ignore[attr-defined]  # else tarfile keeps them all
            raise EOFError("its end is missing")
    except _NONE as problem:
        why = "it is no gzip" if isinstance(problem, gzip.BadGzipFile) else str(problem)
        name = getattr(file, "name", "the file")
        raise Fault("EINVAL", f"{name} is damaged, or no archive of ctx state export: {why}") from None


def _head(packed: tarfile.TarFile, member: tarfile.TarInfo | None) -> ArchiveHead:
    data = member and member.isreg() and member.size <= MAX_HEAD and packed.extractfile(member)
    if not member or not data or member.name != HEAD:
        raise Fault("EINVAL", "it is no archive of ctx state export")
    try:
        return msgspec.json.decode(data.read(), type=ArchiveHead)
    except UNREADABLE as problem:
        raise Fault("EINVAL", f"it is an archive of another version: {problem}") from None


def _extract(packed: tarfile.TarFile, member: tarfile.TarInfo, into: Path, folders: set[Path]) -> None:
    """Write one entry. It may only lie in the folders made here: nothing is written through any other name,
    or through a link that has replaced such a folder meanwhile."""
    name = PurePosixPath(member.name)
    leaves = "\0" in member.name or name.is_absolute() or ".." in name.parts
    if leaves or into / name.parent not in folders or (len(name.parts) == 2 and stays(name.name)):
        raise Fault("EINVAL", f"it has {member.name!r}, which ctx state export never writes")
    try:
        with no_links.folder(into, Path(name.parent), 0o700) as above:
            if member.isdir():
                (above / name.name).mkdir(mode=member.mode & 0o755 | 0o700)
                folders.add(into / name)
            elif member.issym():
                os.symlink(member.linkname, above / name.name)
            elif member.isreg() and not member.issparse() and (data := packed.extractfile(member)):
                _write(above / name.name, member, data)
            else:
                raise Fault("EINVAL", f"its {member.name!r} is not a file, folder or link")
    except FileExistsError:
        raise Fault("EINVAL", f"it has {member.name!r} twice") from None


def _write(path: Path, member: tarfile.TarInfo, data: IO[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, member.mode & 0o755 | 0o600), "wb") as new:
        while part := data.read(1 << 20):
            new.write(part)
        new.flush()
        os.utime(new.fileno(), (member.mtime, member.mtime))
