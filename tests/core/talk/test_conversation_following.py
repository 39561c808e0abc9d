"""abi.md 5.16, 5.18."""

from __future__ import annotations

import itertools

import pytest

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.talk.protocol import MAX_FOLLOWED, Spans, Subscriptions
from cortexfs.core.talk.requests import Cancel, Resume, Send, SessionKey
from cortexfs.core.talk.session import LogEvent
from tests.core.conversation_pair import World, ids
from tests.tables import each_of

KEY = SessionKey("private", 1000, "default")


def test_spans_are_a_set() -> None:
    for count in range(1, 6):
        for order in itertools.permutations([(1, 3), (3, 4), (6, 9), (2, 7), (10, 11)][:count]):
            spans_in_order(order)


def spans_in_order(order: tuple[tuple[int, int], ...]) -> None:
    spans, numbers = Spans(), set[int]()
    for start, stop in order:
        spans.add(start, stop)
        numbers |= set(range(start, stop))
        assert {n for n in range(13) if n in spans} == numbers
    for number, last in itertools.product(range(13), range(13)):
        gap = spans.gap(number, last)
        missing = [n for n in range(number, last) if n not in numbers]
        assert list(gap) == missing[: len(gap)]
        assert bool(gap) == bool(missing)


def taken(given: Subscriptions, log: list[LogEvent]) -> list[int]:
    """Returns the numbers that a reader of this log sends, if it reads as told."""
    sent = []
    while due := given.due(KEY, len(log)):
        for number in due:
            assert number == log[number - 1].number
            if given.take(KEY, log[number - 1]):
                sent.append(number)
    return sent


def log_of(runs: str) -> list[LogEvent]:
    """A log with an event for each letter, which names the run; a capital letter is the run's last event."""
    return [LogEvent(n, letter.lower(), letter.isupper(), b"") for n, letter in enumerate(runs, 1)]


def test_nothing_is_due_to_who_asked_for_nothing() -> None:
    given = Subscriptions()
    assert not given.due(KEY, 10)
    assert given.keys == ()


def test_a_run_is_followed_to_its_end() -> None:
    log = log_of("aabAbaBa")
    given = Subscriptions()
    given.follow_run(KEY, "b", 3)
    assert taken(given, log[:4]) == [3]
    assert taken(given, log) == [5, 7]
    assert not given.due(KEY, 100)


def test_a_resume_after_a_send_fills_in_the_rest() -> None:
    log = log_of("aaAbbBccC")
    given = Subscriptions()
    given.follow_run(KEY, "b", 4)
    assert taken(given, log) == [4, 5, 6]
    given.follow(KEY, 0)
    assert taken(given, log) == [1, 2, 3, 7, 8, 9]
    given.follow(KEY, 2)
    given.follow(KEY, 0)
    assert taken(given, log) == []


def test_a_run_and_a_resume_of_its_middle() -> None:
    log = log_of("aaaaA")
    given = Subscriptions()
    given.follow(KEY, 3)
    given.follow_run(KEY, "a", 1)
    given.follow_run(KEY, "a", 6)  # by a cancel: an existing subscription stays as it is
    assert taken(given, log) == [1, 2, 3, 4, 5]


def test_numbers_that_no_event_has_hold_nobody_up() -> None:
    # the reader goes through the existing events, wherever the due ones begin
    log = [LogEvent(number, "a", False, b"") for number in (1, 2, 10, 11, 20)]
    given = Subscriptions()
    given.follow(KEY, 2)
    sent = []
    for after in (2, 0):
        given.follow(KEY, after)
        while due := given.due(KEY, 20):
            event = next(event for event in log if event.number >= due.start)
            if given.take(KEY, event):
                sent.append(event.number)
    assert sent == [10, 11, 20, 1, 2]


def test_sessions_are_counted_apart() -> None:
    other = KEY._replace(session="other")
    given = Subscriptions()
    given.follow(KEY, 0)
    given.follow(other, 3)
    assert (given.due(KEY, 5), given.due(other, 5)) == (range(1, 6), range(4, 6))
    for number in (1, 2):
        given.take(KEY, LogEvent(number, "a", False, b""))
    assert (given.due(KEY, 5), given.due(other, 5)) == (range(3, 6), range(4, 6))
    assert given.keys == (KEY, other)


@each_of(("after", "sent"), [(None, [4]), (3, [4, 5]), (4, [4, 5]), (0, [1, 2, 3, 4, 5])])
def test_history_is_whole_and_a_run_among_others_is_not(after: int | None, sent: list[int]) -> None:
    row = b'{"type":"delta","id":"%d","run":"%c","text":"x"}\n'
    rows = [row % (number, run) for number, run in enumerate(b"bbbab", 1)]
    given = Subscriptions()
    given.follow_run(KEY, "a", 3)
    if after is not None:
        given.follow(KEY, after)
    due = given.due(KEY, 5)
    data = b"".join(rows[number - 1] for number in due)
    said, done = given.take_lines(KEY, due, data)
    assert (said, done) == (b"".join(rows[number - 1] for number in sent), len(data))
    assert (said is data) == (after == 0)  # such lines are not taken apart
    assert not given.due(KEY, 5)


