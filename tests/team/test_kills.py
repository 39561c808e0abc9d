"""Three machines, each with a server of the team, under load while parts of them are killed and stopped. All
messages reported as done are on every machine, once and in order, and no call runs twice.

Five rounds in `make test-team`, an hour of them with CTX_SOAK. A failure names its seed; CTX_SEED repeats it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.mounted.talking import SCRIPT, Closed, Frame, Talk
from tests.team.machines import Machine, cluster
from tests.team.sessions import MAP, events, same, take
from tests.team.test_takeover import back, lose
from tests.waiting import SOAK, until

SECONDS = 3600 if SOAK else 0
SEED = int(os.environ.get("CTX_SEED", random.randrange(1 << 32)))
NAMES = ("laptop", "desk", "box")
SHELL = "shell.exec"


class Load:
    """Does one task after the other, and records the tasks that were reported as done."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.told: list[str] = []
        self.last: object = None  # the result of the last task
        self._number = 0

    def go_on(self) -> None:
        self._number += 1
        if self._does(id_ := f"{type(self).__name__}{self._number}"):
            self.told.append(id_)

    def _does(self, id_: str) -> bool:
        raise NotImplementedError

    def goes_on(self) -> None:
        """Wait until one more task is done."""
        before = len(self.told)
        until(lambda: (len(self.told), self.last), lambda seen: seen[0] > before)


class Writer(Load):
    """Sends messages in a session, on the machine that has it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.home = machine
        self.session = f"kept+{machine.name}"

    def _does(self, id_: str) -> bool:
        try:
            with contextlib.closing(Talk(self.machine.ctx.root / SCRIPT)) as here:
                here.play({"burst": 20, "size": 50}, {"delta": id_}, session=self.session, id=id_)
                self.last = end = _end(here)
                return end.get("status") == "ok"
        except (Closed, OSError) as problem:
            self.last = problem
            return False


class RemoteCaller(Load):
    """Runs commands on another machine; each command appends a line to a file there."""

    def __init__(self, machine: Machine, other: Machine, file: Path) -> None:
        super().__init__(machine)
        self.file, self._tool = file, f"{SHELL}+{other.name}"

    def _does(self, id_: str) -> bool:
        try:
            self.last = answer = self.machine.ctx.call(self._tool, f"echo {id_} >> {self.file}")
        except OSError as problem:  # nothing is mounted
            self.last = problem
            return False
        return answer.status == 0


def _end(here: Talk) -> Frame:
    """Returns the last frame of a run, or the error if no run began."""
    while True:
        frame = here.frame()
        if frame["type"] == "done" or (frame["type"] == "error" and "id" not in frame):
            return frame


@contextlib.contextmanager
def going(*tasks: Callable[[], None]) -> Iterator[None]:
    """Repeat each of these tasks in a thread of its own until the block ends."""
    stop, problems = threading.Event(), list[BaseException]()

    def run(task: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                task()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not problems, (SEED, problems)


def kill_server(machine: Machine, writers: list[Writer]) -> None:
    os.kill(machine.server(), signal.SIGKILL)


def kill_two_servers(machine: Machine, writers: list[Writer]) -> None:
    kill_server(machine, writers)
    kill_server(next(each.home for each in writers if each.home is not machine), writers)


def kill_link(machine: Machine, writers: list[Writer]) -> None:
    os.kill(machine.link(), signal.SIGKILL)


def kill_daemon(machine: Machine, writers: list[Writer]) -> None:
    lose(machine)
    take_over(machine, writers)
    back(machine)


def stop_link(machine: Machine, writers: list[Writer]) -> None:
    """Stop the link until another machine has taken its sessions."""
    link = machine.link()
    os.kill(link, signal.SIGSTOP)
    try:
        take_over(machine, writers)
    finally:
        os.kill(link, signal.SIGCONT)


def take_over(machine: Machine, writers: list[Writer]) -> None:
    """Have another machine take the sessions that this one has."""
    other = next(each.home for each in writers if each.home is not machine)
    for writer in writers:
        if writer.machine is machine:
            taken = partial(take, other, writer.session, SCRIPT, check=False)
            until(taken, lambda said: "this machine has" in said)
            writer.machine = other


HARM = (kill_server, kill_two_servers, kill_link, kill_daemon, stop_link)


@pytest.fixture
def machines(python: Path) -> Iterator[dict[str, Machine]]:
    with cluster(python, *NAMES) as found:
        for each in found.values():
            (each.ctx.config / "team.map").write_text(MAP)
            others = [word for name in NAMES if name != each.name for word in ("--to", f"root@{name}")]
            each.team("export", f"tool/{SHELL}", *others, "--as", "root")
        for each in found.values():
            for name in NAMES:
                if name != each.name:
                    each.sees(f"tool/{SHELL}+{name}")
        yield found


def test_what_was_told_outlives_an_hour_of_kills(machines: dict[str, Machine], tmp_path: Path) -> None:
    # abi.md 14.13, 14.20
    rng, end = random.Random(SEED), time.monotonic() + SECONDS
    every = [machines[name] for name in NAMES]
    writers = [Writer(each) for each in every]
    after = every[1:] + every[:1]
    callers = [RemoteCaller(one, two, tmp_path / one.name) for one, two in zip(every, after, strict=True)]
    load: list[Load] = [*writers, *callers]
    rounds = 0
    with going(*(each.go_on for each in load)):
        while rounds < len(HARM) or time.monotonic() < end:
            harm = HARM[rounds] if rounds < len(HARM) else rng.choice(HARM)
            harm(rng.choice(every), writers)
            for each in load:
                each.goes_on()
            rounds += 1
    for writer in writers:
        found = events(same(writer.session, *every, path=SCRIPT))
        ids = [int(one["id"]) for one in found]
        assert ids == sorted(set(ids)), SEED
        starts = {one["run"]: one.get("request") for one in found if one["type"] == "start"}
        done = [starts[one["run"]] for one in found if one["type"] == "done" and one["status"] == "ok"]
        assert len(done) == len(set(done)), SEED
        assert [each for each in done if each in set(writer.told)] == writer.told, SEED
    for caller in callers:
        lines = caller.file.read_text().split()
        assert len(lines) == len(set(lines)), SEED
        assert set(caller.told) <= set(lines), SEED
    print(f"{rounds} rounds of harm; done: {sum(len(each.told) for each in load)}")
