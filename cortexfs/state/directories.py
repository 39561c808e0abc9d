"""The directories in which CortexFS keeps things: the state, what lies beside it, and the configuration.

Rules: nobody but their owner and root may write there. Others than the daemon have to come to what lies
beside the state. Nothing here imports msgspec, as `ctx mount` reads it.
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

PLUGINS = "plugins"  # below the state: those that were installed


class Places(NamedTuple):
    state: Path
    config: Path


def places(
    environ: Mapping[str, str], uid: int, *, state: str | None = None, config: str | None = None
) -> Places:
    """The places of abi.md 8.1 and 8.3: the arguments, else CTX_STATE and CTX_CONFIG, else those of `uid`."""
    state = state or environ.get("CTX_STATE")
    config = config or environ.get("CTX_CONFIG")
    return Places(
        _absolute(state) if state else _default(environ, uid, "/var/lib", "XDG_STATE_HOME", ".local/state"),
        _absolute(config) if config else _default(environ, uid, "/etc", "XDG_CONFIG_HOME", ".config"),
    )


def cache(environ: Mapping[str, str], uid: int) -> Path:
    """Where commands of `uid` keep what can be made anew."""
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
    """Make the missing directories; sessions and secrets will lie in state, so it is 0700."""
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
    """Copies of plugins. Hosts that are somebody else, or an agent's, cannot pass through the state."""
    return state.with_name(f"{state.name}-plugins")


def kept_of(state: Path) -> Path:
    """The directory in which plugins keep what outlives their hosts, one for each of their users."""
    return state.with_name(f"{state.name}-kept")


def keeping(state: Path, name: str) -> str:
    """Makes the directory of one plugin there (host/call/plugin_state.py), and returns it."""
    above = kept_of(state)
    with os_faults(f"{above / name} cannot be made"):
        for folder in (above, above / name):
            folder.mkdir(mode=0o755, exist_ok=True)
            believed.set_mode(folder, 0o755)
    return str(above / name)


def forget_kept(state: Path, name: str) -> None:
    """Removes the directory of one plugin there, with what all users have in it."""
    kept = kept_of(state) / name
    aside = kept.with_name(f".{name}")  # so that a host that still ends makes no new file there
    try:
        if aside.is_dir():  # of one that was killed
            _remove(aside)
        if kept.is_dir():
            kept.rename(aside)
            _remove(aside)
    except OSError as problem:
        where = problem.filename or kept
        raise Fault(code_of(problem.errno), f"{where} cannot be removed: {problem.strerror}") from None


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def _remove(path: Path) -> None:
    """Remove a folder, through no link. What is in it may be deeper than shutil.rmtree has frames for and a
    process open files: so a folder that is two levels down is moved up, and comes next."""
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
