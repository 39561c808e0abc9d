"""catalog.py: "A plugin's description is untrusted input: it is bounded and checked before it becomes an
object. A plugin that cannot be described is a sentence in `broken`, and everything else works." """

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from cortexfs.core import hostcalls, wire
from cortexfs.core.manifest.mcp_server import STARTING
from cortexfs.core.registry import Registry
from cortexfs.plugins.catalog import DESCRIBE_SECONDS, Catalog
from cortexfs.pool.pool import Pool

GOOD = {"name": "good", "description": "", "input_schema": {}}


class FakeHost:
    """A host that gives the same answer to each call, and nothing else."""

    def __init__(
        self, said: bytes, identity: hostcalls.Identity, kept: list[socket.socket], *, ends: bool
    ) -> None:
        self.identity = identity
        self._said = said
        self._kept = kept
        self._ends = ends
        self.exited = self
        self._is_known = False

    def call(self, cwd: int | None) -> socket.socket:
        ours, theirs = socket.socketpair()
        # In a thread, as the answer may overfill the socket. The thread ends when our end is closed.
        threading.Thread(target=self._speak, args=(theirs,)).start()
        ours.setblocking(False)
        self._kept.append(theirs)
        return ours

    def _speak(self, theirs: socket.socket) -> None:
        with contextlib.suppress(OSError):
            theirs.sendall(self._said)
            if self._ends:
                theirs.shutdown(socket.SHUT_WR)

    async def wait(self) -> None:
        self._is_known = True

    def describe_end(self) -> str:
        return "exited with status 3" if self._is_known else "broke off"


class FakePool:
    def __init__(self, said: dict[str, bytes], *, ends: bool = False) -> None:
        self._ends = ends  # a real host ends once it has sent everything
        self._said = {"builtin": describing([GOOD]), **said}
        self.kept: list[socket.socket] = []
        self.stuck: list[bool] = []

    def say(self, name: str, said: bytes) -> None:
        self._said[name] = said

    async def acquire(self, plugin: hostcalls.Plugin, identity: hostcalls.Identity) -> FakeHost:
        return FakeHost(self._said[plugin.name], identity, self.kept, ends=self._ends)

    def retire(self, host: FakeHost) -> None:
        pass

    def release(self, host: FakeHost, stuck: bool = False) -> None:
        self.stuck.append(stuck)


def describing(tools: Any) -> bytes:
    return wire.message(wire.DESCRIPTORS, tools if isinstance(tools, bytes) else json.dumps(tools).encode())


def described(said: dict[str, bytes], *, ends: bool = False) -> tuple[Registry, dict[str, str], float]:
    """Returns the registry, the broken plugins, and the seconds that it took on a clock that jumps."""
    pool = FakePool(said, ends=ends)

    async def main() -> tuple[Registry, dict[str, str], float]:
        began = trio.current_time()
        catalog = Catalog(cast(Pool, pool))
        plugins = [hostcalls.Plugin(name, "1", "python", "m:a") for name in said]
        return await catalog.registry(plugins), catalog.broken, trio.current_time() - began

    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=1))
    finally:
        for sock in pool.kept:
            sock.close()


def tool(**fields: Any) -> dict[str, Any]:
    return GOOD | {"name": "evil"} | fields


def effect(**words: str) -> dict[str, Any]:
    said = {"kind": "read", "reversibility": "reversible", "confirmation": "none", "dry_run": "none"} | words
    return {"effects": [said]}


DEEP = b'[{"name":"evil","description":"","input_schema":{"a":' + b"[" * 100_000


@pytest.mark.parametrize(
    "said",
    [
        describing(DEEP),
        describing(b"\xff"),
        describing([tool(name="../evil")]),
        describing([tool(name="evil\nx")]),
        describing([tool(description="x" * (17 << 10))]),
        describing([tool(timeout_secs=-1)]),
        describing([tool(capabilities=effect(kind="read - none\nwrite"))]),
        describing([tool(name=f"t{n}") for n in range(10_001)]),
        wire.message(wire.FAULT, b"\x92\xa1x\xa2\xff\xff"),
        wire.message(wire.FAULT, msgspec.msgpack.encode(("nonsense", "x"))),
        b"t\xff\xff\xff\xff",
    ],
)
def test_what_a_plugin_says_breaks_that_plugin_alone(said: bytes) -> None:
    registry, broken, _ = described({"evil": said})
    assert list(broken) == ["evil"]
    assert registry.names("tool") == ("good",)


def test_the_end_of_a_plugins_process_is_told_when_it_is_known() -> None:
    # abi.md 4.58: the end of the host is reported a moment after the end of the call is seen
    _, broken, _ = described({"evil": b""}, ends=True)
    assert broken == {"evil": "it did not describe its tools; its process exited with status 3"}


def test_a_server_that_is_followed_is_not_waited_for_at_each_reload() -> None:
    # docs/mcp.md: "after 1 to 60 s"; abi.md 8.34: its start is not cut
    plugin = hostcalls.Plugin("mcp:hangs", "1", "mcp-server", "{}")
    pool = FakePool({plugin.name: b""})

    async def main() -> tuple[list[float], list[str | None], bool]:
        catalog, seconds, why = Catalog(cast(Pool, pool)), [], []
        for _ in range(3):
            began = trio.current_time()
            await catalog.registry([plugin])
            seconds.append(trio.current_time() - began)
            why.append(catalog.broken.get(plugin.name))
        catalog.note(plugin, "it is busy")
        await catalog.registry([plugin])
        assert catalog.broken == {plugin.name: "it is busy"}
        pool.say(plugin.name, describing([tool()]))
        _, is_new = await catalog.follow(plugin, "")
        assert (await catalog.registry([plugin])).names("tool") == ("evil", "good")
        why.append(catalog.broken.get(plugin.name))
        return seconds, why, is_new

    try:
        seconds, why, is_new = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=1))
    finally:
        for sock in pool.kept:
            sock.close()
    assert seconds == [DESCRIBE_SECONDS, 0, 0]
    assert why == [f"{STARTING}, which may take long the first time"] * 3 + [None]
    assert is_new
    assert not any(pool.stuck)


def test_plugins_that_hang_are_waited_for_together() -> None:
    # commands.md: ctx mount waits 20 s for a step; each plugin may take DESCRIBE_SECONDS
    registry, broken, seconds = described({name: b"" for name in ("hangs", "hangs.too", "and.this")})
    assert len(broken) == 3
    assert registry.names("tool") == ("good",)
    assert seconds == DESCRIBE_SECONDS
