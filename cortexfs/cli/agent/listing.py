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


def listing(options: argparse.Namespace) -> None:
    found = _rows(mounts.if_answering(options.root), places_of(options).state)
    cells = [
        agent
        | {"tools": str(len(agent["tools"])), "description": objects.first_sentence(agent["description"])}
        for agent in found
    ]
    output.print_rows(options.json, found, HEADS, cells)


def _rows(root: str | None, state: Path) -> list[dict[str, Any]]:
    if root is not None:
        return [row_at(root, path) for path in objects.without_aliases(root, CLASS)]
    from cortexfs.agents import records  # a slow import that is not needed with a mount

    own = (agent for agent in records.load_own(state) if agent.serves(os.getuid()))
    return [row(agent, "not mounted") for agent in (*records.load(state).objects, *own)]


def row_at(root: str, path: str) -> dict[str, Any]:
    """Returns the row of an agent of a mount."""
    facts = objects.row_of(root, path)
    values = {name: objects.control(path, name) for name in CONTROLS}
    return _cells(facts.object, values, facts.status, facts.description)


def row(agent: Object, status: str) -> dict[str, Any]:
    """Returns the row of a kept record."""
    status = status if agent.status == "ready" else agent.status
    return _cells(agent.path, agent.extra, status, agent.description)


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
