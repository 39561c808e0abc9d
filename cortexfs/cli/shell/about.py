"""`ctx help`, `ctx version` and `ctx completion`: facts about the program, and the scripts for shells."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

from cortexfs.cli import output, parser
from cortexfs.cli.parser import JSON, Command, arg
from cortexfs.core.wire import PROTOCOL
from cortexfs.version import VERSION

SHELLS = ("bash", "zsh", "fish")
_SCRIPTS = Path(__file__).parent / "scripts"


def help(options: argparse.Namespace) -> None:
    if options.command is None:
        parser.print_top(options.root)
    else:
        parser.any_command(options.command, options.root).print_help()


def version(options: argparse.Namespace) -> None:
    facts = {"version": VERSION, "protocol": PROTOCOL, "python": platform.python_version()}
    if options.json:
        output.emit(facts)
    else:
        print(f"ctx {VERSION} (protocol {PROTOCOL}, Python {facts['python']})")


def completion(options: argparse.Namespace) -> None:
    sys.stdout.write((_SCRIPTS / f"completion.{options.shell}").read_text(encoding="utf-8"))


COMMANDS = {
    "help": Command(
        help,
        (arg("command", "COMMAND", "the command that is meant", nargs="?"),),
        ("ctx help", "ctx help mount"),
    ),
    "version": Command(version, (JSON,), ("ctx version", "ctx version --json | jq -r .version")),
    "completion": Command(
        completion,
        (arg("shell", "SHELL", "bash, zsh or fish", choices=SHELLS),),
        (
            'eval "$(ctx completion bash)"      # in ~/.bashrc',
            'eval "$(ctx completion zsh)"       # in ~/.zshrc, after compinit',
            "ctx completion fish | source       # in ~/.config/fish/config.fish",
        ),
    ),
}
