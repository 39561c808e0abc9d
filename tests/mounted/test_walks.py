"""The way of a call, of a session's line and of an agent's step through the daemon's files, as docs/design.md
("Three ways through the daemon") tells it: each page names its files, and how many moves there are at most.

A move is a call or a return whose file differs from the one before. Tasks that work beside are no part of a
way: requests of the kernel, logs of runs that are written now and then.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cortexfs.peers import safe_sockets
from tests.mounted.ctx_mount import Ctx
from tests.shell.forks import public_directory
from tests.waiting import PATIENCE

DESIGN = Path(__file__).parent.parent.parent / "docs" / "design.md"
DAEMON = Path(__file__).with_name("walked_daemon.py")
# Files on the way of each byte that only kernels before Linux 6.16 need.
OLD_KERNELS = () if safe_sockets.REFUSED else ("peers/safe_sockets.py",)

TIMES = 12  # the first few are not warm
ASIDE = {
    ("tree/fault_guard.py", "guard"),
    ("state/run_logs.py", "run"),
    ("sessions/writer.py", "_run_deriver"),
}


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
    return Page(re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.MULTILINE), files, moves)


def without_others(events: list[Event]) -> list[Event]:
    """Without the tasks of `ASIDE`, each of which is called when it goes on, and returns when it waits."""
    kept, depth = [], 0
    for each in events:
        if each[1:] in ASIDE:
            depth += 1 if each.event == "call" else -1
        elif not depth:
            kept.append(each)
    return kept


def between(events: list[Event], first: tuple[str, str], last: tuple[str, str]) -> list[Event]:
    """From the first call of one function to the last return of another."""
    names = [event[1:] for event in events]
    return events[names.index(first) : len(names) - names[::-1].index(last)]


def walked(events: list[Event]) -> tuple[list[str], int]:
    """The files in the order in which they are met, and the moves."""
    files = [event.file for event in events if event.file not in OLD_KERNELS]
    moves = sum(before != after for before, after in itertools.pairwise(files))
    return list(dict.fromkeys(files)), moves


def check(heading: str, events: list[Event]) -> None:
    told = page(heading)
    files, moves = walked(events)
    assert [file for file in files if file not in told.files] == [], "are not on the page"
    assert [file for file in told.files if file not in files] == [], "are on the page, and not met"
    assert len(files) <= told.most_files
    assert moves <= told.most_moves


class Walked(Ctx):
    """A daemon that notes where it goes."""

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

    def way(self, work: Callable[[], object], first: tuple[str, str], last: tuple[str, str]) -> list[Event]:
        """The events on the way of this work, from a call of one function to a return of another: of several
        times the shortest, as an answer that comes late is waited for once more."""
        ways = []
        for _ in range(TIMES):
            assert self._say("begin") == "begun\n"
            work()
            events = without_others([Event(*each) for each in json.loads(self._say("end"))])
            ways.append(between(events, first, last))
        return min(ways, key=lambda way: walked(way)[1])

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
        """Its last frame."""
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

    accepted, told = ("peers/arrivals.py", "_accept"), ("run/runner.py", "_finish")
    check("The way of a call", daemon.way(call, accepted, told))
