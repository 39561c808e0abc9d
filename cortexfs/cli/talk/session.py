"""`ctx session`: the sessions of objects, read from their files in the mount.

Rules: only files are read, and a session is removed as `rm -r` would. A user who may not do that may not do
it here. A removed session cannot be restored, so the person is asked first.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any

from cortexfs.chat import sessions
from cortexfs.chat.sessions import SPACES, StoredSession
from cortexfs.cli import mounts, objects, output, progress
from cortexfs.cli.output import sure
from cortexfs.cli.parser import JSON, ROOT, Command, arg, flag
from cortexfs.core.errors import Fault
from cortexfs.core.safe_text import counted, prose, quoted, within

DAY = 86400.0
REMOVERS = 16  # sessions that are removed at the same time
PAGE = 200  # the first rows set the widths of the columns
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def _list(options: argparse.Namespace) -> None:
    found = _sessions(options)
    if options.json:
        return output.emit([_row(session) for session in found])
    now = time.time()
    rows = iter(found)
    if first := list(itertools.islice(rows, PAGE)):
        team = any(session.machine for session in first)
        heads = ("object", "session", "state", "updated", "messages", "size", *(("machine",) if team else ()))
        cells = [_cells(session, now, team) for session in first]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        output.table(heads, itertools.chain(cells, (_cells(session, now, team) for session in rows)), widths)
    else:
        whose = f" of {options.object}" if options.object else ""
        output.say(f"there are no {options.scope} sessions{whose}")


def _cells(session: StoredSession, now: float, team: bool) -> tuple[str, ...]:
    since, size_text = age(now - session.updated), size(session.size)
    machine = (session.machine or "",) if team else ()
    return (session.object, session.session, session.state, since, str(session.messages), size_text, *machine)


def _show(options: argparse.Namespace) -> None:
    session = _session(options)
    from cortexfs.chat import said as said_before  # imports frames, which a listing does not need

    history, meta = said_before.messages(session.path), sessions.meta(session.path)
    if options.json:
        messages = [
            {
                "id": message.id,
                "run": message.run,
                "role": message.role,
                "content": [{"type": "text", "text": part.text} for part in message.content],
            }
            for message in history
        ]
        return output.emit({"meta": meta or _row(session), "messages": messages})
    print(
        f"{session.object} {session.session}: {session.state}, "
        f"{counted(session.messages, 'message')}, {size(session.size)}"
    )
    if cwd := meta.get("cwd"):
        print(f"cwd: {within(str(cwd))}")
    for message in history:
        text = "".join(part.text for part in message.content)
        text = prose(text) if sys.stdout.isatty() else text
        print(f"\n{quoted(text) if message.role == 'user' else text}")


def _rm(options: argparse.Namespace) -> None:
    remove(options, _session(options))


def remove(options: argparse.Namespace, session: StoredSession) -> None:
    """Remove the session, after a question."""
    title = f"the session {session.session} of {session.object}, with {counted(session.messages, 'message')}"
    if not options.yes and not sure(f"remove {title}?"):
        raise Fault("ECANCELED", "nothing was removed")
    sessions.remove(session)
    _unlog(options)
    output.say(f"removed {title}")


def _rename(options: argparse.Namespace) -> None:
    session = _session(options)
    sessions.rename(session, options.name)
    _unlog(options)
    output.say(f"the session {session.session} of {session.object} is {options.name} now")


def _take(options: argparse.Namespace) -> None:
    root, object_ = _root_and_name(options)
    from cortexfs.client import Conversation  # a slow import that only this needs

    with Conversation(f"{root}/{object_}.sock") as conversation:
        conversation.take(options.session, options.force)
    output.say(f"this machine has the session {options.session} of {object_} now")


def _gc(options: argparse.Namespace) -> None:
    if options.older_than is None and options.keep is None:
        raise Fault("EINVAL", "say which sessions to remove: --older-than DAYS, --keep N, or both")
    if not (options.older_than or 0) >= 0 or (options.keep or 0) < 0:  # NaN is no age either
        raise Fault("EINVAL", "--older-than and --keep cannot be negative")
    age_ = None if options.older_than is None else options.older_than * DAY
    by_object: dict[str, list[StoredSession]] = {}
    with progress.shown("looking at sessions") as now:
        for session in _sessions(options):
            by_object.setdefault(session.object, []).append(session)
        expired = [
            session for group in by_object.values() for session in sessions.expired(group, age_, options.keep)
        ]
        if expired and not options.dry_run:
            for number in _remove_all(expired):
                now(f"removing sessions, {number} of {len(expired)}")
            _unlog(options)
    if options.json:
        return output.emit([_row(session) for session in expired])
    for session in expired:
        print(f"{session.object} {session.session}")
    verb = "would be removed" if options.dry_run else "removed"
    output.say(f"{counted(len(expired), 'session')} {verb}, {size(sum(session.size for session in expired))}")


def _remove_all(expired: list[StoredSession]) -> Iterator[int]:
    """Remove the sessions. Yields how many were removed so far. The daemon syncs the disk once for those that
    are removed at the same time."""

    def remove(session: StoredSession) -> None:
        with contextlib.suppress(FileNotFoundError):
            sessions.remove(session)

    from concurrent.futures import ThreadPoolExecutor  # a slow import that only this needs

    with ThreadPoolExecutor(REMOVERS) as pool:
        yield from (number for number, _ in enumerate(pool.map(remove, expired), 1))


def _unlog(options: argparse.Namespace) -> None:
    from cortexfs.cli.log import index  # imports SQLite, which only a removal needs

    index.freshen(mounts.answering(options.root))


def _sessions(options: argparse.Namespace) -> Iterator[StoredSession]:
    """Yields the chosen sessions, newest first, one by one."""
    if options.object:
        return sessions.each(*_root_and_name(options), options.scope)
    root = mounts.answering(options.root)
    every = (sessions.each(root, name, options.scope) for name in sessions.objects(root, options.scope))
    return heapq.merge(*every, key=lambda session: -session.updated)


def _session(options: argparse.Namespace) -> StoredSession:
    return sessions.find(*_root_and_name(options), options.scope, options.session)


def _root_and_name(options: argparse.Namespace) -> tuple[str, str]:
    root = mounts.answering(options.root)
    try:
        path, name = objects.conversing(root, options.object)
        if why := sessions.kept_by(path, name):
            raise Fault("EINVAL", f"{why}; there: ctx session list {name.partition('+')[0]}")
        return root, name
    except Fault as fault:  # sessions stay when their object is removed
        space = vars(options).get("scope", "private")  # `take` has no scope: a team's are private
        if fault.code != "ENOENT" or options.object not in sessions.objects(root, space):
            raise
        return root, options.object


def _row(session: StoredSession) -> dict[str, Any]:
    updated = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(session.updated))
    return session._asdict() | {"path": str(session.path), "updated": updated}


def size(count: int) -> str:
    """Returns a number of bytes for people."""
    step = next((step for step, _ in enumerate(UNITS) if count < 1024 ** (step + 1)), len(UNITS) - 1)
    return f"{count} B" if not step else f"{count / 1024**step:.1f} {UNITS[step]}"


def age(seconds: float) -> str:
    """Returns a past time for people."""
    length, unit = next((length, unit) for length, unit in AGES if seconds >= length or length == 1)
    return f"{max(0, int(seconds // length))} {unit} ago"


SCOPE = arg("--scope", None, "whose sessions (default: private)", choices=SPACES, default="private")
ONLY = arg("object", "OBJECT", "only its sessions", nargs="?")
SESSION = arg("session", "SESSION", "its name; see: ctx session list OBJECT")
VERBS = {
    "list": Command(
        _list,
        (ROOT, SCOPE, ONLY, JSON),
        ("ctx session list", "ctx session list model/main --json | jq -r '.[].session'"),
        "list sessions, newest first",
    ),
    "show": Command(
        _show,
        (ROOT, SCOPE, objects.TALKING, SESSION, JSON),
        ("ctx session show model/main default",),
        "show what was said in a session",
    ),
    "rm": Command(
        _rm,
        (ROOT, SCOPE, objects.TALKING, SESSION, flag("--yes", "do not ask")),
        ("ctx session rm agent/coder old-one --yes",),
        "remove a session",
    ),
    "rename": Command(
        _rename,
        (ROOT, SCOPE, objects.TALKING, SESSION, arg("name", "NAME", "its new name")),
        ("ctx session rename agent/coder chat-mf3k2 parser",),
        "give a session another name",
    ),
    "take": Command(
        _take,
        (
            ROOT,
            objects.TALKING,
            SESSION,
            flag("--force", "take it even from a machine that is connected; its runs there end"),
        ),
        ("ctx session take agent/coder plan+laptop",),
        "go on here with a session that another machine of the team has",
    ),
    "gc": Command(
        _gc,
        (
            ROOT,
            SCOPE,
            ONLY,
            arg("--older-than", "DAYS", "remove sessions unused for so many days", type=float),
            arg("--keep", "N", "remove all but the N newest of each object", type=int),
            flag("--dry-run", "only show which would be removed"),
            JSON,
        ),
        ("ctx session gc --older-than 30 --keep 20 --dry-run",),
        "remove sessions that are no longer used",
    ),
}
COMMANDS = {"session": Command(verbs=VERBS)}
