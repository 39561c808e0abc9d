"""`ctx complete -- WORDS...`: prints candidates for the last word, one a line.

WORDS is a command line up to the cursor: of `ctx` itself, or of an object typed as a path. Without WORDS it
prints the paths of all objects, as bash must register each of them.

Rules: the answer is for scripts. Without a candidate, a mount or a command it is empty, and the shell then
offers files. Options come from the parsers, so nothing is listed twice in this program.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable

from cortexfs.cli import mounts, objects, parser, plugin_commands
from cortexfs.cli.bounded import ask
from cortexfs.cli.daemons import places_at
from cortexfs.cli.parser import Command
from cortexfs.core.errors import Fault
from cortexfs.core.names import CLASSES

PROGRAMS = ("ctx", "cortex")
# A person types on during completion, so a mount that takes longer has no candidates.
SECONDS = 1.0


def run(options: argparse.Namespace) -> None:
    words = options.words[1:] if options.words[:1] == ["--"] else options.words
    try:
        found = candidates(words, options.root) if words else objects.paths(_live(options.root))
    except Fault:
        found = []
    for candidate in found:
        if candidate.isprintable():
            print(candidate)


COMMANDS = {"complete": Command(run)}


def candidates(words: list[str], root: str | None = None) -> list[str]:
    """Returns the candidates for the last of `words`."""
    if os.path.basename(words[0]) not in PROGRAMS:
        return _of_object(_expanded(words[0]), words[1:])
    own, rest = parser.split(words[1:-1])
    top = parser.top().parse_args(own)
    root = top.root or root
    current = words[-1]
    if rest:
        return _of_command(parser.any_command(rest[0], root), rest[1:], current, root)
    known = _visible(parser.top()) if current.startswith("-") else _commands(current, root)
    return _matching(known, current)


def _of_command(of: argparse.ArgumentParser, before: list[str], current: str, root: str | None) -> list[str]:
    """Follow the words through the parser to the argument under the cursor."""
    places = [action for action in of._actions if not action.option_strings]
    waiting: argparse.Action | None = None
    name: str | None = None
    for number, word in enumerate(before):
        option = of._option_string_actions.get(word)
        if waiting or option:
            name = word if waiting and waiting.dest == "asked" else name
            waiting = option if option and option.nargs is None and not waiting else None
        elif places and isinstance(places[0].choices, dict):
            return _of_command(places[0].choices[word], before[number + 1 :], current, root)
        elif places and places[0].dest == "runnable":
            return _of_object(objects.resolve(_live(root), _expanded(word)), [*before[number + 1 :], current])
        elif not word.startswith("-"):
            name = word if places and places[0].metavar == "OBJECT" else name
            places = places if places and places[0].nargs == "+" else places[1:]
    label, equals, value = current.partition("=")
    if current.startswith("--") and equals and not waiting:
        waiting = of._option_string_actions.get(label)
        if waiting is None or waiting.nargs is not None:
            return []
        found = _values(waiting, name, value, root)
        return [f"{label}={word}" for word in found] or _files(f"{label}=", current)
    if current.startswith("-") and not waiting:
        return _matching(_visible(of), current)
    here = waiting or next(iter(places), None)
    return _values(here, name, current, root) if here else []


def _values(of: argparse.Action, name: str | None, current: str, root: str | None) -> list[str]:
    """Returns the possible words of an argument."""
    if of.metavar == "SESSION":
        return _matching(_sessions(name or objects.MAIN, root), current)
    if of.choices:
        return _matching(list(of.choices), current)
    known = VALUES.get(of.dest) or VALUES.get(str(of.metavar))
    return _matching(known(current, root), current) if known else []


def _expanded(word: str) -> str:
    """Returns a word as the shell expands it for its command: $CTX_ROOT/tool/fs.read may be typed too."""
    return os.path.expandvars(os.path.expanduser(word))


def _sessions(name: str, root: str | None) -> list[str]:
    """Returns the sessions of the object that was named before, in both spaces."""
    from cortexfs.chat import sessions

    _, full_name = objects.conversing(mount := _live(root), name)
    return [
        session.session for space in sessions.SPACES for session in sessions.each(mount, full_name, space)
    ]


def _commands(current: str, root: str | None) -> list[str]:
    return [*parser.COMMANDS, *plugin_commands.ready(root)]


def _objects(current: str, root: str | None) -> list[str]:
    return _names(current, _live(root), objects.ORDER)


def _talking(current: str, root: str | None) -> list[str]:
    """Returns agents and models, as tools hold no conversations."""
    return _names(current, _live(root), ("agent", "model"))


def _names(current: str, point: str, classes: tuple[str, ...]) -> list[str]:
    """Returns bare names, or whole ones once a class has been typed."""
    names = [objects.short(point, path) for class_ in classes for path in objects.paths_of(point, class_)]
    is_full = current.partition("/")[0] in (*CLASSES, "home")
    return names if is_full else [objects.bare(name) for name in names]


def _plugins(current: str, root: str | None) -> list[str]:
    from cortexfs.plugins.install.entry_points import found  # reads the metadata of every installed package
    from cortexfs.plugins.package.directory import FOLDER, folders

    folder = folders(places_at(root).state / FOLDER)
    return [*(entry.plugin.name for entry in found()), *(each.name for each in folder)]


def _providers(current: str, root: str | None) -> list[str]:
    from cortexfs.cli.model import own
    from cortexfs.models.providers.files import Providers

    if (point := own.root_of(root)) is not None:
        return own.names(point)
    where = places_at(root)
    return list(Providers(where.config, where.state).load().providers)


def _servers(current: str, root: str | None) -> list[str]:
    from cortexfs.plugins.mcp_servers import Servers

    return Servers(*reversed(places_at(root))).names()


def _presets(current: str, root: str | None) -> list[str]:
    from cortexfs.models.providers.provider import PRESETS

    return list(PRESETS)


def _formats(current: str, root: str | None) -> list[str]:
    from cortexfs.models.providers.provider import FORMATS

    return list(FORMATS)


def _agents(current: str, root: str | None) -> list[str]:
    """Returns the agents that can be removed, so neither the built-in one nor links."""
    point = _live(root)
    paths = objects.without_aliases(point, "agent")
    return [os.path.basename(path) for path in paths if objects.row_of(point, path).origin != "builtin"]


def _tools(current: str, root: str | None) -> list[str]:
    return [os.path.basename(path) for path in objects.without_aliases(_live(root), "tool")]


def _exportable(current: str, root: str | None) -> list[str]:
    """Returns whole names, without aliases, and without objects of homes and of other machines."""
    point = _live(root)
    names = [objects.short(point, path) for path in objects.without_aliases(point, *CLASSES)]
    return [name for name in names if "+" not in name and not name.startswith("home/")]


def _added(current: str, root: str | None) -> list[str]:
    from cortexfs.cli.tool.tool import added

    return [objects.bare(row.object) for row in added(_live(root))]


def _logged(current: str, root: str | None) -> list[str]:
    """Returns the ids of the newest questions."""
    from cortexfs.cli.log import index

    with index.opened(_live(root)) as log:
        return [entry.id for entry in log.find(index.Wanted(most=100))]


def _callers(current: str, root: str | None) -> list[str]:
    import pwd

    point = _live(root)
    agents = [objects.short(point, path) for path in objects.paths_of(point, "agent")]
    return [*agents, *(user.pw_name for user in pwd.getpwall())]


def _templates(current: str, root: str | None) -> list[str]:
    from cortexfs.cli.ask import prompts, template

    return [*template.known(), *prompts.descriptions(root)]


# By the program's name for an argument, or else by the name in its help.
VALUES: dict[str, Callable[[str, str | None], list[str]]] = {
    "runnable": _objects,
    "wanted": _objects,
    "logged": _logged,
    "OBJECT": _talking,
    "asked": _talking,
    "TEMPLATE": _templates,
    "CLASS|OBJECT": lambda current, root: [*CLASSES, *_objects(current, root)],
    "PLUGIN": _plugins,
    "PROVIDER": _providers,
    "SERVER": _servers,
    "VENDOR|NAME": _presets,
    "FORMAT": _formats,
    "MODEL": lambda current, root: _names("", _live(root), ("model",)),
    "AGENT": _agents,
    "TOOL": _tools,
    "ADDED": _added,
    "exported": _exportable,
    "CALLER": _callers,
    "COMMAND": _commands,
}


def _of_object(path: str, words: list[str]) -> list[str]:
    """Returns the arguments of an object by its schema. Models and agents take words of any kind."""
    from cortexfs.core.arguments import usage

    try:
        schema = json.loads(ask(lambda: _schema(path), SECONDS) or b"null")
    except (OSError, ValueError):
        return []
    if schema is None:
        return _matching(["--help"], words[-1]) if words[-1].startswith("-") and len(words) == 1 else []
    found = usage.complete(schema, words)
    return [name for candidate in found for name in _file_names(candidate, words[-1], usage.FILES)]


def _schema(path: str) -> bytes:
    """Returns a tool's schema; empty for an object without one. Raises OSError if there is no such object."""
    controls = f"{os.path.realpath(path)}.d"
    if "schema" not in os.listdir(controls):
        return b""
    with open(f"{controls}/schema", "rb") as file:
        return file.read()


def _file_names(candidate: str, current: str, files: str) -> list[str]:
    """Returns the candidate, or the file names that it stands for."""
    return _files(candidate.removesuffix(files), current) if candidate.endswith(files) else [candidate]


def _files(lead: str, current: str) -> list[str]:
    if current.startswith("~"):  # zsh would quote it in a candidate; shells complete these themselves
        return []
    directory, slash, start = current.removeprefix(lead).rpartition("/")
    try:
        entries = list(os.scandir(os.path.expanduser(directory + slash) or "."))
    except OSError:
        return []
    return [
        f"{lead}{directory}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in sorted(entries, key=lambda entry: entry.name)
        if entry.name.startswith(start) and (start or not entry.name.startswith("."))
    ]


def _live(root: str | None) -> str:
    return mounts.answering(root, SECONDS)


def _visible(of: argparse.ArgumentParser) -> list[str]:
    actions = [action for action in of._actions if action.help != argparse.SUPPRESS]
    return [option for action in actions for option in action.option_strings if option.startswith("--")]


def _matching(known: list[str], current: str) -> list[str]:
    return [word for word in dict.fromkeys(known) if word.startswith(current)]
