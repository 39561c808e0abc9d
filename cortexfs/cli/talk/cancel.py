"""`ctx cancel`: end a run, whoever follows it."""

from __future__ import annotations

import argparse

from cortexfs.cli import output, parser, talking
from cortexfs.core.errors import EXIT_OK, Fault


def declare(into: parser.CommandParser) -> None:
    talking.declare_object(into)
    into.add_argument("run", metavar="RUN", help="the run's id, or the --id that its message was sent with")
    parser.examples(into, "ctx cancel model/main r660c47e533c77-1", "ctx cancel agent/coder msg-7")


def run(options: argparse.Namespace) -> int:
    where = talking.named(options)
    with where.connect() as conversation:
        done = conversation.cancel(options.run)
    if done.status != "cancelled":
        raise Fault("EALREADY", f"the run had ended before it could be cancelled, with status {done.status}")
    output.say(f"cancelled {options.run}")
    return EXIT_OK
