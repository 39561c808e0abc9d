"""The skills and prompts of a mount's plugins, read from its `.texts`.

This file must never know their use.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cortexfs.cli import mounts
from cortexfs.cli.bounded import ask
from cortexfs.core.jsontext import UNREADABLE

FILE = ".texts"  # below the root, in no listing
PROMPT, SKILL = "prompt", "skill"


class ListedText(msgspec.Struct, frozen=True):
    kind: str
    name: str
    description: str = ""
    text: str = ""


def listed(point: str, kind: str, seconds: float = mounts.ANSWER_SECONDS) -> dict[str, ListedText]:
    """Returns the texts of a kind by name; none if the mount has none."""
    try:
        lines = ask(Path(point, FILE).read_bytes, seconds).splitlines()
        rows = [msgspec.json.decode(line, type=ListedText) for line in lines]
    except (OSError, *UNREADABLE):
        mounts.status_text(point, seconds)  # raises a Fault that says what is wrong
        return {}
    return {row.name: row for row in rows if row.kind == kind}
