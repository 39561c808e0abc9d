"""`ctx resume`, `ctx cancel` and `ctx ping`: requests to an object's socket that send no message.

Rules: the past ends with the newest event of the session's log at the time when `resume` begins. It is read
from the log's file in the mount, because the connection does not tell where the past ends.
"""

from __future__ import annotations

import argparse

from cortexfs.chat import said, sessions
from cortexfs.chat.calls import Show
from cortexfs.chat.state import Talk
from cortexfs.cli import objects, output, talking
from cortexfs.cli.parser import JSON, Command, arg, flag
from cortexfs.client import new_id
from cortexfs.core.errors import Fault

MOST_PINGS = 1_000_000


def resume(options: argparse.Namespace) -> None:
    print_frame, show = talking.printing(talking.output(options.output))
    where = talking.chat_place(options.root, options.object, options.scope)
    talk = Talk(where.name, options.session, options.scope, new_id)
    past = said.tail(sessions.place(where.root, where.whole, options.scope, options.session))
    newest = past[-1].id if past else None
    if not options.follow and newest is None:
        return output.say(f"the session {options.session!r} of {where.name} is empty")
    if not options.follow and _reached(options.after, newest):
        if options.after != newest:  # a request for it would wait for such an event
            raise Fault("EINVAL", f"--after: the session has no event {options.after!r}; leave --after out")
        return
    with where.connect() as conversation:
        for frame in conversation.resume(session=options.session, scope=options.scope, after=options.after):
            print_frame(frame)
            for deed in talk.hear(frame):
                if isinstance(deed, Show):
                    show(deed)
            if not options.follow and _reached(frame.id, newest):
                break
    show(Show("end"))


def _reached(id_: str | None, newest: str | None) -> bool:
    """Returns True if an event is the newest one of the past, or came later."""
    return bool(id_ and newest and id_.isdecimal() and int(id_) >= int(newest))


def cancel(options: argparse.Namespace) -> None:
    with talking.chat_place(options.root, options.object).connect() as conversation:
        done = conversation.cancel(options.run)
    if done.status != "cancelled":
        raise Fault("EALREADY", f"the run had ended before it could be cancelled, with status {done.status}")
    output.say(f"cancelled {options.run}")


def ping(options: argparse.Namespace) -> None:
    if not 1 <= options.count <= MOST_PINGS:
        raise Fault("EINVAL", f"--count must be from 1 to {MOST_PINGS}")
    where = talking.chat_place(options.root, options.object)
    with where.connect() as conversation:
        times = [1000 * conversation.ping() for _ in range(options.count)]
    least, mean, most = min(times), sum(times) / len(times), max(times)
    if options.json:
        rounded = {"least": round(least, 3), "mean": round(mean, 3), "most": round(most, 3)}
        output.emit({"object": where.whole, "count": len(times), "ms": rounded})
    elif len(times) == 1:
        print(f"{where.name} answers in {mean:.2f} ms")
    else:
        span = f"{least:.2f} to {most:.2f} ms, {mean:.2f} on average"
        print(f"{where.name} answered {len(times)} times in {span}")


COMMANDS = {
    "resume": Command(
        resume,
        (
            objects.TALKING,
            *talking.session(talking.SCOPES[:2]),
            arg("--after", "ID", "only events after this one"),
            flag("--follow", "print new events until Ctrl-C (default: end after the last event)"),
            talking.OUTPUT,
        ),
        (
            "ctx resume model/main",
            "ctx resume agent/coder --session fix --follow --output text",
            "ctx resume debug/echo --after 120 | jq -r .id",
        ),
    ),
    "cancel": Command(
        cancel,
        (objects.TALKING, arg("run", "RUN", "the run's id, or the --id that its message was sent with")),
        ("ctx cancel model/main r660c47e533c77-1", "ctx cancel agent/coder msg-7"),
    ),
    "ping": Command(
        ping,
        (objects.TALKING, arg("--count", "N", "how often (default: once)", type=int, default=1), JSON),
        ("ctx ping model/main", "ctx ping debug/echo --count 100", "ctx ping agent/coder --json"),
    ),
}
