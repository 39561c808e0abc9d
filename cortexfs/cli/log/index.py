"""The index of the user's own sessions with a mount, and of shared ones, by the words of their messages.

    with index.opened(root, report) as log: ...     brought up to date with the sessions
    log.find(Wanted(words="migration"))             the runs, newest first

Rules: the index can be deleted, and is made anew from the sessions. A file in its place that is not such an
index is removed, and a link is never followed. The index is its user's alone, in a folder where no other user
can put anything. A search is for words and not a query language, even if the words look like one. A session
that is gone leaves the index before anything is shown, and its text leaves the file. Without FTS5, a search
reads each text.
This file must never know a terminal, nor the daemon's own files.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cortexfs.chat import sessions
from cortexfs.chat.sessions import SPACES
from cortexfs.core.errors import Fault
from cortexfs.state import believed, directories, no_links

if TYPE_CHECKING:
    from cortexfs.cli.log.reading import LoggedRun

VERSION = 2  # of the tables; an index of another version is made anew
BUSY_SECONDS = 60.0  # the time that another command of the same user may take
TOGETHER = 500  # sessions taken in together; an interrupt loses no more
LOG = "events.jsonl"
_TABLES = """
CREATE TABLE sessions (id INTEGER PRIMARY KEY, space TEXT, object TEXT, name TEXT, mtime INTEGER,
    size INTEGER, next INTEGER, head BLOB, UNIQUE (space, object, name));
CREATE TABLE runs (id INTEGER PRIMARY KEY, session INTEGER, code TEXT, run TEXT, time REAL, model TEXT,
    agent TEXT, status TEXT, input INTEGER, output INTEGER, start INTEGER, end INTEGER);
CREATE INDEX by_session ON runs (session, start);
CREATE INDEX by_time ON runs (time);
CREATE TABLE lists (space TEXT, object TEXT, digest BLOB, PRIMARY KEY (space, object));
"""
_FTS = "CREATE VIRTUAL TABLE texts USING fts5(question, answer, tokenize='unicode61 remove_diacritics 2')"
_PLAIN = "CREATE TABLE texts (question TEXT, answer TEXT)"
_SESSION = "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_OF = "space = ? AND object = ?"
_RUN = "INSERT INTO runs VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TEXT = "INSERT INTO texts (rowid, question, answer) VALUES (?, ?, ?)"
_LIKE = """r.id IN (SELECT rowid FROM texts WHERE question LIKE ? ESCAPE '!' OR answer LIKE ? ESCAPE '!')"""
_ENTRIES = """
SELECT r.code, r.run, s.space, s.object, s.name, r.time, r.model, r.agent, r.status, r.input, r.output,
    r.start, r.end, t.question, t.answer
