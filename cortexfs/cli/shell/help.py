"""`ctx help`: the help of the program, or of one of its commands."""

from __future__ import annotations

import argparse

from cortexfs.cli import parser
from cortexfs.core.errors import EXIT_OK


def declare(into: parser.CommandParser) -> None:
    into.add_argument("command", metavar="COMMAND", nargs="?", help="the command that is meant")
    parser.examples(into, "ctx help", "ctx help mount")


def run(options: argparse.Namespace) -> int:
    if options.command is None:
        parser.print_top(options.root)
    else:
        parser.any_command(options.command, options.root).print_help()
    return EXIT_OK
