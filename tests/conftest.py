"""Shared by every ring: `async def` tests run under trio (what pytest-trio would do, in one hook)."""

from __future__ import annotations

import functools
import inspect

import pytest
import trio


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        function = pyfuncitem.obj

        @functools.wraps(function)
        def run(**arguments: object) -> None:
            trio.run(functools.partial(function, **arguments))

        pyfuncitem.obj = run