FROM (SELECT * FROM runs r WHERE %s ORDER BY r.time DESC, r.id DESC LIMIT ?) r
JOIN sessions s ON s.id = r.session JOIN texts t ON t.rowid = r.id ORDER BY r.time DESC, r.id DESC
"""


class Entry(NamedTuple):
    """A run, as it is shown."""

    id: str
    run: str
    space: str
    object: str
    session: str
    time: float
    model: str
    agent: str
    status: str
    input_tokens: int
    output_tokens: int
    start: int
    end: int
    question: str
    answer: str


class Wanted(NamedTuple):
    """The wanted runs: those that match all of these fields."""

    words: str = ""
    model: str = ""  # a part of its name
    agent: str = ""
    since: float = 0
    id: str = ""  # the beginning of the entry's id, or the whole id of the run
    most: int = -1  # the newest ones; -1: all


class _Seen(NamedTuple):
    """A session, as the index has it."""

    id: int | None = None
    mtime: int = 0
    size: int = -1
    next: int = 0
    head: bytes = b""


class LogIndex:
    """An open index, locked: another command of its user waits for it."""

    def __init__(self, db: sqlite3.Connection, root: str, report: Callable[[str], None]) -> None:
        self._db = db
        self._root = root
        self._report = report
        self._is_soiled = False  # the file may hold text of removed sessions
        self.has_fts = (
            "fts5" in db.execute("SELECT sql FROM sqlite_master WHERE name = 'texts'").fetchone()[0]
        )

    # Bring the index up to date.

    def update(self) -> None:
        """Take in new events of the sessions, and drop the sessions that are gone."""
        known = self._db.execute("SELECT space, object FROM lists").fetchall()
        lists = [(space, name) for space in SPACES for name in sessions.objects(self._root, space)]
        for key in sorted({*lists, *known}):  # private ones first, as others may fill the shared ones
            self._update_object(*key)
        if self._is_soiled and self.has_fts:  # else deleted words stay in the file until a merge
            self._db.execute("INSERT INTO texts (texts) VALUES ('optimize')")

    def _update_object(self, space: str, object_: str) -> None:
        """Bring an object's sessions up to date. Its list has the last used first, so behind the first
        unchanged session only unknown ones are new. The oldest is taken in first, so that after an interrupt
        the rest is found again."""
        key = (space, object_)
        folder = sessions.folder(self._root, object_, space)
        data = _read(folder / "index" / "list")
        names = data.decode(errors="replace").split()
        digest, new = blake2b(data, digest_size=16).digest(), set[str]()
        before = self._db.execute(f"SELECT digest FROM lists WHERE {_OF}", key).fetchone()
        if before != (digest,):
            rows = self._db.execute(f"SELECT name, id FROM sessions WHERE {_OF}", key)
            known: dict[str, int] = dict(rows.fetchall())
            new = set(names) - known.keys()
            for name in known.keys() - set(names):
                self._forget(known[name])
        front = takewhile(lambda name: name in new or self._has_changed(key, folder / name), names)
        fresh = new.union(front)
        todo = [folder / name for name in reversed(names) if name in fresh]
        for at in range(0, len(todo), TOGETHER):
            if at:
                self._report(f"reading sessions, {at} of {len(todo)}")
                self._db.execute("COMMIT")
                self._db.execute("BEGIN IMMEDIATE")
            self._take(key, todo[at : at + TOGETHER])
        if before != (digest,):
            self._db.execute("INSERT OR REPLACE INTO lists VALUES (?, ?, ?)", (*key, digest))

    def _row(self, key: tuple[str, str], name: str) -> _Seen:
        query = f"SELECT id, mtime, size, next, head FROM sessions WHERE {_OF} AND name = ?"
        row = self._db.execute(query, (*key, name)).fetchone()
        return _Seen(*row) if row else _Seen()

    def _has_changed(self, key: tuple[str, str], place: Path) -> bool:
        row = self._row(key, place.name)
        with contextlib.suppress(OSError):
            status = os.stat(place / LOG)
            return (row.mtime, row.size) != (status.st_mtime_ns, status.st_size)
        return True

    def _take(self, key: tuple[str, str], places: list[Path]) -> None:
        """Bring sessions up to date."""
        from cortexfs.cli.log import reading  # imports msgspec, only if something is new

        rows = [self._row(key, place.name) for place in places]
        logs = [(place / LOG, row.next, row.head) for place, row in zip(places, rows, strict=True)]
        for place, row, log in zip(places, rows, reading.read_all(logs), strict=True):
            if log is None:  # the session is being removed
                continue
            if log.is_other and row.id is not None:
                self._forget(row.id)
            id_ = None if log.is_other else row.id
            values = (id_, *key, place.name, log.mtime, log.size, log.next, log.head)
            id_ = self._db.execute(_SESSION, values).lastrowid
            self._drop("session = ? AND start >= ?", id_, 0 if log.is_other else row.next)
            for run in log.runs:
                self._add(id_, f"{key[1]}/{place.name}/{run.run}", run, log.mtime / 1e9)

    def _add(self, session: int | None, path: str, run: LoggedRun, mtime: float) -> None:
        code = blake2b(path.encode(), digest_size=4).hexdigest()
        about = (session, code, run.run, run.time or mtime, run.model, run.agent, run.status)
        row = self._db.execute(
            _RUN, (*about, run.input_tokens, run.output_tokens, run.start, run.end)
        ).lastrowid
        self._db.execute(_TEXT, (row, run.question, run.answer))

    def _forget(self, session: int) -> None:
        self._drop("session = ?", session)
        self._db.execute("DELETE FROM sessions WHERE id = ?", (session,))
        self._is_soiled = True

    def _drop(self, where: str, *values: int | None) -> None:
        self._db.execute(f"DELETE FROM texts WHERE rowid IN (SELECT id FROM runs WHERE {where})", values)
        self._db.execute(f"DELETE FROM runs WHERE {where}", values)

    # Find.

    def find(self, query: Wanted) -> list[Entry]:
        """Returns the wanted runs, newest first."""
        indexed = [word for word in query.words.split() if self.has_fts and any(map(str.isalnum, word))]
        fts = " ".join('"{}" *'.format(word.replace('"', '""')) for word in indexed)
        tests: list[tuple[str, tuple[object, ...]]] = [
            (_LIKE, (_part(word),) * 2) for word in query.words.split() if word not in indexed
        ]
        if fts:
            tests.append(("r.id IN (SELECT rowid FROM texts WHERE texts MATCH ?)", (fts,)))
        if query.model:
            tests.append(("r.model LIKE ? ESCAPE '!'", (_part(query.model),)))
        if query.agent:
            tests.append(("r.agent = ?", (query.agent,)))
        if query.id:
            tests.append(("(r.run = ? OR substr(r.code, 1, ?) = ?)", (query.id, len(query.id), query.id)))
        tests.append(("r.time >= ?", (query.since,)))
        where = " AND ".join(test for test, _ in tests)
        values = [value for _, each in tests for value in each]
        return [Entry(*row) for row in self._db.execute(_ENTRIES % where, [*values, query.most])]


def _part(text: str) -> str:
    """Returns a pattern of LIKE for texts that contain `text`."""
    plain = text.encode(errors="replace").decode()
    for sign in "!%_":
        plain = plain.replace(sign, f"!{sign}")
    return f"%{plain}%"


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


# The file.


@contextlib.contextmanager
def opened(root: str, report: Callable[[str], None] = lambda _: None) -> Iterator[LogIndex]:
    """Yields the up-to-date index of the sessions with a mount. A damaged index is made anew."""
    path = place(root)
    with contextlib.ExitStack() as stack:
        try:
            try:
                index = stack.enter_context(_updated(path, root, report))
            except sqlite3.DatabaseError as problem:
                if _is_busy(problem):
                    raise
                path.unlink(missing_ok=True)
                index = stack.enter_context(_updated(path, root, report))
        except sqlite3.Error as problem:
            code, mend = ("EAGAIN", "try again") if _is_busy(problem) else ("EIO", "remove it, or make room")
            raise Fault(code, f"the index {path} cannot be used: {problem}; {mend}") from None
        yield index


def freshen(root: str) -> None:
    """Bring an existing index up to date, so that it drops removed sessions at once."""
    if place(root).exists():
        with opened(root):
            pass


def _is_busy(problem: sqlite3.Error) -> bool:
    return getattr(problem, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY


def place(root: str) -> Path:
    """Returns the path of a mount's index. It depends on the mount's path and owner."""
    owner = os.stat(f"{root}/status").st_uid
    name = blake2b(f"{owner} {root}".encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return directories.cache(os.environ, os.getuid()) / f"log-{name}.db"


@contextlib.contextmanager
def _updated(path: Path, root: str, report: Callable[[str], None]) -> Iterator[LogIndex]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    believed.folder(path.parent)
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        if (status.st_mode, status.st_uid, status.st_nlink) != (stat.S_IFREG | 0o600, os.geteuid(), 1):
            path.unlink()
    os.close(no_links.opener(str(path), os.O_RDWR | os.O_CREAT))
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as db:
        for setting in (
            "secure_delete = ON",
            "synchronous = OFF",
        ):  # a crash of the machine may cost the index
            db.execute(f"PRAGMA {setting}")
        db.execute("BEGIN IMMEDIATE")
        _make(db)
        index = LogIndex(db, root, report)
        index.update()
        db.execute("COMMIT")
        yield index


def _make(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise sqlite3.DatabaseError(f"its version is {version}")
    if version:
        return
    for table in _TABLES.split(";"):
        db.execute(table)
    try:
        db.execute(_FTS)
    except sqlite3.OperationalError:  # this Python's SQLite has no FTS5
        db.execute(_PLAIN)
    db.execute(f"PRAGMA user_version = {VERSION}")