def test_who_follows_a_session_keeps_the_runs_of_his_own_until_they_end() -> None:
    # abi.md 5.25
    given = Subscriptions()
    given.follow(KEY, 0)
    for n in range(1, 1000):
        given.follow_run(KEY, f"r-{n}", n)
        assert given.awaits_runs
        line = b'{"type":"done","id":"%d","run":"r-%d","status":"ok"}\n' % (n, n)
        assert given.take_lines(KEY, given.due(KEY, n), line) == (line, len(line))
        assert not given.awaits_runs
    assert not given.due(KEY, 999)


def test_a_deleted_session_begins_anew() -> None:
    given = Subscriptions()
    given.follow(KEY, 0)
    for number in range(1, 9):
        given.take(KEY, LogEvent(number, "a", False, b""))
    given.forget(KEY)
    assert not given.due(KEY, 3)
    given.follow(KEY, 0)
    assert given.due(KEY, 3) == range(1, 4)


def test_the_sessions_of_a_connection_are_bounded() -> None:
    # abi.md 5.25
    given = Subscriptions()
    for n in range(MAX_FOLLOWED):
        given.follow(KEY._replace(session=f"s{n}"), 0)
    with pytest.raises(Fault, match="EAGAIN: this connection follows 1024 sessions"):
        given.follow(KEY, 0)
    given.follow(KEY._replace(session="s0"), 0)


def test_what_cannot_be_followed_is_not_begun() -> None:
    world = World()
    connection, other = world.connect(), world.connect()
    other.ask(Send(session="x", input="x"))
    other.ask(Send(session="x", id="waits", input="x"))
    for n in range(MAX_FOLLOWED):
        connection.given.admit(KEY._replace(session=f"s{n}"))
    for asked in (Send(session="x", input="y"), Send(session="new", input="y"), Cancel(id="waits")):
        (error,) = connection.ask(asked)
        assert isinstance(error, frames.Error)
        assert error.code == "EAGAIN"
    session = world.session(KEY._replace(session="x"))
    assert (session.last, session.waiting) == (2, ("r-4",))
    assert world.session(KEY._replace(session="new")).last == 0


ASKED: list[Send | Resume] = [
    Resume(),
    Resume(after="2"),
    Resume(after="6"),
    Send(id="1", input="x"),
    Send(id="4", input="y"),
]


@each_of("reads", [True, False])
def test_whatever_is_asked_in_whatever_order(reads: bool) -> None:
    for order in itertools.permutations(range(len(ASKED)), 3):
        asked_in_order(order, reads)


def asked_in_order(order: tuple[int, ...], reads: bool) -> None:
    # runs 1 (over), 2 (another's, over), 3 (another's, active), 4 (waiting); at the end all of them end
    world = World()
    other, connection = world.connect(), world.connect()
    connection.reads = reads
    other.ask(Send(id="1", input="x"))
    other.ask(Send(id="2", input="x"))
    world.finish("r-3")
    world.finish("r-4")
    other.ask(Send(id="3", input="x"))
    heard = []
    for asked in (ASKED[place] for place in order):
        heard += connection.ask(asked)
        world.emit("r-5", frames.Delta(text="live"))
    world.finish("r-5")
    connection.reads = True
    heard += connection.ask(Resume(session="elsewhere"))  # any request makes it read again
    (log,) = (log for key, log in world.logs.items() if key == KEY)
    if run := world.session(KEY).active:
        world.finish(run.run)
        heard += connection.read()
    after, runs = list[int](), list[str | None]()
    for asked in (ASKED[place] for place in order):
        if isinstance(asked, Resume):
            after.append(int(asked.after or 0))
        elif asked.id == "4" or not reads or min(after, default=3) >= 3:
            runs.append(world.session(KEY).find(asked.id or ""))
        # otherwise the client already has event 3, the done of run 1: its end is sent without events
    wanted = [event.number for event in log if event.run in runs or (after and event.number > min(after))]
    assert sorted(ids(heard)) == wanted  # each event once, and no other event


def test_a_canceller_follows_from_where_it_cancels() -> None:
    world = World()
    one, two = world.connect(), world.connect()
    one.ask(Send(input="x"))
    world.emit("r-3", frames.Delta(text="a"))
    assert ids(two.ask(Cancel(id="r-3"))) == [4]
    assert ids(one.read()) == [3, 4]
