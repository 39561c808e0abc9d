"""`ctx status`: what the mount says about itself, in its own words or as JSON."""

from __future__ import annotations

import argparse
import re
from typing import Any

from cortexfs.cli import mounts, output, parser
from cortexfs.core.errors import EXIT_OK

_NUMBER = re.compile(r"(\d+)(?: s)?")
_COUNTS = re.compile(r"(\d+) ([a-z]+)(?:, |$)")


def declare(into: parser.CommandParser) -> None:
    parser.json_option(into)
    parser.examples(into, "ctx status", "ctx status --root /mnt/ctx", "ctx status --json | jq .runs.active")


def run(options: argparse.Namespace) -> int:
    text = mounts.status_text(mounts.root(options.root))
    if options.json:
        output.emit(parsed(text))
    else:
        for line in text.splitlines():
            print(output.printable(line))
    return EXIT_OK


def parsed(text: str) -> dict[str, Any]:
    """The status as JSON: numbers as numbers, `3 active, 120 total` as an object, what repeats as a list."""
    found: dict[str, Any] = {"broken_plugins": {}}
    for key, values in mounts.facts(text).items():
        if key == "broken plugin":
            found["broken_plugins"] = dict(value.partition(": ")[::2] for value in values)
        else:
            spoken = [_value(value) for value in values]
            found[key.replace(" ", "_")] = spoken[0] if len(spoken) == 1 else spoken
    return found


def _value(text: str) -> Any:
    if number := _NUMBER.fullmatch(text):
        return int(number[1])
    counts = _COUNTS.findall(text)
    if counts and not _COUNTS.sub("", text):
        return {word: int(count) for count, word in counts}
    return text
