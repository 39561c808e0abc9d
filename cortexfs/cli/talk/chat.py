"""`ctx chat`: talk with a model or agent, on a terminal or through a pipe.

Rules: modules for the terminal are imported only if there is one. A pipe, and a terminal without cursor
control, get plain lines.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from cortexfs.chat.commands import ChatPlace
from cortexfs.chat.exchange import PersonLeft, PipedInput
from cortexfs.cli import objects, output, talking
from cortexfs.cli.bounded import ask
from cortexfs.cli.objects import MAIN
from cortexfs.cli.parser import Command, arg
from cortexfs.core.errors import Fault, code_of
from cortexfs.state import directories

REACH_SECONDS = 1.0
DUMB = ("", "dumb", "unknown")


def run(options: argparse.Namespace) -> int:
    place = talking.chat_place(options.root, options.object, options.scope)
    cwd = talking.directory(options.cwd)
    try:
        # A person sits at a terminal with cursor control.
        if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") not in DUMB:
            return _terminal(place, options.session, cwd)
        return PipedInput(place, options.session, cwd).run()
    except PersonLeft as ending:
        return ending.status


def _terminal(place: ChatPlace, session: str, cwd: str | None) -> int:
    import asyncio

    from cortexfs.chat.keys import History
    from cortexfs.chat.terminal import Terminal

    def reach() -> None:
        try:
            ask(lambda: repr(os.stat(place.path)).encode(), REACH_SECONDS)
        except OSError as problem:
            raise Fault(code_of(problem.errno), f"{place.path} does not answer") from None

    history = None  # the user's state directory may be unknown
    with contextlib.suppress(Fault):
        history = directories.places(os.environ, os.getuid()).state / "chat_history"
    chat = Terminal(place, session, cwd, History(history), output.colourful(sys.stdout), reach)
    return asyncio.run(chat.run())


COMMANDS = {
    "chat": Command(
        run,
        (
            arg("object", "OBJECT", f"{objects.NAMED} (default: {MAIN})", nargs="?", default=MAIN),
            *talking.session(),
            arg("--cwd", "DIR", "where the session works (default: here, for an agent's new one)"),
        ),
        (
            "ctx chat",
            "ctx chat agent/coder --session fix",
            "ctx chat debug/echo --scope temp",
            "echo hello | ctx chat model/main",
        ),
    ),
}
