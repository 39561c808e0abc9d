"""`ctx ls`: the objects of a mount, with what each says about itself."""

from __future__ import annotations

import argparse

from cortexfs.cli import mounts, objects, output, parser
from cortexfs.core.errors import EXIT_OK

# As wide as the status words and `plugin:NAME@VERSION` usually are: rows are printed as they come.
STATUS_WIDTH, ORIGIN_WIDTH = 8, 18


def declare(into: parser.CommandParser) -> None:
    into.add_argument(
        "name", metavar="CLASS|OBJECT", nargs="?", help="tool, model, agent, a provider or one object"
    )
    parser.json_option(into)
    parser.examples(into, "ctx ls", "ctx ls tool", "ctx ls fs.read", "ctx ls --json | jq -r '.[].object'")


def run(options: argparse.Namespace) -> int:
    root = mounts.root(options.root)
    mounts.status_text(root)
    chosen = objects.select(root, options.name)
    rows = objects.rows(root, chosen)
    if options.json:
        output.emit([row._asdict() for row in rows])
        return EXIT_OK
    widths = [
        max((len(objects.short(root, path)) for path in chosen), default=0),
        STATUS_WIDTH,
        ORIGIN_WIDTH,
        0,
    ]
    cells = ((row.object, row.status, row.origin, objects.first_sentence(row.description)) for row in rows)
    output.table(objects.ObjectRow._fields, cells, widths)
    return EXIT_OK
