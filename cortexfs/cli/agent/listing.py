"""`ctx agent list`: from the files of a mount, or without one, from the records kept for the next mount.

This file must never know how an agent is made.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cortexfs.cli import mounts, objects, output
from cortexfs.cli.agent.own import CLASS
from cortexfs.cli.daemons import places_of

if TYPE_CHECKING:
    from cortexfs.core.registry import Object

CONTROLS = ("model", "tools", "approval", "label", "policy")
HEADS = ("name", "model", "tools", "approval", "status", "description")


def listing(options: argparse.Namespace) -> int:
    found = _rows(mounts.if_answering(options.root), places_of(options).state)
    cells = [
        one | {"tools": str(len(one["tools"])), "description": objects.first_sentence(one["description"])}
        for one in found
    ]
    return output.print_rows(options.json, found, HEADS, ([one[head] for head in HEADS] for one in cells))


def _rows(root: str | None, state: Path) -> list[dict[str, Any]]:
    if root is not None:
        return [shown(root, path) for path in objects.paths_of(root, CLASS) if not os.path.islink(path)]
    from cortexfs.agents import records  # a slow import that is not needed with a mount

    own = (one for one in records.load_own(state) if one.serves(os.getuid()))
    return [row(one, "not mounted") for one in (*records.load(state).objects, *own)]


def shown(root: str, path: str) -> dict[str, Any]:
    """Returns the row of an agent of a mount."""
    said = objects.row_of(root, path)
    values = {name: objects.control(path, name) for name in CONTROLS}
    return _cells(said.object, values, said.status, said.description)


def row(one: Object, status: str) -> dict[str, Any]:
    """Returns the row of a kept record."""
    status = status if one.status == "ready" else one.status
    return _cells(one.path, one.extra, status, one.description)


def _cells(path: str, values: Mapping[str, str], status: str, description: str) -> dict[str, Any]:
    text = {key: values.get(key, "").strip() for key in CONTROLS}
    return {
        "name": path.removeprefix(f"{CLASS}/"),
        "model": text["model"],
        "tools": text["tools"].split(),
        "approval": text["approval"],
        "status": status,
        "description": description,
        "label": text["label"],
        "policy": text["policy"].splitlines(),
    }
