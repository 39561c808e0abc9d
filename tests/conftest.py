"""Shared by every ring: `async def` tests run under trio (what pytest-trio would do, in one hook)."""

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
import trio
from hypothesis import settings

from tests import opened
from tests.waiting import PATIENCE, SOAK

# Seconds after which a timer serves no further test. A timer is a thread, and to start and to join one takes
# as long as most tests of the core, on a busy machine thirty times as long: so it is not one for each test.
RENEWED = 10
timer_since: pytest.StashKey[float] = pytest.StashKey()
terminal: pytest.StashKey[int] = pytest.StashKey()

pytest_plugins = ["tests.lanes"]

# The same few examples each time, as long as the machine takes for them; `make soak` tries many others.
settings.register_profile("short", max_examples=8, deadline=None, derandomize=True)
settings.register_profile("soak", max_examples=1000, deadline=None)
settings.load_profile("soak" if SOAK else "short")


def pytest_configure(config: pytest.Config) -> None:
    """Clean up whoever ends the tests (CI sends SIGTERM), in each lane and in what began the lanes; and give
    children the signals of a foreground job: a job in the background ignores SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    config.stash[terminal] = os.dup(2)  # before a test's standard error is caught
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):  # a container's root; what needs other users fails
            opened.open_the_way(opened.needed())


def pytest_collection_finish() -> None:
    """What was collected stays until the end: to look through it for garbage takes a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the stacks of a test written that hangs, once it is past all patience."""
    stash, now = item.config.stash, time.monotonic()
    if not SOAK and now - stash.get(timer_since, -RENEWED) >= RENEWED:
        faulthandler.dump_traceback_later(PATIENCE + RENEWED, file=stash[terminal])
        stash[timer_since] = now


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None:  # a lane that is done may wait for others
        faulthandler.cancel_dump_traceback_later()


# What os.environ keeps: to read it by its names takes a tenth of the core ring's time.
VARIABLES: dict[bytes, bytes] = vars(os.environ)["_data"]


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """The environment is every test's of this process: who changes it changes it back."""
    before = dict(VARIABLES)
    yield
    own = {b"PYTEST_CURRENT_TEST"}
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
            trio.run(functools.partial(bounded, function, arguments))

        pyfuncitem.obj = run


async def bounded(function: Callable[..., Awaitable[None]], arguments: dict[str, object]) -> None:
    """No test waits for ever, whatever it waits for."""
    with trio.fail_after(2 * PATIENCE):
        await function(**arguments)
