"""`ctx log`: questions and answers, newest first.

Rules: it shows the user's own sessions and shared ones, as their files in the mount have them, and finds them
by the user's own index (index.py). A question is removed with its session. Text of models is escaped on a
terminal. A list needs neither prices nor msgspec, and does not import them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cortexfs.chat import sessions
from cortexfs.cli import kept, mounts, output, progress
from cortexfs.cli.log import index
from cortexfs.cli.log.index import LOG, Entry, Wanted
from cortexfs.cli.parser import JSON, ROOT, Command, arg, flag
from cortexfs.core.errors import Fault
from cortexfs.core.safe_text import prose, quoted

if TYPE_CHECKING:
    from cortexfs.core.models.prices import Prices

MOST = 20
ALL = 1 << 40  # characters of a shown text
UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGO = r"(\d{1,6})([mhdw])"


def _list(options: argparse.Namespace) -> None:
    if options.n < 0:
        raise Fault("EINVAL", "-n cannot be negative; 0 shows all")
    root = mounts.answering(options.root)
    query = Wanted(
        words=options.q or "",
        model=_model(root, options.model or ""),
        agent=(options.agent or "").rpartition("/")[2],
        since=moment(options.since, time.time()) if options.since else 0,
        most=options.n or -1,
    )
    if options.usage:
        from cortexfs.cli.log import usage  # a slow import that only --usage needs

        return usage.show(root, query, options.json)
    found = _found(root, query)
    if options.json:
        from cortexfs.cli import prices

        known = prices.load()
        return output.emit([_row(entry, known) for entry in found])
    if not found:
        return output.say(
            "no question matches" if query._replace(most=-1) != Wanted() else "nothing was asked yet"
        )
    rows = [(each.id, when(each.time), _answerer(each), each.question.strip()) for each in found]
    output.table(("id", "asked", "of", "question"), rows)


def _show(options: argparse.Namespace) -> None:
    from cortexfs.cli import prices
    from cortexfs.cli.log import reading

    root = mounts.answering(options.root)
    entry = _entry(root, options.logged)
    with open(sessions.place(root, entry.object, entry.space, entry.session) / LOG, "rb") as log:
        runs, _ = reading.runs_of(log, entry.start, entry.end, ALL)
    entry = entry._replace(question=runs[0].question, answer=runs[0].answer) if runs else entry
    known = prices.load()
    if options.json:
        return output.emit(_row(entry, known))
    cost = _cost(entry, known)
    used = f"{entry.input_tokens:,} tokens in, {entry.output_tokens:,} out"
    space = "" if entry.space == "private" else f"{entry.space} "
    session = f"{space}session {entry.session}"
    about = (when(entry.time), _answerer(entry), session, entry.status, used, known.text(cost))
    print(", ".join(part for part in about if part))
    escape = prose if sys.stdout.isatty() else str
    print(f"\n{quoted(escape(entry.question))}\n\n{escape(entry.answer)}")


def _rm(options: argparse.Namespace) -> None:
    from cortexfs.cli.talk import session  # a slow import that only a removal needs

    root = mounts.answering(options.root)
    entry = _entry(root, options.logged)
    session.remove(options, sessions.find(root, entry.object, entry.space, entry.session))


def _on(options: argparse.Namespace) -> None:
    kept.turn(on=options.verb == "on")
    output.say(f"ctx ask {'keeps its questions' if kept.is_on() else 'keeps nothing; see: ctx log on'}")


def _found(root: str, query: Wanted) -> list[Entry]:
    with progress.shown("reading sessions") as now, index.opened(root, now) as log:
        if query.words and not log.has_fts:
            output.say("this Python's SQLite has no FTS5: every text is looked through, which takes longer")
        return log.find(query)


def _entry(root: str, id_: str) -> Entry:
    """Returns the entry with this id, with an id that begins so, or with this id of its run."""
    found = _found(root, Wanted(id=id_))
    if len(found) == 1:
        return found[0]
    if found:
        raise Fault(
            "EINVAL", f"{', '.join(each.id for each in found[:5])} begin with {id_!r}; type more of the id"
        )
    raise Fault("ENOENT", f"there is no {id_!r} in the log; see: ctx log")


def _model(root: str, name: str) -> str:
    """Returns the part of a model's name, or the model that an alias of that name means."""
    link = f"{root}/model/{name.removeprefix('model/')}"
    name = os.path.relpath(os.path.realpath(link), f"{root}/model") if os.path.islink(link) else name
    return name.removeprefix("model/")


def _answerer(entry: Entry) -> str:
    name = f"agent {entry.agent}" if entry.agent else entry.model
    return name if entry.space == "private" else f"{name}, {entry.space}"


def _cost(entry: Entry, known: Prices) -> float | None:
    return known.cost(entry.model, entry.input_tokens, entry.output_tokens)


def _row(entry: Entry, known: Prices) -> dict[str, Any]:
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.time))
    row = entry._asdict() | {"time": date, "cost": _cost(entry, known), "currency": known.currency}
    return {key: value for key, value in row.items() if key not in ("start", "end")}


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def moment(text: str, now: float) -> float:
    """Returns the time of `3d`, `12h`, `2026-11-25` or `2026-11-25T08:30`, here. Raises EINVAL for others."""
    if ago := re.fullmatch(_AGO, text):
        return now - int(ago[1]) * UNITS[ago[2]]
    with contextlib.suppress(ValueError, OverflowError):
        return datetime.fromisoformat(text).timestamp()
    raise Fault("EINVAL", f"--since: {text!r} is no time; say 3d, 12h, 2026-11-25 or 2026-11-25T08:30")


ID = arg("logged", "ID", "the id that `ctx log` shows, or its beginning")
VERBS = {
    "show": Command(
        _show, (ROOT, ID, JSON), ("ctx log show 5f0c9a1e",), "show a question with its whole answer"
    ),
    "rm": Command(
        _rm,
        (ROOT, ID, flag("--yes", "do not ask")),
        ("ctx log rm 5f0c9a1e",),
        "remove the session of a question",
    ),
    "off": Command(_on, (), ("ctx log off",), "have ctx ask keep no questions from now on"),
    "on": Command(_on, (), ("ctx log on",), "have ctx ask keep questions and answers again"),
}
COMMANDS = {
    "log": Command(
        _list,
        (
            arg("-n", "COUNT", f"how many, 0 for all (default: {MOST})", type=int, default=MOST),
            arg("-q", "TEXT", "only questions with all these words, or with words that begin so"),
            arg("--model", "MODEL", "only answers of this model, or of models with this in their names"),
            arg("--agent", "AGENT", "only questions to this agent"),
            arg("--since", "TIME", "only questions since then: 3d, 12h, 2026-11-25 or 2026-11-25T08:30"),
            flag("--usage", "the tokens and what they cost, by day, model and agent, and the limits"),
            JSON,
        ),
        (
            "ctx log",
            "ctx log -q 'migration postgres' --since 4w",
            "ctx log --model gpt --json | jq -r '.[].answer'",
            "ctx log --usage --since 2026-11-01",
            "ctx log show 5f0c9a1e",
            "ctx log off",
        ),
        verbs=VERBS,
    )
}
