"""`ctx state`: copy a daemon's state and configuration into one file, and back.

Rules: only the owner of a state reads it. The parts that an import replaces are moved aside, and kept until
the next import. Nothing is replaced before the whole archive was read and is known to fit. Secrets that are
not in an archive stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cortexfs.cli import daemons, mounts, output
from cortexfs.cli.mount import mount
from cortexfs.cli.output import say
from cortexfs.cli.parser import MOUNTED, Command, arg, flag
from cortexfs.cli.state import archive
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault, os_faults
from cortexfs.state import believed, directories, no_links, state_lock, state_version, whole_files
from cortexfs.state.directories import Places

ASIDE = "before-import"


def export(options: argparse.Namespace) -> None:
    where, path = daemons.places_of(options), Path(options.file)
    if not where.state.is_dir():
        raise Fault("ENOENT", f"there is no state at {where.state}; name one with --state")
    believed.folder(where.state)
    with os_faults(f"{path} cannot be written"), whole_files.draft(path) as new:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            count = archive.write(file, where, secrets=options.secrets)
            file.flush()
            os.fsync(file.fileno())
        whole_files.move(new, path)
    about = "with secrets: let no other user read it" if options.secrets else "without secrets"
    say(f"wrote {path}: {count} files, {about}")


def import_(options: argparse.Namespace) -> int:
    where = daemons.places_of(options)
    directories.create(where)
    believed.folder(where.state)
    with open(options.file, "rb") as file, _read(file, where) as found:
        if not options.yes and not output.sure(f"replace the state {where.state} and {where.config}?"):
            return EXIT_FAILED
        root = _mounted_with(options, where)
        if root is None:
            with state_lock.unserved(where.state) as is_ours:
                if not is_ours:
                    raise Fault("EBUSY", f"a daemon uses {where.state}; name its mount with --root")
                _put(found, where)
        else:
            options.point, options.state, options.config = root, str(where.state), str(where.config)
            if (status := mount.restart(options, between=lambda: _put(found, where))) != EXIT_OK:
                return status
    say(f"imported {options.file}; what was there is in {where.state / ASIDE} until the next import")
    return EXIT_OK


@contextlib.contextmanager
def _read(file: BinaryIO, where: Places) -> Iterator[Path]:
    """Yields a folder with the unpacked archive, on the disk of the state. A compromised daemon could replace
    it, or a folder in it, by a link, until that daemon has ended."""
    with os_faults(f"{where.state} cannot be written"):
        folder = Path(tempfile.mkdtemp(prefix=archive.DRAFT, dir=where.state))
    try:
        with no_links.folder(where.state, folder.name, 0o700) as found:
            try:
                disk = os.statvfs(found)  # half of it, as the replaced parts stay until the next import
                head = archive.read(file, found, disk.f_bavail * disk.f_frsize // 2)
                if head.state_version > len(state_version.STEPS):
                    why = f"it is of a newer CortexFS ({head.version}) than this one; install that one first"
                    raise Fault("EPROTO", why)
                yield found
            except Fault as fault:
                raise Fault(fault.code, fault.message.replace(str(found), str(folder))) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mounted_with(options: argparse.Namespace, where: Places) -> str | None:
    """Returns the mount whose daemon has this state, or None if no daemon has it."""
    with state_lock.unserved(where.state) as is_ours:
        if is_ours:
            return None
    root = mounts.root(options.root)
    found = mounts.mounted_at(root)
    daemon = daemons.of(found) if found else None
    if daemon:
        daemon.process.close()
    if daemon is None or Path(daemon.state) != where.state:
        raise Fault(
            "EBUSY", f"a daemon uses {where.state}, but not the daemon of {root}; name its mount with --root"
        )
    return root


def _put(found: Path, where: Places) -> None:
    """Put the new parts in the place of the old ones, or none of them if one cannot be moved. After a kill,
    all parts of both are still there, in two folders."""
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as back:
        new = {top: stack.enter_context(no_links.folder(found, top, 0o700)) for top in archive.TOPS}
        _complete(new["state"], where.state)
        aside = Path(tempfile.mkdtemp(prefix=archive.DRAFT, dir=where.state))
        for top, base in (("state", where.state), ("config", where.config)):
            old = aside / top
            old.mkdir(mode=0o700)
            moves = [(base / name, old / name) for name in _names(base) if not archive.stays(name)]
            moves += [(new[top] / name, base / name) for name in _names(new[top])]
            for path, to in moves:
                shutil.move(path, to)  # also to another disk, as the configuration may be on one
                back.callback(shutil.move, to, path)
        back.pop_all()
    former = where.state / ASIDE
    if former.is_symlink():  # nobody has a reason to put a link there
        former.unlink()
    shutil.rmtree(former, ignore_errors=True)
    aside.rename(former)
    os.sync()


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def _complete(new: Path, state: Path) -> None:
    """Copy the secrets of this state into a new one that has none, through no link of either."""
    for old in [state / archive.SECRETS, state / archive.TEAM, *state.glob(f"own/*/{archive.SECRETS}")]:
        to = new / old.relative_to(state)
        is_needed = old.is_dir() and to.parent.is_dir() and not os.path.lexists(to)
        if is_needed and not (_is_linked(old, state) or _is_linked(to.parent, new)):
            shutil.copytree(old, to, symlinks=True)


def _is_linked(path: Path, base: Path) -> bool:
    """Returns True if there is a link on the way from `base` to `path`."""
    return path.resolve() != base.resolve() / path.relative_to(base)


_FILE = arg("file", "FILE", "the archive")
COMMANDS = {
    "state": Command(
        verbs={
            "export": Command(
                export,
                (
                    _FILE,
                    *MOUNTED,
                    flag("--secrets", "with the keys of providers, logins at servers and sealed settings"),
                ),
                ("ctx state export backup.tar.gz", "ctx state export --secrets move.tar.gz"),
                "write state and configuration into a file, while the daemon runs",
            ),
            "import": Command(
                import_,
                (_FILE, *MOUNTED, flag("--yes", "do not ask")),
                ("ctx state import backup.tar.gz",),
                "replace state and configuration by those of a file, and restart the daemon",
            ),
        },
    ),
}
