"""A starter for tests, and nothing left of it afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from cortexfs.pool.starter import Starter


@asynccontextmanager
async def starting(**options: Any) -> AsyncIterator[Starter]:
    starter = Starter(**options)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(starter.run)
            yield starter
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(starter.stop)
