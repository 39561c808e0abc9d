"""`ctx provider` for a user on a mount of root: the user's own providers, whose models are in the user's
home.

Rules: the daemon keeps the providers and their keys. A key goes through the daemon's socket, and is on no
command line. The user's configuration has nothing of them.
This file must never know how a provider is asked.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import msgspec

from cortexfs.cli import mounts, objects, progress

FILE = ".own"  # below the root, in no listing


def root_of(root_option: str | None) -> str | None:
    """Returns the mount, if root owns it and we are not root."""
    mount = mounts.meant(root_option)
    return mount.point if mount and mount.owner == 0 and os.getuid() else None


def path_of(name: str) -> str:
    """Returns the path below the root."""
    return f"home/{os.getuid()}/model/{name}"


def names(root: str) -> list[str]:
    """Returns the providers that have models in the mount. No provider is asked."""
    folder = f"{root}/{path_of('')}"
    with suppress(OSError):
        return [entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.is_symlink()]
    return []


def ask(root: str, do: str, name: str = "", **more: Any) -> Any:
    """Have the daemon do this (models/own_providers.py), and return its answer."""
    from cortexfs.client import run, text  # a slow import that only this needs

    mounts.status_text(root)
    request = msgspec.json.encode({"input": {"do": do, "name": name, **more}})
    with progress.shown(f"the daemon of {root} asks as you"):
        answer = text(run(f"{root}/{objects.RUNNER}", f"{root}/{FILE}", "-", input=request))
    return msgspec.json.decode(answer)
