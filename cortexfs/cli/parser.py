"""The command table and how a command line is taken apart.

Rules: a command is one module of this package with `declare(parser)` and `run(options) -> status`;
the table names them all, so that help and completion need not import them. Only the module of the
command that was asked for is imported: start-up is part of every command's price.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NoReturn

from cortexfs.core.errors import Fault

COMMANDS = {
    "mount": "mount CortexFS and start its daemon",
    "umount": "unmount it and end its daemon, also a dead or hung one",
    "restart": "end the daemon and start it again, with what was configured meanwhile",
    "status": "what the mount says about itself",
    "doctor": "check the installation and the mount, and say how to mend them",
    "ls": "list objects",
    "run": "run an object",
    "chat": "talk with a model or agent",
    "send": "say something to an object, and print the answer",
    "resume": "print what happened in a session, and follow it",
    "cancel": "end a run",
    "ping": "see whether an object's socket answers, and how fast",
    "session": "list, show and remove sessions",
    "env": "print the environment of a shell that works with the mount",
    "plugin": "make, check, sign, install, enable and list plugins",
    "provider": "add, list, test and remove the providers of models, and keep their keys",
    "model": "make a model with defaults of its own",
    "agent": "make, list and remove agents",
    "policy": "say who may run what and why, look for what is wrong, undo policies",
    "mcp": "serve the tools of a mount to MCP clients, and take in those of MCP servers",
    "completion": "print a completion script for bash, zsh or fish",
    "help": "show this help, or that of a command",
    "version": "print the version",
}
# Called by completion scripts; in no help.
HIDDEN = {"complete"}
# The module of each, which is imported for it alone.
MODULES = {
    "mount": "mount.mount",
    "umount": "mount.umount",
    "restart": "mount.restart",
    "status": "shell.status",
    "doctor": "mount.doctor",
    "ls": "shell.ls",
    "run": "run",
    "chat": "talk.chat",
    "send": "talk.send",
    "resume": "talk.resume",
    "cancel": "talk.cancel",
    "ping": "talk.ping",
    "session": "talk.session",
    "env": "shell.env",
    "plugin": "plugin.group",
    "provider": "model.provider",
    "model": "model.model",
    "agent": "agent.agent",
    "policy": "agent.policy",
    "mcp": "mcp.mcp",
    "completion": "shell.completion",
    "help": "shell.help",
    "version": "shell.version",
    "complete": "shell.complete",
}


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one sentence."""

    intermixed = False  # whether options may stand between the words of the last argument

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return (super().parse_intermixed_args if self.intermixed else super().parse_args)(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise Fault("EINVAL", f"{message}; see: {self.prog} --help")


def program() -> str:
    """`cortex` is the same program; anything else (python -m) is called ctx."""
    return "cortex" if os.path.basename(sys.argv[0]) == "cortex" else "ctx"


def top(more: str = "") -> CommandParser:
    """The parser of the program itself; its help goes on with `more`."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = CommandParser(
        prog=program(),
        usage="%(prog)s [--root ROOT] COMMAND ...",
        description="CortexFS: models, agents and tools as files that you can run.",
        epilog=f"commands:\n{lines}\n{more}\n%(prog)s COMMAND --help shows options and examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--version", action="store_true", help="the same as the command version")
    root_option(parser, None)
    return parser


def print_top(given: str | None) -> None:
    """The help of the program, with the commands of the mount's plugins."""
    from cortexfs.cli import plugin_commands  # only help and those commands pay for it

    lines = plugin_commands.help_lines(given).replace("%", "%%")
    top(f"\ncommands of plugins:\n{lines}\n" if lines else "").print_help()


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """The options of `ctx` itself, and the command with its own words."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] == "--root" else 1
    return words[:place], words[place:]


def is_ours(command: str) -> bool:
    return command in COMMANDS or command in HIDDEN


def module(command: str) -> ModuleType:
    """The module of a command of ours."""
    return importlib.import_module(f"cortexfs.cli.{MODULES[command]}")


def any_command(command: str, given: str | None) -> CommandParser:
    """The parser of one command, ours or a plugin's; EINVAL with the nearest name when there is none."""
    if is_ours(command):
        return of_command(command)
    from cortexfs.cli import plugin_commands

    return plugin_commands.parser_of(plugin_commands.found(command, given)[1])


def of_command(command: str) -> CommandParser:
    """The parser of one command."""
    loaded = module(command)
    parser = CommandParser(
        prog=f"{program()} {command}",
        description=f"{COMMANDS.get(command, '')[:1].upper()}{COMMANDS.get(command, '')[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root_option(parser)
    loaded.declare(parser)
    return parser


def root_option(parser: argparse.ArgumentParser, default: str | None = argparse.SUPPRESS) -> None:
    text = "the mount that is meant (default: CTX_ROOT, else the one and only, else /ctx)"
    parser.add_argument("--root", metavar="DIR", default=default, help=text)


def examples(parser: argparse.ArgumentParser, *lines: str) -> None:
    """Give a command its examples; ctx stands for the program's name."""
    parser.epilog = "examples:\n" + "\n".join(f"  {line}" for line in lines)


def json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def places_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state", metavar="DIR", help="where sessions, logs and secrets are (default: CTX_STATE)"
    )
    parser.add_argument("--config", metavar="DIR", help="where config.toml is (default: CTX_CONFIG)")


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence: "; did you mean X?" or nothing."""
    from difflib import get_close_matches  # only a mistake pays for it

    found = get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(found)}?" if found else ""
