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
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from cortexfs.cli import mounts, objects, parser
from cortexfs.cli.bounded import ask
from cortexfs.cli.run import become
from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.safe_text import within

FILE = ".commands"  # below the root, in no listing
SECONDS = 1.0  # the time that help and completion wait for a mount
READY = "ready"
_OURS = ":"  # the beginning of a value's name in a namespace: no option of ours begins so


def run(name: str, words: list[str], given: str | None) -> int:
    """Become the command. Returns only after showing help, or raises a Fault. Output is text like that of a
    program, also in a pipe, unless CTX_OUTPUT says otherwise."""
    point, one = found(name, given)
    options = parser_of(one).parse_args(_marked(words))
    input = json.dumps(dict(_values(one, vars(options))))
    output = os.environ.get("CTX_OUTPUT") or "text"
    try:
        become(f"{point}/{objects.RUNNER}", [name, f"{point}/{FILE}", name, input], CTX_OUTPUT=output)
    except OSError as problem:
        if problem.errno == errno.E2BIG:
            raise Fault("EMSGSIZE", "its arguments are over 128 KiB together") from None
        raise Fault("EHOSTDOWN", f"the runner of {point} does not start: {problem.strerror}") from None


def found(name: str, given: str | None) -> tuple[str, dict[str, Any]]:
    """Returns the mount that has the command, and its declaration. Raises a Fault if there is none."""
    unknown = f"; see: {parser.program()} --help"
    known: dict[str, dict[str, Any]] = {}
    try:
        point = mounts.root(given)
        known = listed(point, mounts.ANSWER_SECONDS)
    except Fault as fault:
        unknown += f"; commands of plugins are unknown, as {fault.message}"
    if name not in known:
        hint = parser.nearest(name, [*parser.COMMANDS, *known]) or unknown
        raise Fault("EINVAL", f"there is no command {name!r}{hint}")
    one = known[name]
    if one["status"] != READY:
        mend = f"; enable it with: ctx plugin enable {one['plugin']}" if one["status"] == "disabled" else ""
        raise Fault("EHOSTDOWN", f"its plugin {one['plugin']} is {one['status']}{mend}")
    return point, one


def listed(point: str, seconds: float) -> dict[str, dict[str, Any]]:
    """Returns the commands of plugins by name, as the mount lists them. Only ready ones are complete."""
    try:
        text = ask(Path(point, FILE).read_bytes, seconds)
    except OSError:
        mounts.status_text(point, seconds)  # raises a Fault that says what is wrong
        return {}
    rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
    return {row["name"]: row for row in rows if row["name"] not in parser.COMMANDS}


def ready(given: str | None) -> dict[str, dict[str, Any]]:
    """Returns the ready commands, for help and completion; none if no mount answers at once."""
    try:
        known = listed(mounts.root(given), SECONDS)
    except Fault:
        return {}
    return {name: one for name, one in known.items() if one["status"] == READY}


def help_lines(given: str | None) -> str:
    """Returns the lines about plugins' commands in the help of the program."""
    known = ready(given)
    width = max(map(len, [*parser.COMMANDS, *known]))
    return "\n".join(f"  {name:{width}}  {_shown(one['description'])}" for name, one in known.items())


def parser_of(one: dict[str, Any]) -> parser.CommandParser:
    places = [f"<{arg['name']}>" if arg.get("required") else f"[<{arg['name']}>]" for arg in one["args"]]
    made = parser.CommandParser(
        prog=f"{parser.program()} {one['name']}",
        usage=" ".join(["%(prog)s", "[options]", *(_plain(place) for place in places)]),
        description=_plain(one["description"])
        if "%(prog)" in one["description"]
        else _shown(one["description"]),
        epilog=f"a command of the plugin {one['plugin']}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        conflict_handler="resolve",
        allow_abbrev=False,
    )
    made.intermixed = True
    for arg in one["args"]:
        _add(made, arg, [], f"<{arg['name']}>", nargs=None if arg.get("required") else "?")
    for option in one["options"]:
        names = [option["flag"], f"--{option['name']}"]
        _add(made, option, names if option["name"] != "help" else names[:1], option["type"].upper())
    return made


def _add(made: parser.CommandParser, said: dict[str, Any], names: list[str], shown: str, **how: Any) -> None:
    how["help"] = _plain(said["description"])
    if said["type"] == "boolean" and names and said["name"].startswith("no-"):
        how |= {"action": "store_const", "const": True}
    elif said["type"] == "boolean" and names:
        how["action"] = argparse.BooleanOptionalAction
    else:
        how |= {"metavar": _shown(shown)} | _TYPES[said["type"]]
    dest = _OURS + said["name"]
    made.add_argument(*(names or [dest]), **how | ({"dest": dest} if names else {}))


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


def _values(one: dict[str, Any], given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the input (abi.md 9.17). A value that was not passed has no key."""
    for said in (*one["args"], *one["options"]):
        name, value = said["name"], given.get(_OURS + said["name"])
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise Fault("EINVAL", f"{name}: expected text, got bytes that are no UTF-8") from None
        if value is not None:
            yield name, _WORDS.get(value, value) if said["type"] == "boolean" else value


def _shown(text: str) -> str:
    """Returns untrusted text on one line."""
    return within(" ".join(text.split()))


def _plain(text: str) -> str:
    """Returns `text` for argparse, which would read % as its own."""
    return _shown(text).replace("%", "%%")
