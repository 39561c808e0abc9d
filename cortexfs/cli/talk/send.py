"""`ctx send`: send a message to an object in one of its sessions, and print the answer."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase

from cortexfs.chat.calls import Show
from cortexfs.chat.exchange import Exchange, PersonLeft
from cortexfs.chat.printing import Printer
from cortexfs.chat.state import Talk
from cortexfs.cli import objects, output, talking
from cortexfs.cli.parser import FAIL_ON_DENIED_FLAG, Command, arg
from cortexfs.client import Conversation, Failed, new_id
from cortexfs.core.arguments import name_patterns, parse
from cortexfs.core.errors import exit_status
from cortexfs.core.frames import AnyFrame, Done, Error
from cortexfs.core.talk.requests import Input


def run(options: argparse.Namespace) -> int:
    words = [b"--", *map(os.fsencode, options.text)] if options.text else []  # the parser took the typed --
    form = talking.output(options.output)
    where = talking.chat_place(options.root, options.object, options.scope)
    warn_of_unknown(where.root, options.approve)
    room = parse.prompt_room(words)  # the part of standard input that is wanted and can be sent
    message = _message(parse.prompt(words, b"" if room is None else sys.stdin.buffer.read(room + 1)))
    cwd = talking.directory(options.cwd) or where.beginning(options.session)
    talk = Talk(where.name, options.session, options.scope, new_id, cwd, where.sight(options.session, cwd))
    print_frame, show = talking.printing(form)
    show = show if form == "text" or not _is_asked() else _asking
    with where.connect() as conversation:
        try:
            return carry_out(options, conversation, talk, message, show, print_frame, options.id)
        except Failed as failed:
            if form == "text":
                raise
            # A program that reads frames gets the failure as from exec.
            print_frame(Error(run=failed.run, code=failed.code, message=failed.message))
            print_frame(Done(run=failed.run, status="error", code=failed.code))
            return exit_status(failed.code)


def carry_out(
    options: argparse.Namespace,
    conversation: Conversation,
    talk: Talk,
    message: Input,
    show: Callable[[Show], None],
    print_frame: Callable[[AnyFrame], None],
    id_: str | None = None,
) -> int:
    """Send the message. Returns the exit status of its run. Raises Failed if the connection is lost."""
    denials = talking.DeniedCalls(options.fail_on_denied)

    def hear(frame: AnyFrame) -> None:
        denials.hear(frame)
        print_frame(frame)

    exchange = Exchange(talk, conversation, show, heard=hear, approved=options.approve, is_asked=_is_asked())
    try:
        exchange.do(talk.say(message, id_))
        exchange.run()
    except PersonLeft as ending:
        return denials.status(ending.status)
    except BrokenPipeError:  # no reader is left: as with exec, the run ends with its reader
        exchange.cancel()
        raise
    # A run may end well after its question was denied, before the cancel. Still, its user interrupted it.
    return denials.status(exit_status("ECANCELED") if talk.interrupted else talk.status)


def warn_of_unknown(root: str, approved: list[str]) -> None:
    """Warn of allowed names and patterns that no tool of the mount has: they would allow nothing."""
    paths = objects.paths_of(root, "tool") if approved else []
    known = [objects.bare(objects.short(root, path)) for path in paths]
    for word in approved:
        if not any(fnmatchcase(name, word) for name in known):
            mend = name_patterns.near(word, known) or "; see: ctx ls tool"
            output.say(f"warning: --approve {word}: no tool of this mount has that name{mend}")


def _is_asked() -> bool:
    """Returns True if a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _message(prompt: Input) -> Input:
    """Returns a prompt as sockets take it: they know messages, and not the two other keys of exec."""
    if isinstance(prompt, str) or "messages" in prompt:
        return prompt
    text = prompt.get("input") or prompt.get("task")
    return text if isinstance(text, str) else prompt


def _asking(show: Show) -> None:
    """Show questions on stderr, as frames go to stdout."""
    if show.kind not in ("answer", "end", "other"):
        Printer(sys.stderr, sys.stderr).show(show)


_TEXT = "the message, with - for standard input (default: standard input; write -- before text with -)"
_ALLOW = (
    "a tool, or a pattern, whose calls are allowed; repeatable (default: asked on a terminal, else denied)"
)
APPROVE = arg("--approve", "TOOL", _ALLOW, action="append", default=[])
COMMANDS = {
    "send": Command(
        run,
        (
            objects.TALKING,
            arg("text", "TEXT", _TEXT, nargs="*", default=[]),
            *talking.session(),
            arg("--cwd", "DIR", "where the session works (default: here, for a new one)"),
            arg("--id", "ID", "a name for this message, so that a retry sends it once"),
            APPROVE,
            FAIL_ON_DENIED_FLAG,
            talking.OUTPUT,
        ),
        (
            "ctx send model/main hello",
            "ctx send agent/coder --session fix --cwd . why does make test fail",
            "ctx send agent/coder --approve shell.exec run the tests < /dev/null",
            "git diff | ctx send model/main --output text review this: -",
            "ctx send debug/echo --id msg-7 once only | jq -r 'select(.type==\"delta\").text'",
        ),
        intermixed=True,  # options may come after OBJECT
    ),
}
