"""The directories in which CortexFS keeps files: the state, the folders beside it, and the configuration.

Rules: only their owner and root may write there. Folders lie beside the state if processes other than the
daemon have to reach them. Nothing here imports msgspec, as `ctx mount` imports this file.
This file must never know what is in them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cortexfs.core.errors import Fault, code_of, os_faults
from cortexfs.state import believed, no_links

PLUGINS = "plugins"  # below the state: the installed plugins


class Places(NamedTuple):
    state: Path
    config: Path


def places(
    environ: Mapping[str, str], uid: int, *, state: str | None = None, config: str | None = None
) -> Places:
    """Returns the places of abi.md 8.1 and 8.3: the arguments, else CTX_STATE, CTX_CONFIG, else `uid`'s."""
    state = state or environ.get("CTX_STATE")
    config = config or environ.get("CTX_CONFIG")
    return Places(
        _absolute(state) if state else _default(environ, uid, "/var/lib", "XDG_STATE_HOME", ".local/state"),
        _absolute(config) if config else _default(environ, uid, "/etc", "XDG_CONFIG_HOME", ".config"),
    )


def cache(environ: Mapping[str, str], uid: int) -> Path:
    """Returns the directory in which commands of `uid` keep files that can be made again."""
    base = environ.get("XDG_CACHE_HOME", "")
    return (
        Path(base, "cortexfs")
        if base.startswith("/")
        else _default(environ, uid, "/var/cache", "XDG_CACHE_HOME", ".cache")
    )


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def _default(environ: Mapping[str, str], uid: int, system: str, variable: str, below_home: str) -> Path:
    if uid == 0:
        return Path(system, "cortexfs")
    # The XDG base directory specification: a relative path counts as unset.
    if (base := environ.get(variable, "")).startswith("/"):
        return Path(base, "cortexfs")
    if (home := environ.get("HOME", "")).startswith("/"):
        return Path(home, below_home, "cortexfs")
    raise Fault(
        "EINVAL", f"neither {variable} nor HOME is set; name the directories with --state and --config"
    )


def create(where: Places) -> None:
    """Create the missing directories. The state is 0700, as sessions and secrets will lie in it."""
    try:
        where.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        where.config.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as problem:
        mend = "name others with --state and --config"
        raise Fault(
            code_of(problem.errno), f"{problem.filename} cannot be made: {problem.strerror}; {mend}"
        ) from None
    for directory in where:
        believed.folder(directory)


def place_of(state: Path) -> Path:
    """Returns the directory of copies of plugins. Hosts of other users or agents cannot enter the state."""
    return state.with_name(f"{state.name}-plugins")


def kept_of(state: Path) -> Path:
    """Returns the directory of plugins' files that outlive their hosts, with a folder for each user."""
    return state.with_name(f"{state.name}-kept")


def keeping(state: Path, name: str) -> str:
    """Creates the directory of one plugin there (host/call/plugin_state.py), and returns its path."""
    above = kept_of(state)
    with os_faults(f"{above / name} cannot be made"):
        for folder in (above, above / name):
            folder.mkdir(mode=0o755, exist_ok=True)
            believed.set_mode(folder, 0o755)
    return str(above / name)


def forget_kept(state: Path, name: str) -> None:
    """Removes the directory of one plugin there, with the files of all users."""
    folder = kept_of(state) / name
    aside = folder.with_name(f".{name}")  # so that a host that still ends makes no new file there
    try:
        if aside.is_dir():  # a removal was killed before its end
            _remove(aside)
        if folder.is_dir():
            folder.rename(aside)
            _remove(aside)
    except OSError as problem:
        where = problem.filename or folder
        raise Fault(code_of(problem.errno), f"{where} cannot be removed: {problem.strerror}") from None


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def _remove(path: Path) -> None:
    """Remove a folder, and follow no link. It may be deeper than shutil.rmtree has stack frames and a process
    has open files. So each folder two levels down is moved up, and is removed next."""
    with no_links.held(path, _FOLDER) as top:
        while names := os.listdir(top):
            for name in names:
                with contextlib.suppress(IsADirectoryError):
                    os.unlink(name, dir_fd=top)
                    continue
                with no_links.held(name, _FOLDER, top) as folder:
                    for below in os.listdir(folder):
                        try:
                            os.unlink(below, dir_fd=folder)
                        except IsADirectoryError:
                            os.rename(below, f".{os.urandom(8).hex()}", src_dir_fd=folder, dst_dir_fd=top)
                os.rmdir(name, dir_fd=top)
    path.rmdir()
