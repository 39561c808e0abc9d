"""`ctx chat`: talk with a model or agent, on a terminal or through a pipe.

Rules: what a terminal needs is imported only where one is; a pipe and a terminal that can do nothing get
plain lines.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from cortexfs.chat.commands import ChatPlace
from cortexfs.chat.exchange import PersonLeft
from cortexfs.chat.history import History
from cortexfs.cli import output, parser, talking
from cortexfs.cli.bounded import ask
from cortexfs.cli.talk.sight import SIGHT
from cortexfs.core.errors import Fault, code_of
from cortexfs.state import directories

REACH_SECONDS = 1.0
DUMB = ("", "dumb", "unknown")


def declare(into: parser.CommandParser) -> None:
    talking.declare_object(into)
    talking.declare_session(into)
    into.add_argument(
        "--cwd", metavar="DIR", help="where the session works (default: here, for an agent's new one)"
    )
    parser.examples(
        into,
        "ctx chat model/main",
        "ctx chat agent/coder --session fix",
        "ctx chat debug/echo --scope temp",
        "echo hello | ctx chat model/main",
    )


def run(options: argparse.Namespace) -> int:
    where = talking.named(options)
    place = ChatPlace(where.root, where.path, where.whole, where.name, options.scope, SIGHT)
    cwd = os.path.abspath(os.path.expanduser(options.cwd)) if options.cwd else None
    talks = _terminal if _is_capable() else _lines
    try:
        return talks(place, options.session, cwd, _reach(where))
    except PersonLeft as left:
        return left.status


def _is_capable() -> bool:
    """Returns True if a person sits at a terminal that can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in DUMB


def _reach(where: talking.TalkTarget) -> Callable[[], None]:
    def reach() -> None:
        try:
            ask(lambda: repr(os.stat(where.path)).encode(), REACH_SECONDS)
        except OSError as problem:
            raise Fault(code_of(problem.errno), f"{where.path} does not answer") from None

    return reach


def _terminal(place: ChatPlace, session: str, cwd: str | None, reach: Callable[[], None]) -> int:
    import asyncio

    from cortexfs.chat.terminal import Terminal

    history = History(_history())
    chat = Terminal(place, session, cwd, history, output.colourful(sys.stdout), reach)
    return asyncio.run(chat.run())


def _history() -> Path | None:
    """The user's own file; none where it is not known where the user keeps such things."""
    try:
        return directories.places(os.environ, os.getuid()).state / "chat_history"
    except Fault:
        return None


def _lines(place: ChatPlace, session: str, cwd: str | None, reach: Callable[[], None]) -> int:
    from cortexfs.chat.pipe import PipedInput

    return PipedInput(place, session, cwd).run()
