"""The command table, the declaration of a command, and the parsing of a command line.

Rules: a command is a row of COMMANDS, and a `Command` in the dict of that name of its module: the table has
the names, so that help and completion need not import modules. Only the module of the command in use is
imported: start-up is part of every command's price.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from cortexfs.core.errors import EXIT_OK, Fault

# By name: the module, which is imported only for this command, and the summary.
COMMANDS = {
    "mount": ("mount.mount", "mount CortexFS and start its daemon"),
    "umount": ("mount.umount", "unmount it and end its daemon, also a dead or hung one"),
    "restart": ("mount.mount", "end the daemon and start it again with the current configuration"),
    "status": ("shell.look", "show the state of the mount"),
    "doctor": ("mount.doctor", "check the installation and the mount, and say how to mend them"),
    "ls": ("shell.look", "list objects"),
    "find": ("shell.look", "find tools by what they do"),
    "ask": ("ask.ask", "ask a model or an agent one question"),
    "run": ("run", "run an object"),
    "chat": ("talk.chat", "talk with a model or agent"),
    "send": ("talk.send", "send a message to an object, and print the answer"),
    "resume": ("talk.follow", "print what happened in a session, and follow it"),
    "cancel": ("talk.follow", "end a run"),
    "ping": ("talk.follow", "see whether an object's socket answers, and how fast"),
    "session": ("talk.session", "list, show, rename, remove and take over sessions"),
    "log": ("log.log", "list, search, show and remove questions and their answers"),
    "env": ("shell.look", "print the environment of a shell that works with the mount"),
    "plugin": ("plugin.group", "make, check, sign, install, enable and list plugins"),
    "provider": ("model.group", "add, list, test and remove the providers of models, and keep their keys"),
    "model": ("model.group", "make a model with defaults of its own"),
    "agent": ("agent.group", "make, list and remove agents"),
    "tool": ("tool.tool", "make a script a tool, list such tools and remove them"),
    "policy": ("agent.policy", "say who may run what and why, look for what is wrong, undo policies"),
    "mcp": ("mcp.mcp", "serve the tools of a mount to MCP clients, and take in those of MCP servers"),
    "web": ("web.web", "open the tree in a browser: talk, approve, run"),
    "state": ("state.state", "copy state and configuration into a file, and back"),
    "service": ("service.service", "have systemd keep the mount running"),
    "team": ("team.team", "join this machine with others, so that each sees what the others export"),
    "completion": ("shell.about", "print a completion script for bash, zsh or fish"),
    "help": ("shell.about", "show this help, or that of a command"),
    "version": ("shell.about", "print the version"),
}
# Other programs' words for a verb, and our verbs for them: the first one that the command has is meant.
SYNONYMS = {
    "ls": ("list",),
    "rm": ("remove", "uninstall"),
    "remove": ("rm", "uninstall"),
    "delete": ("rm", "remove", "uninstall"),
}
COLUMNS = 80  # the width of a line if no terminal tells it
# The original program creates a plugin with this option, before any command.
_NEW_PLUGIN = r"--new-(?:(process|native|python|rust)-)?plugin"
# Called by completion scripts; not shown in any help.
HIDDEN = {"complete": ("shell.complete", "")}


# Sentences of argparse, and ours for them.
_SENTENCES = (
    ("the following arguments are required: ([^,]+)", r"\1 is missing"),
    ("the following arguments are required: (.+)", r"\1 are missing"),
    ("argument ([^ ]+): expected (?:at least )?one argument", r"\1 needs a value"),
    ("argument ([^ ]+): ignored explicit argument .+", r"\1 takes no value"),
)


class CommandArgument(NamedTuple):
    """An argument or option, as argparse takes it."""

    name: str  # or several spellings of an option: -m --model
    how: Mapping[str, Any]


class Command(NamedTuple):
    """A command, or a verb of a command: the parts of its parser, and the function that carries it out."""

    # Returns an exit status, or nothing for success; or "module.function", imported on call.
    run: Callable[[argparse.Namespace], int | None] | str = ""
    arguments: tuple[CommandArgument, ...] = ()
    examples: tuple[str, ...] = ()  # ctx stands for the program's name; default: the first of each verb
    summary: str = ""  # of a verb only
    verbs: Mapping[str, Command] = MappingProxyType({})
    usage: str | None = None
    intermixed: bool = False  # options may stand between the words of the last argument
    takes_command: bool = False  # all words after `--` are `command`, even if options come before


def arg(name: str, metavar: str | None, help: str, **how: Any) -> CommandArgument:
    return CommandArgument(name, {"metavar": metavar, "help": help, **how})


def flag(name: str, help: str) -> CommandArgument:
    return CommandArgument(name, {"action": "store_true", "help": help})


JSON = flag("--json", "print JSON")
ROOT_HELP = "the mount that is meant (default: CTX_ROOT, else the one and only, else /ctx)"
ROOT = arg("--root", "DIR", ROOT_HELP, default=argparse.SUPPRESS)
PLACES = (
    arg("--state", "DIR", "where sessions, logs and secrets are (default: CTX_STATE)"),
    arg("--config", "DIR", "where config.toml is (default: CTX_CONFIG)"),
)
MOUNTED = (ROOT, *PLACES)
FAIL_ON_DENIED = "CTX_FAIL_ON_DENIED"
FAIL_ON_DENIED_FLAG = flag(
    "--fail-on-denied", f"end with status 13 where a call of an agent was denied (also: {FAIL_ON_DENIED}=1)"
)


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one sentence."""

    intermixed = takes_command = False  # as in Command

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not self.intermixed:
            return super().parse_args(args, namespace)
        words = [each.dest for each in self._actions if each.nargs == "*" and not each.option_strings]
        place = args.index("--") if words and "--" in args else len(args)  # the words after -- are no options
        found, rest = super().parse_known_intermixed_args(args[:place], namespace)
        self._refuse(rest)
        for name in words:
            setattr(found, name, [*getattr(found, name), *args[place + 1 :]])
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not self.takes_command:
            found, rest = super().parse_known_args(args, namespace)
            if not self.intermixed:
                self._give(found, rest)
                self._refuse(rest)
            return found, rest
        place = args.index("--") if "--" in args else len(args)
        found, rest = super().parse_known_args(args[:place], namespace)
        if rest and place == len(args) and not rest[0].startswith("-"):
            self.error(f"write the command after --, as in: -- {rest[0]}")
        self._refuse(rest)
        found.command = args[place + 1 :]
        return found, rest

    def _give(self, found: argparse.Namespace, rest: list[str]) -> None:
        """Give words after an option to arguments that may be missing, as Python 3.11 leaves them over."""
        waiting = [each for each in self._actions if each.nargs == "?" and not each.option_strings]
        for each in waiting:
            if rest and re.match("-$|[^-]", rest[0]) and not getattr(found, each.dest):
                setattr(found, each.dest, self._get_values(each, [rest.pop(0)]))

    def _refuse(self, rest: list[str]) -> None:
        """Raise the error for the first of the words that no argument takes."""
        if word := next((each for each in rest if each != "--"), None):
            option = word.partition("=")[0]
            if not option.startswith("-"):
                self.error(f"{word!r} is one argument too many")
            known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
            hint = re.sub("(mean|or) ", r"\1 --", nearest(option.lstrip("-"), known))
            self.error(f"there is no option {option}{hint}")

    def _get_formatter(self) -> argparse.HelpFormatter:
        # argparse creates one for each argument. Without a width, the first of them would import shutil.
        formatter_class: Callable[..., argparse.HelpFormatter] = self.formatter_class
        formatter = formatter_class(prog=self.prog, width=_columns() - 2)
        if paint := getattr(formatter, "_set_color", None):  # Python 3.14 colours help by default
            paint(False)
        return formatter

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = [str(choice) for choice in action.choices or ()]
        if known and str(value) not in known:
            mend = nearest(str(value), known) or f"; it can be {', '.join(known)}"
            raise argparse.ArgumentError(action, f"{value!r} is unknown{mend}")
        super()._check_value(action, value)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            for kind, wanted in ((int, "a whole number, as 3"), (float, "a number, as 1.5")):
                if action.type is kind:
                    mend = f"write {wanted}, in place of {arg_string!r}"
                    raise argparse.ArgumentError(action, mend) from None
            raise

    def error(self, message: str) -> NoReturn:
        for theirs, ours in _SENTENCES:
            message = re.sub(f"^{theirs}$", ours, message)
        raise Fault("EINVAL", message if message.endswith("?") else f"{message}; see: {self.prog} --help")


