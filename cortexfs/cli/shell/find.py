"""`ctx find`: the tools that match some words, best first.

    ctx find read a file
    ctx find issues --json | jq -r '.[0].schema'

Rules: tools that the caller may not run are not listed. core/finding.py has the order.
"""

from __future__ import annotations

import argparse
from typing import Any

from cortexfs.cli import mounts, objects, output
from cortexfs.cli.parser import JSON, Command, arg
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.finding import AllowedRow, best, words_of


def find(options: argparse.Namespace) -> int:
    words = words_of(" ".join(options.words))
    if not words:
        raise Fault("EINVAL", "say what a tool is to do in a word or more, such as: ctx find read file")
    root = mounts.answering(options.root)
    rows = best(objects.allowed(root), words)
    if options.json:
        output.emit([_whole(root, row) for row in rows])
    elif rows:
        output.table(("object", "description"), [(row.object, row.sentence) for row in rows])
    else:
        asked = " ".join(words)
        output.say(f"you may run no tool with a word like these: {asked}; see: ctx ls tool --allowed")
    return EXIT_OK


def _whole(root: str, row: AllowedRow) -> dict[str, Any]:
    import json  # a slow import that only JSON needs

    path = f"{root}/{row.object}"
    return {
        "object": row.object,
        "description": objects.control(path, "description").strip(),
        "schema": json.loads(objects.control(path, "schema") or "{}"),
        "effects": objects.control(path, "effects").splitlines(),
    }


COMMANDS = {
    "find": Command(
        find,
        (arg("words", "WORD", "what a tool is to do", nargs="+"), JSON),
        ("ctx find read file", "ctx find issues", "ctx find time zone --json | jq '.[0].schema'"),
    ),
}
