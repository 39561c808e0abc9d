"""The places of sessions and of users' logs of runs, below home/<uid> and shared/main.

    home/1000/model/<provider>/<model>.d/session/<session>/events.jsonl
    home/1000/agent/<agent>.d/session/index/by-cwd/<hash>
    home/1000/agent/<agent>.d/session/<session>/context/{summary.md,pack.json,pinned/,output/}
    home/1000/tool/<tool>.d/log     this user's runs of an object for everybody (state/run_logs.py)
    home/1000/model/.usage          the tokens that this user's calls have taken
    shared/main/model/...    shared/main/agent/...

Rules: the layout in the tree and on disk is the same. The tree does not show a name that is not in the table,
even if the disk has it.
This file must never know which sessions exist.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from cortexfs.core import names

BIT = 1 << 61  # in all inodes below spaces, and in no others; handles are above (open_files.FIRST_HANDLE)
SHARED = ("shared", "main")
INDEX_NAME = "index"
CONTEXT_NAME = "context"
LOG_NAME = "events.jsonl"
RUNS_NAME = "log"
FACTS_NAME = ".facts"
USAGE_NAME = ".usage"
NEW = ".new."  # begins the name of a file that is being written


class PlaceKind(Enum):
    SPACE = auto()  # shared/main; the class folders of a home belong to the tree
    AGENTS = auto()
    MODELS = auto()
    PROVIDER = auto()
    OBJECT = auto()  # <object>.d
    TOOLS = auto()
    TOOL = auto()  # <tool>.d, which has no sessions
    SESSIONS = auto()
    SESSION = auto()
    CONTEXT = auto()  # the parts of a session that an agent's model has received
    PINNED = auto()
    OUTPUT = auto()
    INDEX = auto()
    BY_CWD = auto()
    LOG = auto()  # events.jsonl: it grows, and its removal ends the session
    GROWING = auto()
    REPLACED = auto()  # written again as a whole
    RUNS = auto()  # the log of an object's runs: it grows, and begins again after rotation or removal
    FACTS = auto()  # facts about all sessions of an object, newest first: made when read, and not listed
    USAGE = auto()  # the tokens of a user's calls of models (state/usage_ledger.py); not listed


# The places with files that an agent's run makes, and that cannot be made again from a log.
CONTEXTS = (PlaceKind.CONTEXT, PlaceKind.PINNED, PlaceKind.OUTPUT)
# The places of users' logs of runs, and the folders above them.
LOGGED = (
    PlaceKind.AGENTS,
    PlaceKind.MODELS,
    PlaceKind.PROVIDER,
    PlaceKind.OBJECT,
    PlaceKind.TOOLS,
    PlaceKind.TOOL,
    PlaceKind.RUNS,
)


def _component(name: str) -> bool:
    return names.fault_of(name) is None


def _object(name: str) -> bool:
    return name.endswith(".d") and _component(name[:-2])


def _output(name: str) -> bool:
    return name.endswith(".txt") and _component(name)


is_pin = re.compile(r"[1-9][0-9]{0,3}\.md", re.ASCII).fullmatch
_hash = re.compile(r"[0-9a-f]{32}", re.ASCII).fullmatch

Rule = str | Callable[[str], object]

# The names that each folder may have: the first rule that fits a name gives its kind.
CHILDREN: dict[PlaceKind, tuple[tuple[Rule, PlaceKind], ...]] = {
    PlaceKind.SPACE: (("agent", PlaceKind.AGENTS), ("model", PlaceKind.MODELS)),
    PlaceKind.AGENTS: ((_object, PlaceKind.OBJECT),),
    PlaceKind.MODELS: ((USAGE_NAME, PlaceKind.USAGE), (_component, PlaceKind.PROVIDER)),
    PlaceKind.PROVIDER: ((_object, PlaceKind.OBJECT),),
    PlaceKind.OBJECT: (("session", PlaceKind.SESSIONS), (RUNS_NAME, PlaceKind.RUNS)),
    PlaceKind.TOOLS: ((_object, PlaceKind.TOOL),),
    PlaceKind.TOOL: ((RUNS_NAME, PlaceKind.RUNS),),
    PlaceKind.SESSIONS: (
        (INDEX_NAME, PlaceKind.INDEX),
        (FACTS_NAME, PlaceKind.FACTS),
        (_component, PlaceKind.SESSION),
    ),
    PlaceKind.SESSION: (
        (LOG_NAME, PlaceKind.LOG),
        ("messages.jsonl", PlaceKind.GROWING),
        *((name, PlaceKind.REPLACED) for name in ("latest.md", "state", "cwd", "meta.json")),
        *((name, PlaceKind.REPLACED) for name in ("created_at", "updated_at")),
        (CONTEXT_NAME, PlaceKind.CONTEXT),
    ),
    PlaceKind.CONTEXT: (
        ("summary.md", PlaceKind.REPLACED),
        ("pack.json", PlaceKind.REPLACED),
        ("pinned", PlaceKind.PINNED),
        ("output", PlaceKind.OUTPUT),
    ),
    PlaceKind.PINNED: ((is_pin, PlaceKind.REPLACED),),
    PlaceKind.OUTPUT: ((_output, PlaceKind.REPLACED),),
    PlaceKind.INDEX: (
        ("list", PlaceKind.REPLACED),
        ("current", PlaceKind.REPLACED),
        ("by-cwd", PlaceKind.BY_CWD),
    ),
    PlaceKind.BY_CWD: ((_hash, PlaceKind.REPLACED),),
}


class SessionPlace(NamedTuple):
    parts: tuple[str, ...]  # the path, below the root of the tree and below that of sessions on disk
    kind: PlaceKind

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def is_folder(self) -> bool:
        return self.kind in CHILDREN

    @property
    def is_listed(self) -> bool:
        return self.kind not in (PlaceKind.FACTS, PlaceKind.USAGE)

    @property
    def uid(self) -> int | None:
        """Returns the uid of its user, or None if it is shared."""
        return int(self.parts[1]) if self.parts[0] == "home" else None

    @property
    def mode(self) -> int:
        """Returns the mode. Files look writable to their owner, or `rm -r` in a terminal asks about each."""
        if self.is_folder:
            return stat.S_IFDIR | (0o755 if self.uid is None else 0o700)
        return stat.S_IFREG | (0o644 if self.uid is None else 0o600)

    def child(self, name: str) -> SessionPlace | None:
        for rule, kind in CHILDREN.get(self.kind, ()):
            if rule == name if isinstance(rule, str) else rule(name):
                return (
                    None
                    if kind in (PlaceKind.RUNS, PlaceKind.USAGE) and self.uid is None
                    else SessionPlace((*self.parts, name), kind)
                )
        return None

    @property
    def _depth(self) -> int:
        """Returns the number of parts in the path of an object's folder of sessions."""
        return 5 if self.parts[2:3] == ("agent",) else 6

    @property
    def object(self) -> tuple[str, str]:
        """Returns class and name of the object to which this place belongs."""
        return self.parts[2], "/".join(self.parts[3 : self._depth - 1]).removesuffix(".d")

    @property
    def session(self) -> tuple[str, ...] | None:
        """Returns the path of the session to which this place belongs, or None."""
        below = self.parts[self._depth :]
        return self.parts[: self._depth + 1] if below and below[0] not in (INDEX_NAME, FACTS_NAME) else None

    @property
    def is_index(self) -> bool:
        """Returns True if this is session/index, or in it."""
        return self.parts[self._depth : self._depth + 1] == (INDEX_NAME,)

    @property
    def is_context(self) -> bool:
        """Returns True if this is a session's context/, or in it."""
        return not self.is_index and self.parts[self._depth + 1 : self._depth + 2] == (CONTEXT_NAME,)

    @property
    def made_from(self) -> tuple[str, ...] | None:
        """Returns the path below which the logs are of which this file is made, or None."""
        if self.is_context:
            return None
        if self.kind in (PlaceKind.SESSIONS, PlaceKind.FACTS) or self.is_index:
            return self.parts[: self._depth]
        return self.session


def home(uid: int, class_: str) -> SessionPlace | None:
    """Returns the class folder of a home, or None if no class has that name."""
    kinds = {"agent": PlaceKind.AGENTS, "model": PlaceKind.MODELS, "tool": PlaceKind.TOOLS}
    return SessionPlace(("home", str(uid), class_), kinds[class_]) if class_ in kinds else None


def shared() -> SessionPlace:
    return SessionPlace(SHARED, PlaceKind.SPACE)


def at(parts: tuple[str, ...]) -> SessionPlace | None:
    """Returns the place of a path, or None if no file of sessions can be there."""
    below = 2 if parts[:2] == SHARED else 3
    place = shared() if below == 2 else home(int(parts[1]), parts[2])
    for name in parts[below:]:
        place = place.child(name) if place else None
    return place


def order(place: SessionPlace) -> tuple[int, str]:
    """Returns the key for the order of a folder's list, so that `rm -r` meets no file that comes back.

    A session's log is first: after its removal no other file is renewed. The index is last, as the removal of
    a session renews it. So is the log of runs, which gets a line when the run of a session is ended.
    """
    rank = -1 if place.kind is PlaceKind.LOG else int(place.kind in (PlaceKind.INDEX, PlaceKind.RUNS))
    return rank, place.name
