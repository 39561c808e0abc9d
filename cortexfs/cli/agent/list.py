"""The agents that `ctx agent` shows: those of agent/, and those in the caller's home.

Rules: a mount is asked if there is one, as its files say what counts; else what is kept for the next.
This file must never know how agents are made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortexfs.agents import records
from cortexfs.cli import objects, output
from cortexfs.cli.agent import policy_facts
from cortexfs.core.registry import Object

CLASS = "agent"
CONTROLS = ("model", "tools", "approval", "label", "policy")
HEADS = ("name", "model", "tools", "approval", "status", "description")


def rows(root: str | None, state: Path) -> list[dict[str, Any]]:
    if root is not None:
        return [shown(root, path) for path in objects.paths_of(root, CLASS) if not os.path.islink(path)]
    own = (one for one in records.load_own(state) if one.serves(os.getuid()))
    return [row(one, "not mounted") for one in (*records.load(state).objects, *own)]


def show(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        return output.emit(found)
    cells = [
        {
            **one,
            "tools": str(len(one["tools"])),
            "description": objects.first_sentence(one["description"]),
        }
        for one in found
    ]
    output.table(HEADS, [[one[head] for head in HEADS] for one in cells])


def shown(root: str, path: str) -> dict[str, Any]:
    """As a mount has it."""
    said = objects.listed(root, path)
    values = {name: policy_facts.control(path, name) for name in CONTROLS}
    return _cells(said.object, values, said.status, said.description)


def row(one: Object, status: str) -> dict[str, Any]:
    """As it is kept."""
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