def _columns() -> int:
    with suppress(ValueError, OSError):
        return int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(1).columns or COLUMNS
    return COLUMNS


def program() -> str:
    """Returns "cortex" if that is the program's name. Any other name (python -m) becomes ctx."""
    return "cortex" if os.path.basename(sys.argv[0]) == "cortex" else "ctx"


def top(more: str = "") -> CommandParser:
    """Returns the parser of the program itself. Its help goes on with `more`."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
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
    parser.add_argument("--root", metavar="DIR", help=ROOT_HELP)
    return parser


def print_top(root_option: str | None) -> None:
    """Print the help of the program, with the commands of the mount's plugins."""
    from cortexfs.cli import plugin_commands  # a slow import that only help and those commands need

    lines = plugin_commands.help_lines(root_option).replace("%", "%%")
    top(f"\ncommands of plugins:\n{lines}\n" if lines else "").print_help()


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Returns the options of `ctx` itself, and the command with its own words."""
    place = 0
    while place < len(words) and words[place].startswith("-") and not re.match(_NEW_PLUGIN, words[place]):
        place += 2 if words[place] == "--root" else 1
    return words[:place], words[place:]


def canonical(words: list[str]) -> list[str]:
    """Returns the command under our names: `ls` for list; list if the command has verbs and none is typed."""
    if words and (found := re.fullmatch(_NEW_PLUGIN, words[0].partition("=")[0])):
        name_words = [words[0].partition("=")[2]] if "=" in words[0] else []
        return ["plugin", "new", *name_words, *words[1:], "--template", found[1] or "process"]
    if not words or words[0] not in COMMANDS or (declared := _declared(words[0])).run:
        return words
    command, *rest = words
    if not rest:
        return [command, "list"] if "list" in declared.verbs else words
    known = [each for each in SYNONYMS.get(rest[0], ()) if each in declared.verbs]
    return [command, known[0], *rest[1:]] if known and rest[0] not in declared.verbs else words


def is_ours(command: str) -> bool:
    return command in COMMANDS or command in HIDDEN


def any_command(command: str, root_option: str | None) -> CommandParser:
    """Returns the parser of a command, ours or a plugin's. Raises EINVAL with the nearest name if unknown."""
    if is_ours(command):
        return of_command(command)
    from cortexfs.cli import plugin_commands

    return plugin_commands.parser_of(plugin_commands.found(command, root_option)[1])


