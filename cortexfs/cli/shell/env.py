"""`ctx env`: the variables of a shell that works with the mount, as lines for eval."""

from __future__ import annotations

import argparse
import os
import shlex

from cortexfs.cli import mounts, output, parser
from cortexfs.core.errors import EXIT_OK


def declare(into: parser.CommandParser) -> None:
    parser.json_option(into)
    parser.examples(into, 'eval "$(ctx env)"', "ctx env | source        # fish", "ctx env --root /mnt/ctx")


def run(options: argparse.Namespace) -> int:
    variables = environment(mounts.root(options.root), os.getuid(), os.environ.get("PATH", os.defpath))
    if options.json:
        output.emit(variables)
    else:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
    return EXIT_OK


def environment(root: str, uid: int, path: str) -> dict[str, str]:
    home = f"{root}/home/{uid}"
    others = [directory for directory in path.split(":") if directory != f"{root}/bin"]
    return {
        "CTX_ROOT": root,
        "CTX_HOME": home,
        "CTX_PATH": f"{root}/tool:{home}/tool",
        "PATH": ":".join([f"{root}/bin", *others]),
    }
