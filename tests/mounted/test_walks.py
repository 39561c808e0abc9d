"""The ways of a call, of a session's line and of an agent's step through the daemon's files, as
docs/design.md ("Three ways through the daemon") describes them. Each section names files and limits moves.

A move is a call or a return in another file than the event before. Background tasks are no part of a way:
requests of the kernel, and logs of runs, which are written now and then.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from cortexfs.peers import safe_sockets
from tests.mounted.ctx_mount import Ctx
from tests.shell.forks import public_directory
from tests.waiting import PATIENCE

DESIGN = Path(__file__).parent.parent.parent / "docs" / "design.md"
DAEMON = Path(__file__).with_name("walked_daemon.py")
# Files that every way passes on kernels before Linux 6.16 only.
OLD_KERNELS = () if safe_sockets.REFUSED else ("peers/safe_sockets.py",)

TIMES, COLD = 20, 4  # the number of walks, and of walks before the daemon is warm
READERS = "tree/readers.py"  # its tasks wait for requests of the kernel, at any time
ASIDE = {("tree/kernel.py", "guard"), ("state/run_logs.py", "run"), ("sessions/beside.py", "run")}
WRITERS = {("sessions/writer.py", "_run_writer"), ("sessions/writer.py", "_run_syncer")}
Function: TypeAlias = tuple[str, str]  # file and name


class Event(NamedTuple):
    event: str
    file: str
    function: str


class Page(NamedTuple):
    files: list[str]
    most_files: int
    most_moves: int


def page(heading: str) -> Page:
    section = DESIGN.read_text().split(f"### {heading}\n")[1].split("\n#")[0]
    files, moves = map(int, re.findall(r"at most (\d+)\s+files and (\d+)\s+moves", section)[0])
    steps = section.split("\n1. ")[1].split("\n\n")[0]
    return Page(re.findall(r"`([\w/]+/\w+\.py)`", steps), files, moves)


def without(events: list[Event], aside: set[Function]) -> list[Event]:
    """Returns the events outside of these tasks, which are called to go on, and return to wait."""
    kept, depth = [], 0
    for each in events:
        if each[1:] in aside:
            depth += 1 if each.event == "call" else -1
        elif not depth and each.file != READERS:
            kept.append(each)
    return kept


def between(events: list[Event], first: Function, last: Function) -> list[Event]:
    """Returns the events from the first call of one function to the last return of another."""
    names = [event[1:] for event in events]
    return events[names.index(first) : len(names) - names[::-1].index(last)]


def walked(events: list[Event]) -> tuple[list[str], int]:
    """Returns the files in the order of their first events, and the number of moves."""
    files = [event.file for event in events if event.file not in OLD_KERNELS]
    moves = sum(before != after for before, after in itertools.pairwise(files))
    return list(dict.fromkeys(files)), moves


def check(heading: str, ways: list[list[Event]]) -> None:
    """The shortest way keeps to the page; others may be longer, as late events cost one more wait.
    Each file of the page is met on some way."""
    told, walks = page(heading), [walked(way) for way in ways]
    files, moves = min(walks, key=lambda walk: walk[1])
    assert {*files} - {*told.files} == set(), "are not on the page"
    met = {file for files, _ in walks for file in files}
    assert {*told.files} - {*OLD_KERNELS} - met == set(), "are on the page, and not met"
    assert len(files) <= len(told.files) <= told.most_files
    assert moves <= told.most_moves


class Walked(Ctx):
    """A daemon that records its calls and returns."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, Path(sys.executable))
        self.root.mkdir()
        self.config.mkdir()
        words = [sys.executable, str(DAEMON), str(self.root), str(self.state), str(self.config)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=self.environ)
        assert self._heard() == "ready\n"

    def _heard(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def _say(self, word: str) -> str:
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._heard()

    def ways(
        self, work: Callable[[], object], first: Function, last: Function, aside: set[Function] = ASIDE
    ) -> list[list[Event]]:
        """Repeat the work; returns the events of each time, from a call of `first` to a return of `last`."""
        ways = []
        for number in range(TIMES):
            assert self._say("begin") == "begun\n"
            work()
            events = without([Event(*each) for each in json.loads(self._say("end"))], aside)
            if number >= COLD:
                ways.append(between(events, first, last))
        return ways

    def end(self) -> None:
        self.umount()
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Walked]:
    with ExitStack() as stack:
        made = Walked(stack.enter_context(public_directory()))
        stack.callback(made.end)
        yield made


class Talk:
    """A connection to a `.sock`."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")

    def send(self, words: Any) -> dict[str, Any]:
        """Send a message; returns the last frame of the answer."""
        self._socket.sendall(json.dumps({"op": "send", "input": words}).encode() + b"\n")
        for line in self._lines:
            frame: dict[str, Any] = json.loads(line)
            if frame["type"] == "done":
                return frame
        raise AssertionError("the daemon has left")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


def test_the_way_of_a_call(daemon: Walked) -> None:
    (daemon.work / "text").write_text("some words\n")

    def call() -> None:
        assert daemon.run([daemon.tool("fs.read"), str(daemon.work / "text")]).returncode == 0

    ways = daemon.ways(call, ("peers/guests.py", "_accept"), ("run/runner.py", "_finish"))
    check("The way of a call", ways)


@pytest.fixture
def echo(daemon: Walked) -> Iterator[Talk]:
    with closing(Talk(daemon.root / "model/debug/echo.sock")) as talk:
        yield talk


def test_the_way_of_a_sessions_line(daemon: Walked, echo: Talk) -> None:
    def line() -> None:
        assert echo.send("words")["status"] == "ok"

    ways = daemon.ways(line, ("talk/stream.py", "received"), ("talk/connection.py", "_pass_on"))
    check("The way of a session's line", ways)


STEP = [
    {"tool_call": {"name": "fs.read", "input": {"path": "/etc/hostname"}}},
    {"turn": True},
    {"delta": "it"},
]


def test_the_way_of_an_agents_step(daemon: Walked) -> None:
    daemon.quickly("agent", "new", "walker", "--model", "debug/script", "--tools", "fs.read")
    with closing(Talk(daemon.root / "agent/walker.sock")) as talk:

        def message() -> None:
            assert talk.send(json.dumps(STEP))["status"] == "ok"

        asked, told = ("agents/loop.py", "_ask"), ("agents/loop.py", "_log_outcome")
        ways = daemon.ways(message, asked, told, ASIDE | WRITERS)
    check("The way of an agent's step", ways)
