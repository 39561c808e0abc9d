"""The objects of a mount, found by what people call them.

Rules: what one read of the executable says is all that a listing asks for, because a mount may
have ten thousand objects and every further file costs a call to the daemon. Whoever lists first
makes sure that the mount answers (mounts.status_text), as these reads may block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from cortexfs.cli import parser
from cortexfs.core.errors import Fault
from cortexfs.core.names import CLASSES, RESERVED_SUFFIXES

# The order in which a bare name is looked up.
ORDER = ("tool", "agent", "model")
HEADER_BYTES = 8192
_HEADER = re.compile(r"^# cortexfs\.([a-z_]+)=(.*)$", re.MULTILINE)
_SENTENCE = re.compile(r"(.*?[.!?])(\s|$)", re.DOTALL)


class Listed(NamedTuple):
    object: str  # the path below the root: tool/fs.read, home/1000/agent/mine
    status: str
    origin: str
    description: str


def tiers(root: str) -> list[str]:
    """The directories that hold classes: the system's and the user's own."""
    return [root, f"{root}/home/{os.getuid()}"]


def paths(root: str) -> list[str]:
    """Every object that this user sees, as paths, in the order of lookup."""
    return [path for class_ in ORDER for path in paths_of(root, class_)]


def paths_of(root: str, class_: str) -> list[str]:
    found: list[str] = []
    for tier in tiers(root):
        found += _named(f"{tier}/{class_}")
        if class_ == "model":
            for provider in _entries(f"{tier}/model"):
                if not provider.endswith(RESERVED_SUFFIXES) and os.path.isdir(f"{tier}/model/{provider}"):
                    found += _named(f"{tier}/model/{provider}")
    return found


def _named(directory: str) -> list[str]:
    names = _entries(directory)
    # Every object has its .d; that tells it from a provider's directory without asking the daemon.
    controls = {name for name in names if name.endswith(".d")}
    aliases = {name for name in names if directory.endswith(("/model", "/agent")) and f"{name}.d" not in controls}
    return [
        f"{directory}/{name}"
        for name in names
        if f"{name}.d" in controls or (name in aliases and os.path.islink(f"{directory}/{name}"))
    ]


def _entries(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return []


def short(root: str, path: str) -> str:
    """How a listing names the object at `path`."""
    return path.removeprefix(f"{root}/")


def resolve(root: str, name: str) -> str:
    """The path of the object that is called `name`: fs.read, tool/fs.read, openai/gpt, or a path."""
    if name.startswith(("/", "./", "../", "~/")):
        return _checked(os.path.expanduser(name), name)
    first = name.partition("/")[0]
    if first in (*CLASSES, "home", "shared"):
        places = [f"{tier}/{name}" for tier in tiers(root)]
        found = [path for path in places if os.path.lexists(path)][:1]
    else:
        found = [path for class_ in ORDER for tier in tiers(root) if os.path.lexists(path := f"{tier}/{class_}/{name}")]
    classes = sorted({short(root, path) for path in found})
    if len(classes) > 1:
        raise Fault("EINVAL", f"{name!r} may mean {' or '.join(classes)}; say which")
    if not found:
        raise Fault("ENOENT", f"there is no object {name!r}{_nearest(root, name)}")
    return _checked(found[0], name)


def _checked(path: str, name: str) -> str:
    """`path`, if it can be an object; a control directory or a provider is none."""
    if not os.path.lexists(path):
        raise Fault("ENOENT", f"there is no {name}")
    if os.path.isdir(path) or path.endswith(RESERVED_SUFFIXES):
        raise Fault("EINVAL", f"{name!r} is no object that can be run; give a tool, model or agent, see: ctx ls")
    return path


def _nearest(root: str, name: str) -> str:
    known: dict[str, None] = {}
    for path in paths(root):
        whole = short(root, path)
        known |= dict.fromkeys((whole, whole.partition("/")[2]))
    return parser.nearest(name, known) or "; see: ctx ls"


def listed(root: str, path: str) -> Listed:
    """What the first lines of an executable say about it."""
    name = short(root, path)
    try:
        with open(path, "rb", buffering=0) as file:
            said = dict(_HEADER.findall(file.read(HEADER_BYTES).decode(errors="replace")))
    except OSError as problem:
        return Listed(name, "unreadable", "-", problem.strerror or "")
    if os.path.islink(path):
        said["description"] = f"alias of {short(root, os.readlink(path))}"
    return Listed(name, said.get("status", "-"), _origin(path, said), said.get("description", ""))


def _origin(path: str, said: dict[str, str]) -> str:
    if origin := said.get("origin") or said.get("plugin"):
        return origin
    try:
        with open(f"{os.path.realpath(path)}.d/origin", encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return "-"


def select(root: str, name: str | None) -> list[str]:
    """The paths that `ctx ls NAME` means: all, a class, a provider's models, or one object."""
    if name is None:
        return paths(root)
    wanted = name.rstrip("/")
    if wanted in CLASSES:
        return paths_of(root, wanted)
    every = paths(root)
    inside = [path for path in every if short(root, path).startswith((f"{wanted}/", f"model/{wanted}/"))]
    return inside or [resolve(root, name)]


def first_sentence(text: str) -> str:
    found = _SENTENCE.match(text)
    return found[1] if found else text


def each(root: str, chosen: list[str]) -> Iterator[Listed]:
    return (listed(root, path) for path in chosen)
