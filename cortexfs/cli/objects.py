"""The objects of a mount, found by the names that people type.

Rules: a listing reads one file about all objects of the system, and each other executable once. A mount may
have ten thousand objects, and every further file costs calls to the daemon. Before a listing, the caller
makes sure that the mount answers (mounts.status_text), as these reads may block.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cortexfs.cli import parser
from cortexfs.core.errors import Fault
from cortexfs.core.names import CLASSES, RESERVED_SUFFIXES

NAMED = "debug/echo, model/debug/echo, an alias as model/main, or a path"
MAIN = "model/main"  # the object of a command that names none
TALKING = parser.arg("object", "OBJECT", NAMED)
# The order in which a bare name is looked up.
ORDER = ("tool", "agent", "model")
HEADER_BYTES = 8192
FACTS, ALLOWED = ".objects", ".allowed"  # below the root, in no listing
RUNNER = "bin/cortexfs-object-runner"
_HEADER = r"(?m)^# cortexfs\.([a-z_]+)=(.*)$"
_WHOLE = r"(?:.*/)?((model)/[^/]+/[^/]+|(agent|tool)/[^/]+)"
_SENTENCE = r"(?s)(.*?[.!?])(\s|$)"


class ObjectRow(NamedTuple):
    object: str  # the path below the root: tool/fs.read, home/1000/agent/mine
    status: str
    origin: str
    description: str


def tiers(root: str) -> list[str]:
    """Returns the directories that hold classes: the system's and the user's own."""
    return [root, f"{root}/home/{os.getuid()}"]


def paths(root: str) -> list[str]:
    """Returns the paths of all objects that this user sees, in the order of lookup."""
    return [path for class_ in ORDER for path in paths_of(root, class_)]


def paths_of(root: str, class_: str) -> list[str]:
    found: list[str] = []
    for tier in tiers(root):
        found += _paths_in(f"{tier}/{class_}")
        if class_ == "model":
            for provider in _entries(f"{tier}/model"):
                if not provider.endswith(RESERVED_SUFFIXES) and os.path.isdir(f"{tier}/model/{provider}"):
                    found += _paths_in(f"{tier}/model/{provider}")
    return found


def without_aliases(root: str, *classes: str) -> list[str]:
    return [path for class_ in classes for path in paths_of(root, class_) if not os.path.islink(path)]


def _paths_in(directory: str) -> list[str]:
    """Returns the objects in a directory: names with a `.d` (which a provider lacks), and aliases."""
    names, found = _entries(directory), []
    controls = {name for name in names if name.endswith(".d")}
    for name in names:
        path = f"{directory}/{name}"
        if f"{name}.d" in controls or (not name.endswith(RESERVED_SUFFIXES) and os.path.islink(path)):
            found.append(path)
    return found


def _entries(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return []


def short(root: str, path: str) -> str:
    """Returns the name of the object at `path` in listings."""
    return path.removeprefix(f"{root}/")


def bare(name: str) -> str:
    """Returns the name without its class, and without the home of the object."""
    parts = name.split("/")
    return "/".join(parts[3:] if parts[0] == "home" else parts[1:])


def resolve(root: str, name: str) -> str:
    """Returns the path of the object called `name`: fs.read, tool/fs.read, openai/gpt, or a path."""
    if name.startswith(("/", "./", "../", "~/")):
        return _checked(os.path.expanduser(name), name)
    first = name.partition("/")[0]
    if first in (*CLASSES, "home", "shared"):
        places = [f"{tier}/{name}" for tier in tiers(root)]
        found = [path for path in places if os.path.lexists(path)][:1]
    else:
        candidates = [
            path
            for class_ in ORDER
            for tier in tiers(root)
            if os.path.lexists(path := f"{tier}/{class_}/{name}")
        ]
        # A provider is a folder and no object. Your home has one too, as soon as you have sessions.
        found = [path for path in candidates if not os.path.isdir(path)] or candidates[:1]
    classes = sorted({short(root, path) for path in found})
    if len(classes) > 1:
        raise Fault("EINVAL", f"{name!r} may mean {' or '.join(classes)}; say which")
    if not found:
        # Names as complete or as short as the typed name.
        full_names = [short(root, path) for path in paths(root)]
        known = full_names if first in (*CLASSES, "home") else [bare(full_name) for full_name in full_names]
        hint = parser.nearest(name, known) or "; see: ctx ls"
        raise Fault("ENOENT", f"there is no object {name!r}{hint}")
    return _checked(found[0], name)


def conversing(root: str, name: str) -> tuple[str, str]:
    """Returns the path and the whole name of an object that holds conversations."""
    path = resolve(root, name.removesuffix(".sock"))  # the name of an object never ends so
    match = re.fullmatch(_WHOLE, os.path.realpath(path))
    if not match:
        raise Fault("EINVAL", f"{name!r} is no model and no agent; see: ctx ls")
    if match[1].startswith("tool/"):
        raise Fault("EINVAL", f"{match[1]} is a tool, and tools hold no conversations; see: ctx run")
    return path, match[1]


def _checked(path: str, name: str) -> str:
    """Returns `path` if it can be an object. Raises a Fault for a control directory or a provider."""
    try:
        os.lstat(path)
    except PermissionError:
        message = f"permission denied: {name}; only root's mount and your own are open to you"
        raise Fault("EACCES", message) from None
    except OSError:
        raise Fault("ENOENT", f"there is no {name}") from None
    if os.path.isdir(path) or path.endswith(RESERVED_SUFFIXES):
        raise unrunnable(name)
    return path


def unrunnable(name: str) -> Fault:
    mend = "give a tool, model or agent, see: ctx ls"
    return Fault("EINVAL", f"{name!r} is no object that can be run; {mend}")


def is_object(path: str) -> bool:
    """Returns False for a file that is no object and no copy of one. If it cannot be read, execve(2) tells
    why. A pipe is not waited for."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return re.search(_HEADER.encode(), file.read(HEADER_BYTES) or b"") is not None
    except OSError:
        return True


