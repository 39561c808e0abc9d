"""The common part of the commands that talk to objects: the object, its socket, and how its run is printed.

Rules: the mount has answered before a path on it is touched, so no command hangs with its daemon.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

from cortexfs.chat.calls import Show
from cortexfs.chat.printing import Printer
from cortexfs.cli import mounts, objects
from cortexfs.client import Conversation
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk.requests import Scope

OUTPUTS = ("jsonl", "text")
SCOPES: tuple[Scope, ...] = ("private", "shared", "temp")
_WHOLE = re.compile(r"(?:.*/)?((model)/[^/]+/[^/]+|(agent|tool)/[^/]+)")


class TalkTarget(NamedTuple):
    """The object that a command means."""

    root: str
    path: str
    whole: str  # model/debug/echo

    @property
    def name(self) -> str:
        """Returns the beginning of its error lines, as those of exec have it."""
        return objects.bare(self.whole)

    def connect(self) -> Conversation:
        return Conversation(self.path)


def declare_object(into: argparse.ArgumentParser) -> None:
    text = "debug/echo, model/debug/echo, an alias as model/main, or a path"
    into.add_argument("object", metavar="OBJECT", help=text)


def declare_session(into: argparse.ArgumentParser, spaces: tuple[str, ...] = SCOPES) -> None:
    into.add_argument("--session", metavar="SESSION", default="default", help="its name (default: default)")
    into.add_argument(
        "--scope", choices=spaces, default="private", help="whose session it is (default: private)"
    )


def declare_output(into: argparse.ArgumentParser) -> None:
    text = "frames, one a line, or text (default: CTX_OUTPUT, else text on a terminal and jsonl elsewhere)"
    into.add_argument("--output", choices=OUTPUTS, help=text)


def named(options: argparse.Namespace) -> TalkTarget:
    """The object, if it can hold conversations."""
    root = mounts.root(options.root)
    mounts.status_text(root)
    path = objects.resolve(root, options.object.removesuffix(".sock"))  # no name ends so
    whole = _WHOLE.fullmatch(os.path.realpath(path))
    if not whole:
        raise Fault("EINVAL", f"{options.object!r} is no model and no agent; see: ctx ls")
    if whole[1].startswith("tool/"):
        raise Fault("EINVAL", f"{whole[1]} is a tool, and tools hold no conversations; see: ctx run")
    return TalkTarget(root, path, whole[1])


def output(options: argparse.Namespace) -> str:
    chosen = options.output or os.environ.get("CTX_OUTPUT") or ("text" if sys.stdout.isatty() else "jsonl")
    if chosen not in OUTPUTS:
        raise Fault("EINVAL", f"CTX_OUTPUT is {chosen!r}; it can be {' or '.join(OUTPUTS)}")
    return str(chosen)


class Printing(NamedTuple):
    """The printing of each frame, and of the part of it that a person would see."""

    heard: Callable[[AnyFrame], None]
    show: Callable[[Show], None]


def printing(chosen: str) -> Printing:
    if chosen == "text":
        return Printing(lambda frame: None, Printer(sys.stdout, sys.stderr).show)
    return Printing(_line, lambda show: None)


def _line(frame: AnyFrame) -> None:
    sys.stdout.buffer.write(frames.encode(frame))
    sys.stdout.buffer.flush()
