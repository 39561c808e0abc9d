"""Trying a plugin without a mount: a host describes it, and calls each tool with an example of its input.

Rules: it runs as whoever tests it (and is described as nobody under root, as by a daemon), from a copy that
is removed afterwards. An example is what the schema gives as one, else the least that the schema asks for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import clipped
from cortexfs.core.registry import Object
from cortexfs.plugins import enabled
from cortexfs.plugins.catalog import Catalog
from cortexfs.plugins.install import install
from cortexfs.plugins.install.review import InstallCheck
from cortexfs.plugins.package.package import PackageFiles
from cortexfs.pool.pool import Pool
from cortexfs.pool.starter import Starter
from cortexfs.pool.starter_ends import begin
from cortexfs.pool.tool_call import ToolCalls

CALL_SECONDS = 30.0
_LIMITS = hostcalls.HostLimits(2 << 30, 512, 1024)
_SHOWN = 200  # characters of an output
_LEAST: Mapping[str, Any] = {
    "string": "example",
    "integer": 1,
    "number": 1,
    "boolean": True,
    "array": [],
    "null": None,
}


def tried(tree: PackageFiles, *, run: bool) -> list[InstallCheck]:
    with tempfile.TemporaryDirectory(prefix="ctx-plugin-") as folder:
        os.chmod(folder, 0o755)
        place = Path(folder) / tree.manifest.name
        install.write(place, tree.files, durable=False)
        try:
            plugin = enabled.declared(tree, place)
            return trio.run(partial(_tried, run=run), plugin) if plugin else []
        except Fault as fault:
            return [InstallCheck("it loads", fault.message)]


async def _tried(plugin: hostcalls.Plugin, *, run: bool) -> list[InstallCheck]:
    pool = Pool(_LIMITS, Starter(begin()))
    catalog = Catalog(pool)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.starter.run)
            nursery.start_soon(pool.run)
            registry = await catalog.registry([plugin], consents=[plugin.name])
            if why := catalog.broken.get(plugin.name):
                checks = [InstallCheck("it loads", why)]
            else:
                tools = [one for one in registry if one.plugin == plugin]
                named = ", ".join(tool.name for tool in tools) or "no tools"
                checks = [InstallCheck(f"it loads, with {named}")]
                checks += [await _called(pool, tool) for tool in (tools if run else ())]
            nursery.cancel_scope.cancel()
        return checks
    finally:
        pool.stop()


async def _called(pool: Pool, tool: Object) -> InstallCheck:
    value = example(msgspec.json.decode(tool.schema))
    given = msgspec.json.encode(value)
    invocation = hostcalls.Invocation(tool.name, None, str(os.getuid()), "test")
    environment = {name: each for name, each in os.environb.items() if wire.is_passed_on(name)}
    asked = hostcalls.CallRequest("test-1", invocation, None, given, 0o022, environment, os.getcwd())
    identity = hostcalls.Identity(os.getuid(), os.getgid(), tuple(sorted(os.getgroups())))
    with _connection() as connection:
        let_go = pool.people.keep(identity, connection)
        outcome = await ToolCalls(pool, CALL_SECONDS).call(tool, identity, asked, _ignore)
        let_go()
    name = f"tool {tool.name} called with {given.decode()}"
    # EIO is how a tool says that it could not do what was asked: it works.
    if outcome.fault and outcome.fault.code != "EIO":
        return InstallCheck(name, str(outcome.fault))
    said = outcome.fault.message if outcome.fault else outcome.output
    return InstallCheck(f"{name}: {clipped(said.strip(), _SHOWN)}")


@contextlib.contextmanager
def _connection() -> Iterator[socket.socket]:
    """One of our own, by which the fork server knows us; it takes no pair for the connection of a caller."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with tempfile.TemporaryDirectory(prefix="ctx-plugin-") as folder:
            listener.bind(f"{folder}/socket")
            listener.listen()
            client.connect(listener.getsockname())
        with listener.accept()[0] as connection:
            yield connection


async def _ignore(frame: frames.Frame) -> None:
    del frame


def example(schema: Any) -> Any:
    """An input that the schema probably allows."""
    if not isinstance(schema, dict):
        return {}
    for word in ("examples", "enum"):
        if isinstance(schema.get(word), list) and schema[word]:
            return schema[word][0]
    for word in ("default", "const"):
        if word in schema:
            return schema[word]
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind != "object":
        return _LEAST.get(kind, "example")
    properties = schema.get("properties", {})
    return {name: example(properties.get(name, {"type": "string"})) for name in schema.get("required", [])}
