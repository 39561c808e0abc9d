"""host/process/pipe_reader.py: the thread that reads a program's output, and runtime.shielded around it."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from io import FileIO
from typing import NamedTuple

import pytest

from cortexfs.host.call.runtime import Runtime, ToolCancelled, _raise_in, shielded
from cortexfs.host.process.pipe_reader import Leading

SECONDS = 60.0


class Said(NamedTuple):
    """A pipe that is read by `leading` when a call leads, and else by the thread that waits with `look`."""

    leading: Leading
    look: select.epoll
    write: FileIO
    heard: list[bytes]

    def lead(self, waits: Callable[[], bool], begin: Callable[[], object] = lambda: None) -> None:
        self.leading.lead(waits, time.monotonic() + SECONDS, begin)

    def waits(self) -> bool:
        return not self.heard


@pytest.fixture
def said() -> Iterator[Said]:
    heard: list[bytes] = []
    reading, writing = os.pipe()
    with open(reading, "rb", 0) as file, open(writing, "wb", 0) as write, select.epoll() as look:

        def read() -> bool:
            heard.append(file.read(9))
            return bool(heard[-1])

        look.register(file, select.EPOLLIN)
        leading = Leading(file, look, read)
        yield Said(leading, look, write, heard)
        leading.stop()


def test_who_waits_reads_for_himself_and_wakes_nobody(said: Said) -> None:
    def begin() -> None:
        said.write.write(b"answer")
        assert said.look.poll(0) == []

    said.lead(said.waits, begin)
    assert said.heard == [b"answer"]
    said.write.write(b"to nobody")
    assert len(said.look.poll(SECONDS)) == 1
    said.leading.turn()
    assert said.heard == [b"answer", b"to nobody"]


def test_one_reads_at_a_time(said: Said) -> None:
    done = []

    def begin() -> None:
        said.write.write(b"answer")
        said.lead(said.waits, lambda: done.append("begun, and waits elsewhere"))
        said.leading.turn()
        assert said.heard == []

    said.lead(said.waits, begin)
    assert (said.heard, len(done)) == ([b"answer"], 1)


def test_what_he_is_to_hear_of_otherwise_is_a_nudge(said: Said) -> None:
    told = threading.Event()

    def tell() -> None:
        told.set()
        said.leading.nudge()

    said.lead(lambda: not told.is_set(), threading.Thread(target=tell).start)
    assert told.is_set()
    said.write.write(b"answer")  # reading still works after a nudge that came too late
    said.leading.nudge()
    said.lead(said.waits)
    assert said.heard == [b"answer"]


def test_nobody_leads_after_its_end(said: Said) -> None:
    stopping = threading.Thread(target=said.leading.stop)
    said.lead(said.waits, stopping.start)
    stopping.join()
    begun: list[bool] = []
    said.lead(said.waits, lambda: begun.append(True))
    assert (said.heard, begun) == ([], [True])


def test_he_leaves_when_his_time_is_over_or_nothing_more_comes(said: Said) -> None:
    said.leading.lead(said.waits, time.monotonic())
    said.write.close()
    said.lead(lambda: True)
    assert said.heard == [b""]


def test_a_cancellation_waits_until_nothing_is_half_done() -> None:
    # runtime.py: "`ToolCancelled` is raised ... at most once, ... not while the thread is `shielded`"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        runtime = Runtime(theirs)
        told: list[bool] = []
        runtime.on_cancel(lambda: told.append(True))
        interrupting = threading.Thread(target=runtime.interrupt)
        done = []

        def work() -> None:
            with shielded(runtime):
                interrupting.start()
                interrupting.join()
                done.append("whole")

        with pytest.raises(ToolCancelled):
            work()
        assert (told, done) == ([True], ["whole"])
        with shielded(runtime):  # the cancellation is raised only once
            pass
        runtime.end()


def test_a_cancellation_that_is_on_its_way_comes_before_the_shield() -> None:
    # runtime.py: "A cancellation on its way is raised in here."
    ours, theirs = socket.socketpair()
    with ours, theirs:
        runtime = Runtime(theirs)
        met: list[str] = []
        begun = threading.Event()

        def work() -> None:
            try:
                begun.set()
                runtime.shield()
                met.append("shielded")
            except ToolCancelled:
                met.append("cancelled")

        with runtime._state:
            worker = threading.Thread(target=work)
            worker.start()
            begun.wait()
            _raise_in(worker.ident, ToolCancelled)
        worker.join()
        assert met == ["cancelled"]