def of_command(name: str, verb: str = "") -> CommandParser:
    """Returns the parser of one command. If `verb` is a verb, the parser has only it: many take a while."""
    command_parser = CommandParser(prog=f"{program()} {name}", allow_abbrev=False)
    command_parser.add_argument(ROOT.name, **ROOT.how)
    summary = (COMMANDS | HIDDEN)[name][1]
    declared = _declared(name)._replace(summary=summary)
    if verb in declared.verbs:
        declared = declared._replace(verbs={verb: declared.verbs[verb]})
    return _fill(command_parser, declared)


def _declared(name: str) -> Command:
    declared: Command = _imported((COMMANDS | HIDDEN)[name][0]).COMMANDS[name]
    return declared


def _imported(module: str) -> Any:
    """Import a module of commands. Most import msgspec, which uses typing_extensions if installed, although
    typing has the same. That would be half of the import time, so it is hidden here."""
    hidden = "typing_extensions" not in sys.modules
    if hidden:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module(f"cortexfs.cli.{module}")
    finally:
        if hidden:
            del sys.modules["typing_extensions"]


def _fill(command_parser: CommandParser, of: Command) -> CommandParser:
    command_parser.usage, command_parser.intermixed, command_parser.takes_command = (
        of.usage,
        of.intermixed,
        of.takes_command,
    )
    command_parser.description = f"{of.summary[:1].upper()}{of.summary[1:]}."
    command_parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for argument in of.arguments:
        action = command_parser.add_argument(*argument.name.split(), **argument.how)
        action.required &= (
            action.nargs != argparse.REMAINDER
        )  # else the error for a missing OBJECT asks for ARGS too
    examples = of.examples or [verb.examples[0] for verb in of.verbs.values()]
    command_parser.epilog = "examples:\n" + "\n".join(f"  {line}" for line in examples)
    if of.verbs:
        verbs = command_parser.add_subparsers(
            metavar="VERB", required=not of.run, dest="verb", prog=command_parser.prog
        )
        for name, verb in of.verbs.items():
            _fill(verbs.add_parser(name, help=verb.summary), verb)
    return command_parser


def run(name: str, options: argparse.Namespace) -> int:
    """Run a command of ours, or its verb. Returns an exit status."""
    declared = _declared(name)
    handler = declared.verbs[options.verb].run if getattr(options, "verb", None) else declared.run
    if isinstance(handler, str):
        module, _, function = handler.rpartition(".")
        handler = getattr(_imported(module), function)
    if not gc.isenabled():  # cli/main.py turned it off; objects that exist by now stay
        gc.freeze()
        gc.enable()
    return handler(options) or EXIT_OK


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns the end of a sentence: "; did you mean X?" or nothing."""
    from difflib import get_close_matches  # a slow import that only a mistake needs

    found = get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def check_known(word: str, known: Collection[str], why: str, mend: str) -> None:
    """Raises ENOENT if a word is unknown: `why`, and the nearest known words, or without any `mend`."""
    if word not in known:
        raise Fault("ENOENT", f"{why}{nearest(word, known) or f'; {mend}'}")
