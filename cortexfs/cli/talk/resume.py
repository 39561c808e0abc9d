"""`ctx resume`: print what happened in a session, and follow it if that is wanted.

Rules: what is there to catch up with is the newest event of the session's log when the command begins,
read from its file in the mount: nothing on the connection says where history ends.
"""

from __future__ import annotations

import argparse

from cortexfs.chat import sessions
from cortexfs.chat.calls import Show
from cortexfs.chat.state import Talk
from cortexfs.cli import output, parser, talking
from cortexfs.client import new_id
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.frames import AnyFrame


def declare(into: parser.CommandParser) -> None:
    talking.declare_object(into)
    talking.declare_session(into, talking.SCOPES[:2])
    into.add_argument("--after", metavar="ID", help="only what came after this event")
    into.add_argument(
        "--follow",
        action="store_true",
        help="go on with what happens, until Ctrl-C (default: end with what has happened)",
    )
    talking.declare_output(into)
    parser.examples(
        into,
        "ctx resume model/main",
        "ctx resume agent/coder --session fix --follow --output text",
        "ctx resume debug/echo --after 120 | jq -r .id",
    )


def run(options: argparse.Namespace) -> int:
    printing = talking.printing(talking.output(options))
    where = talking.named(options)
    talk = Talk(where.name, options.session, options.scope, new_id)
    newest = sessions.last(sessions.place(where.root, where.whole, options.scope, options.session))
    if not options.follow and newest is None:
        output.say(f"the session {options.session!r} of {where.name} is empty")
        return EXIT_OK
    if not options.follow and _reached(options.after, newest):
        if options.after != newest:  # asked for, it would be waited for
            raise Fault("EINVAL", f"after: the session has no event {options.after!r}; leave it out")
        return EXIT_OK
    with where.connect() as conversation:
        for frame in conversation.resume(session=options.session, scope=options.scope, after=options.after):
            printing.heard(frame)
            _show(talk, frame, printing)
            if not options.follow and _reached(frame.id, newest):
                break
    printing.show(Show("end"))
    return EXIT_OK


def _show(talk: Talk, frame: AnyFrame, printing: talking.Printing) -> None:
    for deed in talk.hear(frame):
        if isinstance(deed, Show):
            printing.show(deed)


def _reached(id_: str | None, newest: str | None) -> bool:
    """Returns True if an event is the newest one that was there, or came later."""
    return bool(id_ and newest and id_.isdecimal() and int(id_) >= int(newest))