def rows(root: str, paths: Iterable[str]) -> Iterator[ObjectRow]:
    """Returns the facts about the objects at these paths."""
    system_rows = _system_rows(root)
    return (system_rows.get(short(root, path)) or row_of(root, path) for path in paths)


def _system_rows(root: str) -> dict[str, ObjectRow]:
    """Returns the system's objects by name, from one file; empty if the daemon has no such file."""
    import json  # a slow import that completion does not need

    try:
        with open(f"{root}/{FACTS}", "rb") as file:
            return {(row := ObjectRow(**json.loads(line))).object: row for line in file}
    except (OSError, ValueError, TypeError):
        return {}


def allowed(root: str) -> str:
    """Returns a line of five fields (core/finding.py) for each tool that this process may run. Only the
    daemon knows whether this is the process of a person or of an agent."""
    words = [f"{root}/{RUNNER}", f"{root}/{ALLOWED}"]
    read, write = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, write, 1)]
    pid = os.posix_spawn(words[0], words, {**os.environ, "CTX_OUTPUT": "text"}, file_actions=actions)
    os.close(write)
    with open(read, "rb") as file:
        lines = file.read().decode()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise Fault("EHOSTDOWN", f"the daemon of {root} did not tell which tools you may run")
    return lines


def row_of(root: str, path: str) -> ObjectRow:
    """Returns the facts in the first lines of an executable."""
    name = short(root, path)
    try:
        with open(path, "rb", buffering=0) as file:
            header = dict(re.findall(_HEADER, file.read(HEADER_BYTES).decode(errors="replace")))
    except OSError as problem:
        return ObjectRow(name, "unreadable", "-", problem.strerror or "")
    if os.path.islink(path):
        header["description"] = f"alias of {short(root, os.readlink(path))}"
    return ObjectRow(
        name, header.get("status", "-"), header.get("plugin", "-"), header.get("description", "")
    )


def select(root: str, name: str | None) -> list[str]:
    """Returns the paths that `ctx ls NAME` means: all, a class, a provider's models, or one object."""
    if name is None:
        return paths(root)
    target = name.rstrip("/")
    if target in CLASSES:
        return paths_of(root, target)
    every = paths(root)
    inside = [path for path in every if short(root, path).startswith((f"{target}/", f"model/{target}/"))]
    return inside or [resolve(root, name)]


def first_sentence(text: str) -> str:
    found = re.match(_SENTENCE, text)
    return found[1] if found else text


def is_elsewhere(path: str) -> bool:
    """Returns True for an object of another machine."""
    return control(path, "origin").startswith("machine:")


def control(path: str, name: str) -> str:
    """Returns the text of a control of the object at `path`; empty if the control is missing."""
    try:
        with open(f"{path}.d/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def refusals(root: str) -> list[str]:
    """Returns why controls in the user's home refused their last values. The daemon's log may be root's."""
    found = []
    for place in ("agent/*.d/*", "tool/*.d/*", "model/*/*.d/*"):
        for path in sorted(glob.glob(f"{root}/home/{os.getuid()}/{place}")):
            with contextlib.suppress(OSError):
                reason = os.getxattr(path, "user.cortexfs.refusal").decode(errors="replace")
                found.append(f"{os.path.relpath(path, root)} stays as it is: {reason}")
    return found
