"""A starter for tests, of which nothing is left afterwards."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from cortexfs.pool.starter import Starter
from cortexfs.pool.starter_ends import begin


@asynccontextmanager
async def starting(**options: Any) -> AsyncIterator[Starter]:
    starter = Starter(begin(**options))
    try:
        for fd in starter.first()[1]:
            os.close(fd)  # the fork server ends, as nobody here wants hosts
        async with trio.open_nursery() as nursery:
            nursery.start_soon(starter.run)
            yield starter
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(starter.stop)
