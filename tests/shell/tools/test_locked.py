"""tools/support/locked.py: no cancellation leaves a lock taken, wherever it strikes."""

from __future__ import annotations

import ctypes
import os
import threading
from functools import partial

import pytest

from cortexfs.tools.support.locked import locked
from tests.waiting import PATIENCE

ROUNDS = 400
_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Struck(BaseException):
    """Raised as a host raises a cancellation."""


@pytest.mark.parametrize("step", [-1, 0.2])
def test_a_cancellation_leaves_it_free(step: float) -> None:
    lock = threading.Lock()
    for turn in range(ROUNDS):
        begun = threading.Event()

        def work(begun: threading.Event = begun) -> None:
            try:
                begun.set()
                while True:
                    locked(lock, os.sched_yield, step)
            except Struck:
                pass

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        for _ in range(turn % 20):
            os.sched_yield()
        # A thread that waits for the lock when it is struck takes the lock first.
        held = bool(turn % 2) and lock.acquire(timeout=PATIENCE)
        _raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Struck))
        if held:
            lock.release()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert lock.acquire(timeout=PATIENCE), f"it is taken after turn {turn}"
        lock.release()


def test_others_wait_for_it() -> None:
    lock = threading.Lock()
    assert locked(lock, partial(lock.acquire, blocking=False)) is False
    with pytest.raises(ZeroDivisionError):
        locked(lock, partial(divmod, 1, 0), 0.01)
    assert lock.acquire(blocking=False)


def test_one_that_waits_by_steps_is_struck_while_it_waits() -> None:
    lock = threading.Lock()
    lock.acquire()
    begun = threading.Event()
    struck = []

    def work() -> None:
        try:
            begun.set()
            locked(lock, os.sched_yield, 0.01)
        except Struck:
            struck.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    _raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Struck))
    thread.join(PATIENCE)
    assert struck
    assert lock.locked(), "it is not the one that let it go"
