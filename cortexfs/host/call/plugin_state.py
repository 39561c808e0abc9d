"""Where a plugin keeps what is to outlive its hosts: a directory for each of its users.

The daemon names one place for a plugin (`hostcalls.Plugin.keeps`), in which nobody else may write. A host
makes its user's directory there while it still has root's powers, so that no user can take another's.

Rules: a directory is its user's alone (0700), and lies beside the daemon's state: what the daemon names may
be no other place of root's, and no link is followed to one. Whoever describes plugins keeps nothing, but for
an MCP server, which may download itself first: there it is no other than any process of its user's. What an
agent's server has downloaded is run for that agent alone: its user, or an agent that may more, would run what
it has left there.
This file must never know what is kept.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sqlite3
import time
from pathlib import Path

from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import DESCRIBER, Identity, Plugin
from cortexfs.core.manifest.mcp_server import KIND as MCP_SERVER
from cortexfs.state.no_links import held

# Of texts by key, whatever kind a plugin is of.
MAX_KEY = 1 << 10
MAX_VALUE = 64 << 10
MAX_KEYS = 10_000
MAX_TOTAL = 16 << 20
SCRATCH = "scratch"  # the folder of scratch folders; no plugin is called so (core/names.py)
SCRATCH_SECONDS = 7 * 86400  # since one was used last
MAX_SWEPT = 1000
_BUSY_SECONDS = 2.0  # another host of the same user writes, for some ms
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def of(plugin: Plugin, identity: Identity) -> Plugin:
    """Returns the plugin as a host of this identity is told of it: with another place for each agent where
    what is kept is programs."""
    if plugin.kind != MCP_SERVER or not plugin.keeps or identity.view is None:
        return plugin
    return replace(plugin, keeps=f"{plugin.keeps}/{_agents(identity)}")


def _agents(identity: Identity) -> str:
    return f"agent@{hashlib.sha256(identity.label.encode()).hexdigest()[:16]}"


def prepare(plugin: Plugin, identity: Identity, beside: str) -> None:
    """Make the directory, before the host becomes its caller. `beside` is where all plugins keep theirs."""
    if not plugin.keeps or (identity.label == DESCRIBER and plugin.kind != MCP_SERVER):
        return
    kept, name = os.path.split(plugin.keeps)
    try:
        if kept != beside or name in ("", ".", ".."):
            raise PermissionError(errno.EPERM, "that is no place for it")
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(held(kept, _FOLDER))
            place = stack.enter_context(held(name, _FOLDER, place))
            if of(plugin, identity) != plugin:
                _made(_agents(identity), 0o755, place)
                place = stack.enter_context(held(_agents(identity), _FOLDER, place))
            _made(str(identity.uid), 0o700, place, identity)
    except OSError as error:
        where = f"{plugin.keeps}/{identity.uid}"
        told = f"{plugin.name} has no place for what it keeps: {where}: {error.strerror}"
        raise Fault("EACCES", told) from error


def prepare_scratch(identity: Identity, beside: str) -> None:
    """Make the scratch folder of an agent's session, at the same time, and remove those of its user that
    nobody has used for long. The path of one is SCRATCH/UID/NAME below `beside`."""
    if not identity.scratch:
        return
    above, name = os.path.split(identity.scratch)
    try:
        if above != f"{beside}/{SCRATCH}/{identity.uid}" or name in ("", ".", ".."):
            raise PermissionError(errno.EPERM, "that is no place for it")
        with contextlib.suppress(FileExistsError):  # a user's daemon has no other use for it
            os.mkdir(beside, 0o711)
        with held(beside, _FOLDER) as kept:
            _made(SCRATCH, 0o711, kept)
            with held(SCRATCH, _FOLDER, kept) as place:
                _made(str(identity.uid), 0o711, place)
                with held(str(identity.uid), _FOLDER, place) as own:
                    _made(name, 0o700, own, identity)
                    _sweep(own, name)
    except OSError as error:
        told = f"an agent has no scratch folder: {identity.scratch}: {error.strerror}"
        raise Fault("EACCES", told) from error


def _made(name: str, mode: int, above: int, whose: Identity | None = None) -> None:
    with contextlib.suppress(FileExistsError):  # also made by another host of his, at this moment
        os.mkdir(name, mode, dir_fd=above)
        os.chmod(name, mode, dir_fd=above)  # whatever the umask is
    if whose is not None:
        with held(name, _FOLDER, above) as made:
            if os.geteuid() == 0:
                os.fchown(made, whose.uid, whose.gid)
            os.utime(made)


def _sweep(above: int, used: str) -> None:
    """Only root, or the user, can make anything in this folder; what is in those below it, no link of which
    is followed (shutil.rmtree), may be anything."""
    import shutil  # hosts begin without it

    ended = time.time() - SCRATCH_SECONDS
    for name in os.listdir(above)[:MAX_SWEPT]:
        if name != used and os.stat(name, dir_fd=above, follow_symlinks=False).st_mtime < ended:
            with contextlib.suppress(RecursionError):  # of folders in folders that somebody has made for it
                shutil.rmtree(name, ignore_errors=True, dir_fd=above)


def scratch_view(identity: Identity) -> tuple[tuple[str, str], ...]:
    """Returns the paths that a confined host with a scratch folder may open besides."""
    return ((os.path.realpath(identity.scratch), "rwx"),) if identity.scratch else ()


def database(path: str, table: str) -> sqlite3.Connection:
    """Returns the file of that path, with that table; without a path, one that ends with the process."""
    if path and not os.path.exists(path):
        with contextlib.suppress(OSError):  # it is made below, then
            _make(path, table)
    found = _opened(path or ":memory:")
    try:
        if path:
            found.execute("PRAGMA journal_mode = WAL")
        found.execute(table)
    except BaseException:  # a cancellation, too, goes on; no file stays open that nobody has
        found.close()
        raise
    return found


def _opened(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _make(path: str, table: str) -> None:
    """Make the file under another name and wait for the disk once: SQLite waits eight times, 30 ms of a
    user's first call."""
    new = f"{path}.{os.getpid()}.new"
    try:
        with contextlib.closing(_opened(new)) as made:
            made.execute("PRAGMA synchronous = OFF")
            made.execute("PRAGMA journal_mode = WAL")
            made.execute(table)
        with open(new, "rb") as whole:
            os.fsync(whole.fileno())
        os.link(new, path)  # where another host was quicker, its file stays
    finally:
        with contextlib.suppress(OSError):
            os.unlink(new)


def place(plugin: Plugin) -> Path | None:
    """This user's directory, from inside a host; None where nothing is kept."""
    own = f"{plugin.keeps}/{os.geteuid()}"
    return Path(own) if plugin.keeps and os.access(own, os.W_OK) else None


# There as long as a plugin has told its user's hooks that it is installed, and not that it is no more.
MARK = "installed"


def begin(own: str) -> None:
    """That its first hooks were called for this user is to be known when it is uninstalled."""
    with contextlib.suppress(OSError):  # without room its last hooks are not called
        Path(own, MARK).touch(mode=0o600)


def leave(own: str) -> None:
    with contextlib.suppress(OSError):
        Path(own, MARK).unlink()


def has_begun(keeps: Path, uid: int) -> bool:
    return (keeps / str(uid) / MARK).exists()


def view(plugin: Plugin, identity: Identity) -> tuple[tuple[str, str], ...]:
    """Returns the paths that a confined host of that user may open besides. An MCP server may run what it
    has downloaded."""
    rights = "rwx" if plugin.kind == MCP_SERVER else "rw"
    return ((os.path.realpath(f"{plugin.keeps}/{identity.uid}"), rights),) if plugin.keeps else ()
