"""The common part of the commands that talk to objects: the object, its socket, and the output of its run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial

from cortexfs.chat.calls import Show, Surroundings
from cortexfs.chat.commands import ChatPlace, Outside
from cortexfs.chat.diffs import MAX_FILE
from cortexfs.chat.printing import Printer
from cortexfs.cli import mounts, objects
from cortexfs.cli.bounded import beginning
from cortexfs.cli.output import OUTPUTS, form
from cortexfs.cli.parser import FAIL_ON_DENIED, CommandArgument, arg
from cortexfs.core import frames
from cortexfs.core.errors import exit_status
from cortexfs.core.frames import AnyFrame, Observer, ToolResult
from cortexfs.core.talk import refusals
from cortexfs.core.talk.requests import Scope

SCOPES: tuple[Scope, ...] = ("private", "shared", "temp")
OUTPUT = arg(
    "--output",
    None,
    "frames, one a line, or text (default: CTX_OUTPUT, else text on a terminal and jsonl elsewhere)",
    choices=OUTPUTS,
)
LOOK_SECONDS = 1.0


def read(path: str) -> bytes:
    """Returns the beginning of a file, for comparing. It is read as the user, so that a diff shows nothing
    the user could not read. The file system may never answer, so the wait is bounded."""
    return beginning(path, MAX_FILE + 1, LOOK_SECONDS)


def directory(path: str | None) -> str | None:
    """Returns a named working directory as an absolute path."""
    return os.path.abspath(os.path.expanduser(path)) if path else None


def session(scopes: tuple[str, ...] = SCOPES) -> tuple[CommandArgument, ...]:
    scope = arg("--scope", None, "whose session it is (default: private)", choices=scopes, default="private")
    return arg("--session", "SESSION", "its name (default: default)", default="default"), scope


def chat_place(root_option: str | None, name: str, scope: Scope = "private") -> ChatPlace:
    """Returns the object as the place of a chat about files here. Raises a Fault for a tool."""
    root = mounts.answering(root_option)
    path, full_name = objects.conversing(root, name)
    sight = Surroundings(read, lambda: shutil.get_terminal_size().lines)
    outside = Outside(_attached, partial(objects.conversing, root))
    return ChatPlace(root, path, full_name, scope, sight, outside)


def _attached(source: str) -> tuple[str, bytes]:
    from cortexfs.cli.ask import attach  # a slow import that only attaching needs

    return attach.read(source)


def output(option: str | None) -> str:
    return form(option) or ("text" if sys.stdout.isatty() else "jsonl")


def printing(form: str) -> tuple[Callable[[AnyFrame], None], Callable[[Show], None]]:
    """Returns two functions: one prints each frame, one the part of it that a person would see."""

    def line(frame: AnyFrame) -> None:
        sys.stdout.buffer.write(frames.encode(frame))
        sys.stdout.buffer.flush()

    if form == "text":
        return lambda frame: None, Printer(sys.stdout, sys.stderr).show
    return line, lambda show: None


class DeniedCalls:
    """The denied calls of a run, for a user who wants them to count as a failure of the run."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted or os.environ.get(FAIL_ON_DENIED) == "1"
        self._found = False

    def hear(self, frame: AnyFrame) -> None:
        if isinstance(frame, ToolResult):
            self._found |= refusals.is_denied(frame)
        elif isinstance(frame, Observer):
            self._found |= bool(refusals.denied_to_helper(frame))

    def status(self, status: int) -> int:
        """Returns the exit status that replaces the run's own."""
        cancelled = status == exit_status("ECANCELED")
        return exit_status("EACCES") if self._found and self._is_wanted and not cancelled else status
