"""`ctx session`: the sessions of objects, as their files in the mount tell of them.

Rules: only files are read, and a session is removed as `rm -r` would; whoever may not do that may not do
it here. What is removed cannot be had back, so a person is asked first.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from cortexfs.chat import sessions
from cortexfs.chat.printing import counted, quoted
from cortexfs.chat.sessions import SPACES, StoredSession
from cortexfs.cli import mounts, output, parser, talking
from cortexfs.cli.confirm import sure
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.safe_text import prose

DAY = 86400.0
PAGE = 200  # rows that say how wide the columns are, and are shown first
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
EXAMPLES = (
    "ctx session list",
    "ctx session list model/main --json | jq -r '.[].session'",
    "ctx session show model/main default",
    "ctx session rm agent/coder old-one --yes",
    "ctx session gc --older-than 30 --keep 20 --dry-run",
)
AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def declare(into: parser.CommandParser) -> None:
    verbs = into.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, (summary, declares, _) in VERBS.items():
        verb = verbs.add_parser(
            name, description=f"{summary}.", formatter_class=into.formatter_class, help=summary
        )
        parser.root_option(verb)
        verb.add_argument(
            "--scope", choices=SPACES, default="private", help="whose sessions (default: private)"
        )
        declares(verb)
        parser.examples(verb, *(line for line in EXAMPLES if line.startswith(f"ctx session {name}")))
    parser.examples(into, *EXAMPLES)


def run(options: argparse.Namespace) -> int:
    status: int = VERBS[options.verb][2](options)
    return status


def _declare_list(into: argparse.ArgumentParser) -> None:
    into.add_argument("object", metavar="OBJECT", nargs="?", help="only its sessions")
    parser.json_option(into)


def _list(options: argparse.Namespace) -> int:
    there = _there(options)
    if options.json:
        output.emit([_row(one) for one in there])
        return EXIT_OK
    now = time.time()
    cells = (
        (one.object, one.session, one.state, age(now - one.updated), str(one.messages), size(one.size))
        for one in there
    )
    if first := list(itertools.islice(cells, PAGE)):
        heads = ("object", "session", "state", "updated", "messages", "size")
        widths = [max(map(len, column)) for column in zip(*first, strict=True)]
        output.table(heads, itertools.chain(first, cells), widths)
    else:
        output.say(
            f"there are no {options.scope} sessions{f' of {options.object}' if options.object else ''}"
        )
    return EXIT_OK


def _declare_show(into: argparse.ArgumentParser) -> None:
    _declare_one(into)
    parser.json_option(into)


def _show(options: argparse.Namespace) -> int:
    one = _one(options)
    said = sessions.messages(one.path)
    if options.json:
        messages = [_message(message) for message in said]
        output.emit({"meta": sessions.meta(one.path) or _row(one), "messages": messages})
        return EXIT_OK
    print(f"{one.object} {one.session}: {one.state}, {counted(one.messages, 'message')}, {size(one.size)}")
    if cwd := sessions.meta(one.path).get("cwd"):
        print(f"cwd: {output.printable(str(cwd))}")
    for message in said:
        text = "".join(part.text for part in message.content)
        text = prose(text) if sys.stdout.isatty() else text
        print(f"\n{quoted(text) if message.role == 'user' else text}")
    return EXIT_OK


def _declare_rm(into: argparse.ArgumentParser) -> None:
    _declare_one(into)
    into.add_argument("--yes", action="store_true", help="do not ask")


def _rm(options: argparse.Namespace) -> int:
    one = _one(options)
    what = f"the session {one.session} of {one.object}, with {counted(one.messages, 'message')}"
    if not options.yes and not sure(f"remove {what}?"):
        raise Fault("ECANCELED", "nothing was removed")
    sessions.remove(one)
    output.say(f"removed {what}")
    return EXIT_OK


def _declare_gc(into: argparse.ArgumentParser) -> None:
    into.add_argument("object", metavar="OBJECT", nargs="?", help="only its sessions")
    into.add_argument("--older-than", metavar="DAYS", type=float, help="remove what was not used for so long")
    into.add_argument("--keep", metavar="N", type=int, help="remove all but the N newest of each object")
    into.add_argument("--dry-run", action="store_true", help="only say what would go")
    parser.json_option(into)


def _gc(options: argparse.Namespace) -> int:
    if options.older_than is None and options.keep is None:
        raise Fault("EINVAL", "say what may go: --older-than DAYS, --keep N, or both")
    if not (options.older_than or 0) >= 0 or (options.keep or 0) < 0:  # NaN is no age either
        raise Fault("EINVAL", "--older-than and --keep cannot be negative")
    age_ = None if options.older_than is None else options.older_than * DAY
    there = list(_there(options))
    names = dict.fromkeys(one.object for one in there)
    gone = [one for name in names for one in sessions.expired(_of(there, name), age_, options.keep)]
    for one in gone if not options.dry_run else ():
        with contextlib.suppress(FileNotFoundError):
            sessions.remove(one)
    _report(options, gone)
    return EXIT_OK


def _report(options: argparse.Namespace, gone: list[StoredSession]) -> None:
    if options.json:
        output.emit([_row(one) for one in gone])
        return
    for one in gone:
        print(f"{one.object} {one.session}")
    verb = "would be removed" if options.dry_run else "removed"
    output.say(f"{counted(len(gone), 'session')} {verb}, {size(sum(one.size for one in gone))}")


def _declare_one(into: argparse.ArgumentParser) -> None:
    talking.declare_object(into)
    into.add_argument("session", metavar="SESSION", help="its name; see: ctx session list OBJECT")


def _there(options: argparse.Namespace) -> Iterator[StoredSession]:
    """The sessions that are meant, newest first, as they come."""
    if options.object:
        where = talking.named(options)
        return sessions.each(where.root, where.whole, options.scope)
    root = mounts.root(options.root)
    mounts.status_text(root)
    every = (sessions.each(root, name, options.scope) for name in sessions.objects(root, options.scope))
    return heapq.merge(*every, key=lambda one: -one.updated)


def _of(there: list[StoredSession], name: str) -> list[StoredSession]:
    return [one for one in there if one.object == name]


def _one(options: argparse.Namespace) -> StoredSession:
    where = talking.named(options)
    return sessions.find(where.root, where.whole, options.scope, options.session)


def _row(one: StoredSession) -> dict[str, Any]:
    row = one._asdict() | {"path": str(one.path), "updated": _when(one.updated)}
    return row


def _message(message: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part.text} for part in message.content]
    return {"id": message.id, "run": message.run, "role": message.role, "content": content}


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def size(count: int) -> str:
    """Bytes for people."""
    step = next((step for step, _ in enumerate(UNITS) if count < 1024 ** (step + 1)), len(UNITS) - 1)
    return f"{count} B" if not step else f"{count / 1024**step:.1f} {UNITS[step]}"


def age(seconds: float) -> str:
    """How long ago, for people."""
    length, unit = next((length, unit) for length, unit in AGES if seconds >= length or length == 1)
    return f"{max(0, int(seconds // length))} {unit} ago"


VERBS: dict[
    str,
    tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]],
] = {
    "list": ("List sessions, newest first", _declare_list, _list),
    "show": ("Show what was said in a session", _declare_show, _show),
    "rm": ("Remove a session", _declare_rm, _rm),
    "gc": ("Remove sessions that are no longer used", _declare_gc, _gc),
}
