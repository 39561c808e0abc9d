"""A provider played by tests, beside a real mount: the server of tests/shell in its own thread.

with acting(ByModel({"m1": moves})) as provider: ...
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence

import trio

from tests.shell.provider_server import AnyProvider, Move, Provider, Request, served
from tests.waiting import PATIENCE


class ByModel(Provider):
    """A provider that chooses its answer by the requested model, so that requests may come in any order."""

    def __init__(self, answers: Mapping[str, Sequence[Move]]) -> None:
        super().__init__([])
        self.by_model = answers

    async def moves(self, request: Request) -> Sequence[Move]:
        return self.by_model[request.body["model"]]


@contextlib.contextmanager
def acting(provider: AnyProvider) -> Iterator[AnyProvider]:
    ready = threading.Event()
    stopping: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def main() -> None:
        stop = trio.Event()
        stopping.append((trio.lowlevel.current_trio_token(), stop))
        async with served(provider):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield provider
    finally:
        token, stop = stopping[0]
        token.run_sync_soon(stop.set)
        thread.join()
