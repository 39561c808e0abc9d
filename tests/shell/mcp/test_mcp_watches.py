"""A client that subscribes to files of the mount and leaves them again, by the SDK in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.server.lowlevel import Server

from cortexfs.mcp.offer import McpOffer
from cortexfs.mcp.shelf import McpShelf
from tests.shell.mcp.test_mcp_offer import tool

TIMES = 5


@pytest.mark.filterwarnings("ignore:resources/(un)?subscribe is removed")
def test_who_subscribes_again_and_again_leaves_nothing(tmp_path: Path) -> None:
    # issue 16: exit callbacks grew with each subscription, and nobody was ever unsubscribed
    (tmp_path / "tool").mkdir()
    path = tool(tmp_path / "tool", "greet")
    offer = McpOffer(lambda: [path])
    offer.renew()
    shelf = McpShelf(str(tmp_path), offer)
    server: Server[Any] = Server("shelf")
    shelf.add_to(server)
    described = Path(f"{path}.d/description")
    uri = described.as_uri()

    async def use() -> None:
        async with Client(server, mode="legacy") as client:
            seen: set[int] = set()
            for number in range(TIMES):
                await client.subscribe_resource(uri)
                await anyio.Path(described).write_text("x" * number)
                ((who, changed),) = await shelf.changed()
                session: Any = who
                assert changed == uri
                await client.unsubscribe_resource(uri)
                await anyio.Path(described).write_text("y" * 2 * number)
                assert await shelf.changed() == []
                seen.add(len(session._connection.exit_stack._exit_callbacks))
            assert len(seen) == 1

    anyio.run(use)
