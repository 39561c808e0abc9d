"""The control files of an object, read and written as in a shell, with the same refusals.

This file must never know HTTP.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from cortexfs.core.errors import Fault, code_of, os_faults
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.web.telling import waited

MOST = 256 << 10  # bytes of a control that are shown
MOST_RUNS = 20
WRITES = 0o222
UNSHOWN = ("log", "session")


async def listed(root: str, object_: str) -> list[dict[str, Any]]:
    """Returns the name and text of each control, and whether its user may write it."""
    return await waited(partial(_listed, Path(f"{root}/{object_}.d")))


async def runs(root: str, object_: str) -> list[dict[str, Any]]:
    """Returns the user's latest runs of an object, newest first."""
    below = object_.removeprefix(f"home/{os.getuid()}/")
    return await waited(partial(_runs, f"{root}/home/{os.getuid()}/{below}.d/log"))


def _runs(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            start = file.seek(max(0, file.seek(0, os.SEEK_END) - MOST))
            lines = file.read(MOST).split(b"\n")[1 if start else 0 : -1]
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in reversed(lines[-MOST_RUNS:])]
    except (OSError, *UNREADABLE):  # there were no runs
        return []


async def write(root: str, object_: str, name: str, text: str) -> None:
    """Replace the text of a control. Raises the mount's own refusal if it does not take the text."""
    if not name or "/" in name or name.startswith("."):
        raise Fault("EINVAL", "name: expected the name of a control")
    await waited(partial(_write, f"{root}/{object_}.d/{name}", text))


def _listed(folder: Path) -> list[dict[str, Any]]:
    found = []
    with os_faults(f"{folder} cannot be read"):
        for path in sorted(folder.iterdir()):
            if path.name in UNSHOWN or not path.is_file():
                continue
            with open(path, "rb") as file:
                text = file.read(MOST).decode(errors="replace")
            found.append({"name": path.name, "text": text, "writable": bool(path.stat().st_mode & WRITES)})
    return found


def _write(path: str, text: str) -> None:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(text.encode())
    except OSError as problem:
        name = os.path.basename(path)
        mend = "; the object's log says why" if code_of(problem.errno) == "EINVAL" else ""
        raise Fault(code_of(problem.errno), f"{name}: {problem.strerror}{mend}") from None
