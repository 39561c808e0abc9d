"""Shared by all tests: runs `async def` tests under trio, as pytest-trio would, by one hook."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import inspect
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests import opened
from tests.waiting import PATIENCE, SOAK

# A timer older than this many seconds is replaced. A timer is a thread: starting and joining a thread takes
# as long as most tests of the core, on a busy machine thirty times as long. So tests share timers.
RENEWED = 10
timer_since: pytest.StashKey[float] = pytest.StashKey()
terminal: pytest.StashKey[int] = pytest.StashKey()
variables: pytest.StashKey[dict[bytes, bytes]] = pytest.StashKey()

pytest_plugins = ["tests.lanes"]


def pytest_configure(config: pytest.Config) -> None:
    """Let a signal that ends the tests (CI sends SIGTERM) clean up, in each lane and in their parent. Give
    children the signals of a foreground job, as a job in the background ignores SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    config.stash[terminal] = os.dup(2)  # before a test's standard error is caught
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):  # root of a container; tests of other users fail
            opened.open_the_way(opened.needed())


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Prepare a process that collects tests. The parent of lanes collects none, and loads no Hypothesis."""
    if isinstance(collector, pytest.Directory):
        gc.disable()
        os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"  # to look for them takes longer than the rest of the import
        from hypothesis import settings

        del os.environ["HYPOTHESIS_NO_PLUGINS"]
        # Short runs try the same few examples each time, without a time limit; `make soak` tries many others.
        settings.register_profile("short", max_examples=8, deadline=None, derandomize=True)
        settings.register_profile("soak", max_examples=1000, deadline=None)
        settings.load_profile("soak" if SOAK else "short")


def pytest_collection_finish() -> None:
    """Freeze the tests, which stay until the end: to scan them for garbage takes 10 % of the time."""
    gc.collect()
    gc.freeze()
    gc.enable()


# The dict inside os.environ: reading os.environ by names takes a tenth of the time of the core tests.
VARIABLES: dict[bytes, bytes] = vars(os.environ)["_data"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Print the stacks of a test that hangs, after more time than any test may wait."""
    stash, now = item.config.stash, time.monotonic()
    stash[variables] = dict(VARIABLES)
    if not SOAK and now - stash.get(timer_since, -RENEWED) >= RENEWED:
        faulthandler.dump_traceback_later(PATIENCE + RENEWED, file=stash[terminal])
        stash[timer_since] = now


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Fail a test that changes the environment and does not restore it: all tests of a process share it.
    An automatic fixture would take a tenth of the time of the core tests."""
    try:
        yield
    finally:
        if nextitem is None:  # a lane that is done may have to wait for other lanes
            faulthandler.cancel_dump_traceback_later()
        before, own = item.config.stash[variables], {b"PYTEST_CURRENT_TEST"}
        changed = {name for name, _ in before.items() ^ VARIABLES.items()} - own
        for name in changed & VARIABLES.keys():
            del os.environb[name]
        os.environb.update({name: before[name] for name in changed & before.keys()})
    assert not changed


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        function = pyfuncitem.obj

        @functools.wraps(function)
        def run(**arguments: object) -> None:
            import trio  # imported here, as the parent of lanes runs no test

            trio.run(functools.partial(bounded, function, arguments))

        pyfuncitem.obj = run


async def bounded(function: Callable[..., Awaitable[None]], arguments: dict[str, object]) -> None:
    """End every test after a limit, so that no test waits for ever."""
    import trio

    with trio.fail_after(2 * PATIENCE):
        await function(**arguments)
