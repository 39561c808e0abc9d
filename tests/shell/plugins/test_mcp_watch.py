"""MCP servers that keep failing are tried less often, and the log tells it once (plugins/mcp_watch.py)."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.testing

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.plugins.catalog import Catalog
from cortexfs.plugins.mcp_watch import RETRY_SECONDS, Watch

GOOD_SECONDS = 1000.0


class FailingCatalog:
    """Has a server that fails each time: at once, but for the sixth time, when it works for long before."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def follow(self, plugin: hostcalls.Plugin, unlike: str) -> tuple[str, bool]:
        self.times.append(trio.current_time())
        await trio.sleep(GOOD_SECONDS if len(self.times) == 6 else 0)
        raise Fault("EHOSTDOWN", "it exited with status 3")

    def note(self, plugin: hostcalls.Plugin, why: str) -> None:
        pass


def test_a_server_that_fails_is_told_once_and_tried_less_often(caplog: pytest.LogCaptureFixture) -> None:
    # docs/mcp.md: "after 1 to 60 s"
    catalog = FailingCatalog()

    async def changed() -> None:
        raise AssertionError

    async def main() -> None:
        watch = Watch(cast(Catalog, catalog), changed)
        async with trio.open_nursery() as nursery:
            await nursery.start(watch.run)
            watch.reconcile([hostcalls.Plugin("mcp:ends", "1", "mcp-server", "{}")])
            while len(catalog.times) < 8:  # noqa: ASYNC110
                await trio.sleep(1)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    pauses = [after - before for before, after in zip(catalog.times, catalog.times[1:], strict=False)]
    assert pauses == [*RETRY_SECONDS, RETRY_SECONDS[-1], GOOD_SECONDS + RETRY_SECONDS[0], RETRY_SECONDS[1]]
    told = "mcp:ends: it exited with status 3 (it is tried again, with longer pauses)"
    assert caplog.messages == [told, told]
