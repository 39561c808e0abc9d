"""Tries a plugin without a mount: a host describes it, and calls each tool with an example of its input.

Rules: the host runs as the testing user (under root, it describes as nobody, like a daemon's), from a copy
that is removed afterwards, in an empty folder. No tool is called before the person has seen the calls. The
input is the schema's example, or else the least that the schema requires.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec
import trio

from cortexfs import config
from cortexfs.cli import ended, progress
from cortexfs.cli.plugin.install.checks import copy_of
from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import clipped
from cortexfs.core.manifest.targets import NOT_STARTED
from cortexfs.core.registry import Object
from cortexfs.plugins import enabled
from cortexfs.plugins.catalog import Catalog
from cortexfs.plugins.install.review import InstallCheck
from cortexfs.plugins.package.package import PackageFiles
from cortexfs.pool.pool import Pool
from cortexfs.pool.starter import Starter
from cortexfs.pool.starter_ends import begin
from cortexfs.pool.tool_call import ToolCalls

CALL_SECONDS = 30.0
_LIMITS = hostcalls.HostLimits(2 << 30, 512, 1024)
# Codes of the host for a tool that does not work. Any other code is a tool's own answer.
_BROKEN = ("EPROTO", "ETIMEDOUT", "EHOSTDOWN", "ENOEXEC")
Ask: TypeAlias = Callable[[list[str]], bool]
Result = TypeVar("Result")
_SHOWN = 200  # characters of an output
_QUESTION = b'{"messages":[{"role":"user","text":"example"}]}'  # of sdk.ModelRequest
_LEAST: Mapping[str, Any] = {
    "string": "example",
    "integer": 1,
    "number": 1,
    "boolean": True,
    "array": [],
    "null": None,
}


def load_and_call(tree: PackageFiles, ask: Ask | None = None) -> tuple[list[InstallCheck], list[Object]]:
    """Load it, and call its tools if `ask` agrees to the lines with the calls. Returns checks and objects."""
    with copy_of(tree) as place:
        os.chmod(place.parent, 0o755)
        try:
            plugin = enabled.declared(tree, place)
        except Fault as fault:
            return [InstallCheck("loading", fault.message, fault.code)], []
        if not plugin:
            return [], []
        checks, tools = ended.run(partial(_with_hosts, partial(_load, plugin)))
        return checks + (_call_checks(tools, ask) if ask and tools else []), tools


async def _with_hosts(work: Callable[[Pool], Awaitable[Result]]) -> Result:
    """Do the work with hosts, which end with it."""
    pool = Pool(_LIMITS, Starter(begin()))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.starter.run)
            nursery.start_soon(pool.run)
            done = await work(pool)
            nursery.cancel_scope.cancel()
        return done
    finally:
        pool.stop()


async def _load(plugin: hostcalls.Plugin, pool: Pool) -> tuple[list[InstallCheck], list[Object]]:
    """Returns the checks of the loading, and the objects of the plugin."""
    catalog = Catalog(pool)
    with progress.shown("loading it"):
        registry = await catalog.registry([plugin], consents={plugin.name: config.REPLACE})
    if why := catalog.broken.get(plugin.name):
        return [InstallCheck("loading", why)], []
    tools = [object_ for object_ in registry if object_.plugin == plugin]
    names = ", ".join(tool.name for tool in tools) or "no tools"
    checks = [InstallCheck(f"it loads, with {names}")]
    if wrong := catalog.wrong.get(plugin.name):
        checks.append(InstallCheck(f"but no caller can call {wrong}", is_warning=True))
    return checks, tools


def _call_checks(tools: list[Object], ask: Ask) -> list[InstallCheck]:
    calls = [(tool, _QUESTION if tool.class_ == "model" else _input(tool)) for tool in tools]
    if not ask([f"  {tool.name} {input_.decode()}" for tool, input_ in calls]):
        return [InstallCheck("its tools were not called")]
    with tempfile.TemporaryDirectory(prefix="ctx-scratch-") as scratch:

        async def call_all(pool: Pool) -> list[InstallCheck]:
            return [await _call(pool, tool, input_, scratch) for tool, input_ in calls]

        return ended.run(partial(_with_hosts, call_all))


def _input(tool: Object) -> bytes:
    return msgspec.json.encode(example(msgspec.json.decode(tool.schema)))


async def _call(pool: Pool, tool: Object, input_: bytes, scratch: str) -> InstallCheck:
    invocation = hostcalls.Invocation(tool.name, None, str(os.getuid()), "test")
    environment = {name: each for name, each in os.environb.items() if wire.is_passed_on(name)}
    request = hostcalls.CallRequest("test-1", invocation, None, input_, 0o022, environment, scratch)
    identity = hostcalls.Identity(os.getuid(), os.getgid(), tuple(sorted(os.getgroups())))
    with _connection() as connection:
        let_go = pool.people.keep(identity, connection)
        outcome = await ToolCalls(pool, CALL_SECONDS).call(tool, identity, request, _ignore)
        let_go()
    name = f"{tool.class_} {tool.name} called with {input_.decode()}"
    # Any other fault is the tool's answer to a made-up input, so the tool works.
    if outcome.fault and (outcome.fault.code in _BROKEN or outcome.fault.message.startswith(NOT_STARTED)):
        return InstallCheck(name, str(outcome.fault))
    text = str(outcome.fault or outcome.output)
    return InstallCheck(f"{name}: {clipped(text.strip(), _SHOWN)}")


@contextlib.contextmanager
def _connection() -> Iterator[socket.socket]:
    """Yields a connection by which the fork server knows us, as it takes no socket pair for a caller's."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with tempfile.TemporaryDirectory(prefix="ctx-plugin-") as folder:
            listener.bind(f"{folder}/socket")
            listener.listen()
            client.connect(listener.getsockname())
        with listener.accept()[0] as connection:
            yield connection


async def _ignore(*frame: frames.Frame) -> None:
    del frame


def example(schema: Any) -> Any:
    """Returns an input that the schema probably allows."""
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
