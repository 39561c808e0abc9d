"""The places where a plugin keeps files that outlive its hosts: one directory for each of its users.

The daemon names one place for a plugin (`hostcalls.Plugin.keeps`), to which no other user can write. A host
makes its user's directory there while it still has root's powers, so that no user can take another's.

Rules: a directory is its user's alone (0700), and lies beside the daemon's state: the daemon can name no
other place of root's, and no link is followed to one. A describing host keeps nothing, except for an MCP
server, which may download itself first and has no more rights than any process of the same user. The
downloads of an agent's server are run for that agent alone. Otherwise its user, or an agent with more rights,
would run the programs that it left there.
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

# Limits of texts by key, for every kind of plugin.
MAX_KEY = 1 << 10
MAX_VALUE = 64 << 10
MAX_KEYS = 10_000
MAX_TOTAL = 16 << 20
SCRATCH = "scratch"  # the folder of scratch folders; no plugin has this name (core/names.py)
SCRATCH_SECONDS = 7 * 86400  # since its last use
MAX_SWEPT = 1000
_BUSY_SECONDS = 2.0  # another host of the same user writes, for some ms
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def of(plugin: Plugin, identity: Identity) -> Plugin:
    """Returns the plugin as a host of this identity gets it. Each agent has a place of its own if the plugin
    keeps programs."""
    if plugin.kind != MCP_SERVER or not plugin.keeps or identity.view is None:
        return plugin
    return replace(plugin, keeps=f"{plugin.keeps}/{_agents(identity)}")


def _agents(identity: Identity) -> str:
    return f"agent@{hashlib.sha256(identity.label.encode()).hexdigest()[:16]}"


def prepare(plugin: Plugin, identity: Identity, beside: str) -> None:
    """Make the directory, before the host becomes its caller. `beside` holds the places of all plugins."""
    if not plugin.keeps or (identity.label == DESCRIBER and plugin.kind != MCP_SERVER):
        return
    folder, name = os.path.split(plugin.keeps)
    try:
        if folder != beside or name in ("", ".", ".."):
            raise PermissionError(errno.EPERM, "this path is not allowed")
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(held(folder, _FOLDER))
            place = stack.enter_context(held(name, _FOLDER, place))
            if of(plugin, identity) != plugin:
                _make_folder(_agents(identity), 0o755, place)
                place = stack.enter_context(held(_agents(identity), _FOLDER, place))
            _make_folder(str(identity.uid), 0o700, place, identity)
    except OSError as error:
        where = f"{plugin.keeps}/{identity.uid}"
        message = f"the plugin {plugin.name} cannot keep its files in {where}: {error.strerror}"
        raise Fault("EACCES", message) from error


def prepare_scratch(identity: Identity, beside: str) -> None:
    """Make the scratch folder of an agent's session, before the host becomes its caller. Remove its user's
    folders that were unused for long. The path of one is SCRATCH/UID/NAME below `beside`."""
    if not identity.scratch:
        return
    above, name = os.path.split(identity.scratch)
    try:
        if above != f"{beside}/{SCRATCH}/{identity.uid}" or name in ("", ".", ".."):
            raise PermissionError(errno.EPERM, "this path is not allowed")
        with contextlib.suppress(FileExistsError):  # a user's daemon uses this folder for nothing else
            os.mkdir(beside, 0o711)
        with held(beside, _FOLDER) as base:
            _make_folder(SCRATCH, 0o711, base)
            with held(SCRATCH, _FOLDER, base) as place:
                _make_folder(str(identity.uid), 0o711, place)
                with held(str(identity.uid), _FOLDER, place) as own:
                    _make_folder(name, 0o700, own, identity)
                    _sweep(own, name)
    except OSError as error:
        message = f"the agent's scratch folder {identity.scratch} cannot be used: {error.strerror}"
        raise Fault("EACCES", message) from error


def _make_folder(name: str, mode: int, above: int, owner: Identity | None = None) -> None:
    with contextlib.suppress(FileExistsError):  # another host of this user makes it at the same moment
        os.mkdir(name, mode, dir_fd=above)
        os.chmod(name, mode, dir_fd=above)  # whatever the umask is
    if owner is not None:
        with held(name, _FOLDER, above) as folder:
            if os.geteuid() == 0:
                os.fchown(folder, owner.uid, owner.gid)
            os.utime(folder)


def _sweep(above: int, used: str) -> None:
    """Remove unused folders. Only root or the user can create anything in `above`. Its folders may hold
    anything, but no link in them is followed (shutil.rmtree)."""
    import shutil  # imported here, as hosts start faster without it

    ended = time.time() - SCRATCH_SECONDS
    for name in os.listdir(above)[:MAX_SWEPT]:
        if name != used and os.stat(name, dir_fd=above, follow_symlinks=False).st_mtime < ended:
            with contextlib.suppress(RecursionError):  # folders may be nested too deep
                shutil.rmtree(name, ignore_errors=True, dir_fd=above)


def scratch_view(identity: Identity) -> tuple[tuple[str, str], ...]:
    """Returns the additional paths that a confined host with a scratch folder may open."""
    return ((os.path.realpath(identity.scratch), "rwx"),) if identity.scratch else ()


def database(path: str, table: str) -> sqlite3.Connection:
    """Returns the database at `path`, with `table`. Without a path it ends with the process."""
    if path and not os.path.exists(path):
        with contextlib.suppress(OSError):  # then SQLite makes it below
            _make(path, table)
    found = _connection(path or ":memory:")
    try:
        if path:
            found.execute("PRAGMA journal_mode = WAL")
        found.execute(table)
    except BaseException:  # such as a cancellation: it must leave no open file
        found.close()
        raise
    return found


def _connection(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _make(path: str, table: str) -> None:
    """Make the file under another name and sync it once: SQLite syncs eight times, 30 ms of a user's first
    call."""
    new = f"{path}.{os.getpid()}.new"
    try:
        with contextlib.closing(_connection(new)) as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(table)
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.link(new, path)  # if another host was faster, its file stays
    finally:
        with contextlib.suppress(OSError):
            os.unlink(new)


def place(plugin: Plugin) -> Path | None:
    """Returns this user's directory, from inside a host; None if the plugin keeps nothing."""
    own = f"{plugin.keeps}/{os.geteuid()}"
    return Path(own) if plugin.keeps and os.access(own, os.W_OK) else None


# The file that is there from a plugin's first hooks for its user until the hook of its removal.
MARK = "installed"


def begin(own: str) -> None:
    """Mark that this user's first hooks were called, so that those of the removal are called, too."""
    with contextlib.suppress(OSError):  # without room its last hooks are not called
        Path(own, MARK).touch(mode=0o600)


def leave(own: str) -> None:
    with contextlib.suppress(OSError):
        Path(own, MARK).unlink()


def has_begun(keeps: Path, uid: int) -> bool:
    return (keeps / str(uid) / MARK).exists()


def view(plugin: Plugin, identity: Identity) -> tuple[tuple[str, str], ...]:
    """Returns the additional paths that a confined host of that user may open. An MCP server may run its
    downloads."""
    rights = "rwx" if plugin.kind == MCP_SERVER else "rw"
    return ((os.path.realpath(f"{plugin.keeps}/{identity.uid}"), rights),) if plugin.keeps else ()
