"""`cortex NAME` of a plugin: the command is found in the mount, parsed as declared, and run as the caller.

Main path: `run` asks the mount for the declaration, and makes a parser of it like those of our own commands.
The process becomes the runner, which has the mount call the command with one JSON object. So exit status,
streams and signals are those of any object.

Rules: nothing here is imported for a command of our own, and no plugin's command ever hides one of ours. A
plugin's declaration is untrusted input: it is shown without control characters, and the plugin's host checks
the input again.
"""

from __future__ import annotations

import argparse
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from cortexfs.cli import mounts, objects, output, parser
from cortexfs.cli.bounded import ask
from cortexfs.cli.run import become
from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.safe_text import within

FILE = ".commands"  # below the root, in no listing
SECONDS = 1.0  # the time that help and completion wait for a mount
READY = "ready"
_OURS = ":"  # the beginning of a value's name in a namespace: no option of ours begins so


def run(name: str, words: list[str], root_option: str | None) -> int:
    """Become the command. Returns only after showing help, or raises a Fault. Output is text like that of a
    program, also in a pipe, unless CTX_OUTPUT says otherwise."""
    point, command = found(name, root_option)
    options = parser_of(command).parse_args(_marked(words))
    input = json.dumps(dict(_values(command, vars(options))))
    form = output.form(None) or "text"
    try:
        become(f"{point}/{objects.RUNNER}", [name, f"{point}/{FILE}", name, input], CTX_OUTPUT=form)
    except OSError as problem:
        if problem.errno == errno.E2BIG:
            raise Fault("EMSGSIZE", "its arguments are over 128 KiB together") from None
        raise Fault("EHOSTDOWN", f"the runner of {point} does not start: {problem.strerror}") from None


def found(name: str, root_option: str | None) -> tuple[str, dict[str, Any]]:
    """Returns the mount that has the command, and its declaration. Raises a Fault if there is none."""
    unknown = f"; see: {parser.program()} --help"
    known: dict[str, dict[str, Any]] = {}
    try:
        point = mounts.root(root_option)
        known = listed(point, mounts.ANSWER_SECONDS)
    except Fault as fault:
        unknown += f"; commands of plugins are unknown, as {fault.message}"
    if name not in known:
        hint = parser.nearest(name, [*parser.COMMANDS, *known]) or unknown
        raise Fault("EINVAL", f"there is no command {name!r}{hint}")
    command = known[name]
    if command["status"] != READY:
        mend = (
            f"; enable it with: ctx plugin enable {command['plugin']}"
            if command["status"] == "disabled"
            else ""
        )
        raise Fault("EHOSTDOWN", f"its plugin {command['plugin']} is {command['status']}{mend}")
    return point, command


def listed(point: str, seconds: float) -> dict[str, dict[str, Any]]:
    """Returns the commands of plugins by name, as the mount lists them. Only ready ones are complete."""
    try:
        text = ask(Path(point, FILE).read_bytes, seconds)
    except OSError:
        mounts.status_text(point, seconds)  # raises a Fault that says what is wrong
        return {}
    rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    return {row["name"]: row for row in rows if row["name"] not in parser.COMMANDS}


def ready(root_option: str | None) -> dict[str, dict[str, Any]]:
    """Returns the ready commands, for help and completion; none if no mount answers at once."""
    try:
        known = listed(mounts.root(root_option), SECONDS)
    except Fault:
        return {}
    return {name: command for name, command in known.items() if command["status"] == READY}


def help_lines(root_option: str | None) -> str:
    """Returns the lines about plugins' commands in the help of the program."""
    known = ready(root_option)
    width = max(map(len, [*parser.COMMANDS, *known]))
    return "\n".join(
        f"  {name:{width}}  {_one_line(command['description'])}" for name, command in known.items()
    )


def parser_of(command: dict[str, Any]) -> parser.CommandParser:
    places = [f"<{arg['name']}>" if arg.get("required") else f"[<{arg['name']}>]" for arg in command["args"]]
    command_parser = parser.CommandParser(
        prog=f"{parser.program()} {command['name']}",
        usage=" ".join(["%(prog)s", "[options]", *(_plain(place) for place in places)]),
        description=_plain(command["description"])
        if "%(prog)" in command["description"]
        else _one_line(command["description"]),
        epilog=f"a command of the plugin {command['plugin']}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    command_parser.intermixed = True
    for arg in command["args"]:
        _add(command_parser, arg, [], f"<{arg['name']}>", nargs=None if arg.get("required") else "?")
    for option in command["options"]:
        names = [option["flag"], f"--{option['name']}"]
        _add(command_parser, option, names if option["name"] != "help" else names[:1], option["type"].upper())
    return command_parser


def _add(
    command_parser: parser.CommandParser, argument: dict[str, Any], names: list[str], metavar: str, **how: Any
) -> None:
    how["help"] = _plain(argument["description"])
    if argument["type"] == "boolean" and names and argument["name"].startswith("no-"):
        how |= {"action": "store_const", "const": True}
    elif argument["type"] == "boolean" and names:
        how["action"] = argparse.BooleanOptionalAction
    else:
        how |= {"metavar": _one_line(metavar)} | _TYPES[argument["type"]]
    dest = _OURS + argument["name"]
    command_parser.add_argument(*(names or [dest]), **how | ({"dest": dest} if names else {}))


def _marked(words: list[str]) -> list[str]:
    """Returns the words, with a mark (that no word has) on those after `--`, as argparse would lose `--`."""
    own = words.index("--") if "--" in words else len(words)
    return words[:own] + [f"\0{word}" for word in words[own + 1 :]]


def _word(text: str) -> str:
    return text.removeprefix("\0")


def _number(text: str) -> int | float:
    """Returns a number as JSON writes one, and as a host reads it."""
    text = _word(text)
    try:
        value = jsontext.decode(text, "")
    except (Fault, UnicodeEncodeError):
        value = None
    if jsontext.type_name(value) != "number":
        raise argparse.ArgumentTypeError(f"expected a number, got {jsontext.clipped(text, 100)!r}")
    return cast(int | float, value)


_WORDS = {"true": True, "false": False}
_TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": _word},
    "number": {"type": _number},
    "boolean": {"type": _word, "choices": tuple(_WORDS)},
}


def _values(command: dict[str, Any], namespace: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the input (abi.md 9.17). A value that was not passed has no key."""
    for argument in (*command["args"], *command["options"]):
        name, value = argument["name"], namespace.get(_OURS + argument["name"])
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise Fault("EINVAL", f"{name}: expected text, got bytes that are no UTF-8") from None
        if value is not None:
            yield name, _WORDS.get(value, value) if argument["type"] == "boolean" else value


def _one_line(text: str) -> str:
    """Returns untrusted text on one line."""
    return within(" ".join(text.split()))


def _plain(text: str) -> str:
    """Returns `text` for argparse, which would read % as its own."""
    return _one_line(text).replace("%", "%%")
