"""`ctx completion`: the script that makes a shell ask `ctx complete` for candidates."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cortexfs.cli import parser
from cortexfs.core.errors import EXIT_OK

SHELLS = ("bash", "zsh", "fish")
_SCRIPTS = Path(__file__).parent / "scripts"


def declare(into: parser.CommandParser) -> None:
    into.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")
    parser.examples(
        into,
        'eval "$(ctx completion bash)"      # in ~/.bashrc',
        'eval "$(ctx completion zsh)"       # in ~/.zshrc, after compinit',
        "ctx completion fish | source       # in ~/.config/fish/config.fish",
    )


def run(options: argparse.Namespace) -> int:
    sys.stdout.write((_SCRIPTS / f"completion.{options.shell}").read_text(encoding="utf-8"))
    return EXIT_OK
