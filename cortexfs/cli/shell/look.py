"""`ctx ls`, `ctx find`, `ctx status` and `ctx env`: objects, the status, and a shell's environment."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from typing import Any

from cortexfs.cli import bounded, mounts, objects, output
from cortexfs.cli.parser import JSON, Command, arg, flag
from cortexfs.core.errors import Fault
from cortexfs.core.finding import AllowedRow, best, words_of
from cortexfs.core.safe_text import within

# The usual widths of the status and of `plugin:NAME@VERSION`, as rows are printed one by one.
STATUS_WIDTH, ORIGIN_WIDTH = 8, 18
ALLOWED = flag("--allowed", "only tools that you, or the agent that runs this, may run")
_NUMBER = re.compile(r"(\d+)(?: s)?")
_COUNTS = re.compile(r"(\d+) ([a-z]+)(?:, |$)")


def ls(options: argparse.Namespace) -> None:
    root = mounts.answering(options.root)
    if options.allowed:
        return _print_allowed(root, options)
    paths = objects.select(root, options.name)
    rows = objects.rows(root, paths)
    if options.json:
        return output.emit([row._asdict() for row in rows])
    width = max((len(objects.short(root, path)) for path in paths), default=0)
    cells = ((row.object, row.status, row.origin, objects.first_sentence(row.description)) for row in rows)
    output.table(objects.ObjectRow._fields, cells, (width, STATUS_WIDTH, ORIGIN_WIDTH, 0))


def _print_allowed(root: str, options: argparse.Namespace) -> None:
    """Print all at once: there may be ten thousand, and their fields have no control characters."""
    if options.name not in (None, "tool", "tool/"):
        raise Fault("EINVAL", "--allowed is about tools; say: ctx ls tool --allowed")
    rows = [line.split("\t") for line in objects.allowed(root).splitlines()]
    if options.json:
        tools = [AllowedRow(*row) for row in rows]
        output.emit([objects.ObjectRow(*row[:3], row.description)._asdict() for row in tools])
    elif sys.stdout.isatty():
        output.table(("object", "description"), [(row[0], row[3]) for row in rows])
    else:
        width = max((len(row[0]) for row in rows), default=0)
        sys.stdout.write("".join([f"{row[0]:{width}}  {row[3]}\n" for row in rows]))


def find(options: argparse.Namespace) -> None:
    """Print the tools that match some words, best first. Tools that the caller may not run are left out."""
    words = words_of(" ".join(options.words))
    if not words:
        raise Fault("EINVAL", "say what a tool is to do in a word or more, such as: ctx find read file")
    root = mounts.answering(options.root)
    rows = best(objects.allowed(root), words)
    if options.json:
        output.emit([_details(root, row) for row in rows])
    elif rows:
        output.table(("object", "description"), [(row.object, row.sentence) for row in rows])
    else:
        query = " ".join(words)
        output.say(f"you may run no tool with a word like these: {query}; see: ctx ls tool --allowed")


def _details(root: str, row: AllowedRow) -> dict[str, Any]:
    import json  # a slow import that only JSON needs

    path = f"{root}/{row.object}"
    return {
        "object": row.object,
        "description": objects.control(path, "description").strip(),
        "schema": json.loads(objects.control(path, "schema") or "{}"),
        "effects": objects.control(path, "effects").splitlines(),
    }


def status(options: argparse.Namespace) -> None:
    text = mounts.status_text(mounts.root(options.root))
    if options.json:
        output.emit(parsed(text))
    else:
        for line in text.splitlines():
            print(within(line))


def parsed(text: str) -> dict[str, Any]:
    """Returns the status as JSON: numbers, `3 active, 120 total` as an object, repeated keys as a list."""
    found: dict[str, Any] = {"broken_plugins": {}}
    facts = mounts.facts(text)
    for key, values in facts.items():
        if key == "broken plugin":
            found["broken_plugins"] = mounts.by_name(facts, key)
        else:
            decoded = [_value(value) for value in values]
            found[key.replace(" ", "_")] = decoded[0] if len(decoded) == 1 else decoded
    return found


def _value(text: str) -> Any:
    if number := _NUMBER.fullmatch(text):
        return int(number[1])
    counts = _COUNTS.findall(text)
    if counts and not _COUNTS.sub("", text):
        return {word: int(count) for count, word in counts}
    return text


def env(options: argparse.Namespace) -> None:
    root = mounts.root(options.root)
    home = f"{root}/home/{os.getuid()}"
    path = [each for each in os.environ.get("PATH", os.defpath).split(":") if each != f"{root}/bin"]
    if not _finds_program_of(root, path):
        path.insert(0, f"{root}/bin")
    variables = {
        "CTX_ROOT": root,
        "CTX_HOME": home,
        "CTX_PATH": f"{root}/tool:{home}/tool",
        "PATH": ":".join(path),
    }
    if options.json:
        output.emit(variables)
    else:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")


def _finds_program_of(root: str, path: list[str]) -> bool:
    """Returns True if this PATH finds the mount's `ctx` in its permanent place. A shell would remember a path
    in the mount even after the mount has gone."""
    found = next((each for place in path if os.access(each := os.path.join(place, "ctx"), os.X_OK)), "")
    try:
        own = bounded.ask(lambda: os.readlink(os.fsencode(f"{root}/bin/ctx")), mounts.ANSWER_SECONDS)
    except OSError:
        return False
    return os.path.realpath(os.fsencode(found)) == os.path.realpath(own)


COMMANDS = {
    "ls": Command(
        ls,
        (
            arg("name", "CLASS|OBJECT", "tool, model, agent, a provider or one object", nargs="?"),
            ALLOWED,
            JSON,
        ),
        ("ctx ls", "ctx ls tool --allowed", "ctx ls fs.read", "ctx ls --json | jq -r '.[].object'"),
    ),
    "find": Command(
        find,
        (arg("words", "WORD", "what a tool is to do", nargs="+"), JSON),
        ("ctx find read file", "ctx find issues", "ctx find time zone --json | jq '.[0].schema'"),
    ),
    "status": Command(
        status, (JSON,), ("ctx status", "ctx status --root /mnt/ctx", "ctx status --json | jq .runs.active")
    ),
    "env": Command(
        env, (JSON,), ('eval "$(ctx env)"', "ctx env | source        # fish", "ctx env --root /mnt/ctx")
    ),
}
