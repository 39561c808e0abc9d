"""`ctx ping`: whether an object's socket answers, and how fast."""

from __future__ import annotations

import argparse

from cortexfs.cli import output, parser, talking
from cortexfs.core.errors import EXIT_OK, Fault

MOST = 1_000_000


def declare(into: parser.CommandParser) -> None:
    talking.declare_object(into)
    into.add_argument("--count", metavar="N", type=int, default=1, help="how often (default: once)")
    parser.json_option(into)
    parser.examples(
        into, "ctx ping model/main", "ctx ping debug/echo --count 100", "ctx ping agent/coder --json"
    )


def run(options: argparse.Namespace) -> int:
    if not 1 <= options.count <= MOST:
        raise Fault("EINVAL", f"--count must be from 1 to {MOST}")
    where = talking.named(options)
    with where.connect() as conversation:
        times = [1000 * conversation.ping() for _ in range(options.count)]
    least, mean, most = min(times), sum(times) / len(times), max(times)
    if options.json:
        counted = {"least": least, "mean": mean, "most": most}
        rounded = {name: round(value, 3) for name, value in counted.items()}
        output.emit({"object": where.whole, "count": len(times), "ms": rounded})
    elif len(times) == 1:
        print(f"{where.name} answers in {mean:.2f} ms")
    else:
        print(
            f"{where.name} answered {len(times)} times in {least:.2f} to {most:.2f} ms, {mean:.2f} on average"
        )
    return EXIT_OK
