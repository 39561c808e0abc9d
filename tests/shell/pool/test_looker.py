"""pool/callers.py: the daemon's end of the program that looks up where callers are."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from cortexfs.peers import place
from cortexfs.peers.ancestry import KnownHost
from cortexfs.peers.place import HERE
from cortexfs.pool.callers import Look, Looker, LookQuestion
from cortexfs.pool.starter import Starter
from cortexfs.pool.starter_ends import begin
from tests.shell.calling import files_closed, open_files
from tests.shell.forks import connected
from tests.waiting import awaited, until

MANY = 3000  # more than a channel holds at a time


@asynccontextmanager
async def looking() -> AsyncIterator[Looker]:
    starter = Starter(begin())
    try:
        looker = Looker(starter, {})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(starter.run)
            nursery.start_soon(looker.run)
            yield looker
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(starter.stop)


async def test_somebody_who_is_here() -> None:
    async with looking() as looker:
        seen = await looker.place_of(looker.ask(os.getpid()))
        assert seen.place == HERE
        assert os.readlink(f"/proc/self/fd/{seen.cwd}") == os.getcwd()
        seen.close()


async def test_somebody_who_is_gone() -> None:
    async with looking() as looker:
        with pytest.raises(FileNotFoundError):
            await looker.place_of(looker.ask(2**22 + 1))  # proc(5): above the greatest possible pid_max


async def test_nobody_is_held_up_by_one_that_does_not_answer() -> None:
    async with looking() as looker:
        os.kill(looker._child.pid, signal.SIGSTOP)
        answered = []

        async def ask() -> None:
            seen = await looker.place_of(looker.ask(os.getpid()))
            answered.append(seen.place)
            seen.close()

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert not answered
            os.kill(looker._child.pid, signal.SIGCONT)
        assert answered == [HERE] * 3


async def test_another_one_answers_what_the_last_one_has_not() -> None:
    async with looking() as looker:
        first = looker._child
        before = open_files()
        os.kill(first.pid, signal.SIGSTOP)
        questions = [looker.ask(os.getpid()) for _ in range(5)]
        os.kill(first.pid, signal.SIGKILL)
        for question in questions:
            seen = await looker.place_of(question)
            assert seen.place == HERE
            seen.close()
        await awaited(lambda: looker._child.pid, lambda pid: pid != first.pid)
        looker.forget(looker.ask(os.getpid()))  # this also drops an answer that comes twice
        await files_closed(before)


async def test_more_questions_than_are_taken_at_a_time() -> None:
    async with looking() as looker:
        before = open_files()
        os.kill(looker._child.pid, signal.SIGSTOP)
        questions = [looker.ask(os.getpid()) for _ in range(MANY)]
        assert looker._unsent
        os.kill(looker._child.pid, signal.SIGCONT)
        for question in questions:
            (await looker.place_of(question)).close()
        assert not looker._unsent
        await files_closed(before)


async def test_an_answer_that_nobody_wants_holds_no_directory() -> None:
    async with looking() as looker:
        before = open_files()
        for _ in range(20):
            looker.forget(looker.ask(os.getpid()))
        seen = await looker.place_of(looker.ask(os.getpid()))  # this answer comes after all the others
        seen.close()
        assert not looker._questions
        os.kill(looker._child.pid, signal.SIGSTOP)
        looker.forget(looker.ask(os.getpid()))
        os.kill(looker._child.pid, signal.SIGCONT)
        await awaited(lambda: looker._late, lambda late: not late)  # read, without a caller
        await files_closed(before)


async def test_who_waits_hears_of_an_answer_that_somebody_else_reads() -> None:
    async with looking() as looker:
        os.kill(looker._child.pid, signal.SIGSTOP)
        first, second = looker.ask(os.getpid()), looker.ask(os.getpid())
        places: list[place.Place] = []

        async def wait() -> None:
            seen = await looker.place_of(first)
            places.append(seen.place)
            seen.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(looker._child.pid, signal.SIGCONT)
            while second.answer is None:  # without a turn of the loop, so that no other task reads
                looker._hear(second)
            assert isinstance(second.answer, place.SeenPlace)
            second.answer.close()
        assert places == [HERE]


SHEDS = """
import ctypes, signal
signal.signal(signal.SIGUSR1, lambda *_: ctypes.CDLL(None).unshare(0x10000000))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give powers up")
async def test_powers_that_somebody_gains_where_he_goes_are_none_here() -> None:
    # Root without powers is seen here. In a user namespace root has all powers, as /proc shows right after.
    class Late:
        hosts: dict[int, KnownHost] = {}  # noqa: RUF012

        def ask(self, pid: int) -> LookQuestion:
            question = LookQuestion(1, pid)
            question.answer = place.place_of(pid)
            os.kill(pid, signal.SIGUSR1)
            until(lambda: powers(pid), lambda found: found != 0)
            return question

        async def place_of(self, question: LookQuestion) -> place.SeenPlace:
            assert isinstance(question.answer, place.SeenPlace)
            assert question.answer.place == HERE
            return question.answer

    weak = connected("setpriv", "--bounding-set=-all", "--inh-caps=-all", after=SHEDS)
    with weak as sock, closing(Look(cast(Looker, Late()), sock)) as look, await look.caller() as caller:
        assert (caller.identity.uid, caller.identity.capabilities) == (0, 0)


def powers(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nCapEff:\t")[2].partition("\n")[0], 16)
