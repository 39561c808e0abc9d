"""`ctx version`: which CortexFS this is."""

from __future__ import annotations

import argparse
import platform

from cortexfs.cli import output, parser
from cortexfs.core.errors import EXIT_OK
from cortexfs.core.wire import PROTOCOL
from cortexfs.version import VERSION


def declare(into: parser.CommandParser) -> None:
    parser.json_option(into)
    parser.examples(into, "ctx version", "ctx version --json | jq -r .version")


def run(options: argparse.Namespace) -> int:
    facts = {"version": VERSION, "protocol": PROTOCOL, "python": platform.python_version()}
    if options.json:
        output.emit(facts)
    else:
        print(f"ctx {VERSION} (protocol {PROTOCOL}, Python {facts['python']})")
    return EXIT_OK
