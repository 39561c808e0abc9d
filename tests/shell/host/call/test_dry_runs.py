"""Dry runs in real hosts: tools of each kind of plugin, some that opted in and some that did not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
import wasmtime

from cortexfs.core import hostcalls, manifestjson
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.toml import Protocol, decode
from cortexfs.core.registry import Object
from cortexfs.plugins import json_kinds
from cortexfs.plugins.catalog import Catalog
from cortexfs.sdk import Tool, ToolRuntime, tool, tools_of
from tests.shell import declaring, esmodules, wat
from tests.shell.calling import World, serving
from tests.shell.forks import public_directory

PROCESS = 'read line; echo "$line" | sed \'s/.*"dry_run":\\(true\\).*/\\1/; s/^{.*/none/; s/.*/"&"/\''
WARM = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    said = str(asked.get("dry_run", "none")).lower()
    print(json.dumps({"id": asked["id"], "output": said}), flush=True)
"""
MODULE = """
from cortexfs.sdk import ToolEffect, ToolRuntime, tool

@tool(name="t", effects=[ToolEffect("write_file", dry_run="supported")], dry_run_flag=OPTS)
def run(runtime: ToolRuntime) -> str:
    "For tests."
    return "true" if runtime.invocation.dry_run else "none"
"""
DESCRIPTOR = '{"name":"invocation","description":"d","input_schema":{"type":"object"}MORE}'
EFFECT = {"kind": "write_file", "reversibility": "reversible", "confirmation": "never"}


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as made:
        yield made


def program(place: Path, opts: bool, protocol: Protocol = "json") -> hostcalls.Plugin:
    """Returns a plugin with a manifest in which one effect opts in, if `opts`."""
    text = declaring.script(place, PROCESS) if protocol == "json" else declaring.python(place, WARM)
    effects = [
        {**EFFECT, "dry_run": "supported", "dry_run_flag": opts, "an_authors": "own"},
        {**EFFECT, "dry_run": "not_supported"},
    ]
    one = {
        "name": "t",
        "description": "d",
        "command": text,
        "input_schema": {"type": "object"},
        "effects": effects,
    }
    manifest = decode({"name": "p", "version": "1", "description": "", "native": {"tools": [one]}})
    made = targets.programs(manifest, [((text,), str(place))], protocol)
    return hostcalls.Plugin("p", "1", targets.PROCESS, targets.target(made))


def warm(place: Path, opts: bool) -> hostcalls.Plugin:
    return program(place, opts, "jsonl")


def native(place: Path, opts: bool) -> hostcalls.Plugin:
    told = DESCRIPTOR.replace("MORE", ',"dry_run_flag":true' if opts else "")
    flags = (f"-DDESCRIPTOR={msgspec.json.encode(told).decode()}", "-DCOUNT=1")
    return declaring.library(declaring.build(place, declaring.NATIVE / "fixture.c", *flags))


def python(place: Path, opts: bool) -> hostcalls.Plugin:
    (place / "dry_plugin.py").write_text(MODULE.replace("OPTS", str(opts)))
    return hostcalls.Plugin("p", "1", "python", "dry_plugin:run", str(place))


def declared(place: Path, kind: str, entry: str, opts: bool, params: Any = ()) -> hostcalls.Plugin:
    """Returns a plugin whose manifest.json describes the tool; the module's own words do not count."""
    manifest = {
        "name": "p",
        "version": "1.0.0",
        "description": "d",
        "kind": kind,
        "entryPoint": entry,
        "runtime": "wasm" if kind == "wasm" else "deno",
        "capabilities": ["tools"],
        "tools": [{"name": "t", "description": "d", "params": params, **({"dryRun": True} if opts else {})}],
    }
    read = manifestjson.read(msgspec.json.encode(manifest))
    assert read.manifest is not None, read.errors
    return json_kinds.plugin(read.manifest, place)


def esm(place: Path, opts: bool) -> hostcalls.Plugin:
    source = esmodules.source({"t": 'return ctx.dryRun ?? "none"'})
    (place / "mod.ts").write_text(source.replace("definition: {", "definition: {dryRun: true, "))
    return declared(place, "esm", "./mod.ts", opts)


def wasm(place: Path, opts: bool) -> hostcalls.Plugin:
    source = wat.text({"t": f"(call $say {wat.ARGS} {wat.OUT})"})
    (place / "m.wasm").write_bytes(wasmtime.wat2wasm(source))
    return declared(place, "wasm", "m.wasm", opts)


Made = Callable[[Path, bool], hostcalls.Plugin]
# The values that a tool sees for a dry run and for a call.
KINDS: dict[Made, tuple[str, str]] = {
    program: ("true", "none"),
    warm: ("true", "none"),
    native: ('"dry_run":true', '"execution_scope"'),
    python: ("true", "none"),
    esm: ("true", "none"),
    wasm: ('"dry_run":true', "{}"),
}


async def described(world: World, plugin: hostcalls.Plugin) -> Object:
    """Returns the plugin's only tool, as the tree has it."""
    catalog = Catalog(world.pool)
    registry = await catalog.registry([plugin])
    (found,) = [one for one in registry if one.plugin == plugin]
    return found


@pytest.mark.parametrize("made", KINDS)
async def test_who_opts_in_is_told(tmp_path: Path, place: Path, made: Made) -> None:
    # abi.md 4.46, 4.47, 11.12
    plugin = made(place, True)
    dry, real = KINDS[made]
    async with serving(tmp_path) as world:
        one = await described(world, plugin)
        assert one.dry_run_flag
        inode = world.inode(one.name, plugin)
        assert dry in (await world.call(inode, "--dry-run", "{}")).output
        answer = await world.call(inode, "{}")
        assert real in answer.output
        assert dry not in answer.output


@pytest.mark.parametrize("made", KINDS)
async def test_who_does_not_is_not_called(tmp_path: Path, place: Path, made: Made) -> None:
    # abi.md 4.48
    plugin = made(place, False)
    async with serving(tmp_path) as world:
        one = await described(world, plugin)
        assert not one.dry_run_flag
        inode = world.inode(one.name, plugin)
        answer = await world.call(inode, "--dry-run", "{}")
        assert (answer.code, answer.status, answer.output) == ("EINVAL", 2, "")
        assert "has no dry run, even if its effects declare one. Nothing was run" in answer.message
        assert KINDS[made][1] in (await world.call(inode, "{}")).output


async def test_whose_own_the_word_is_has_no_dry_run(tmp_path: Path, place: Path) -> None:
    # abi.md 4.46: "A tool whose own input has a `dry_run` or `dry-run` keeps the word"
    params = [{"name": "dry_run", "type": "boolean", "description": "d"}]
    told = {"tools": [{"name": "t", "description": "d", "params": params}], "abi_version": 1}
    source = wat.text({"t": f"(call $say {wat.ARGS} {wat.OUT})"}, said=msgspec.json.encode(told))
    (place / "m.wasm").write_bytes(wasmtime.wat2wasm(source))
    plugin = declared(place, "wasm", "m.wasm", True, params)
    async with serving(tmp_path) as world:
        one = await described(world, plugin)
        assert not one.dry_run_flag
        answer = await world.call(world.inode("t", plugin), '{"dry_run":false}')
        assert answer.output == '{"dry_run":false}'


def test_the_decorator_opts_in_functions_that_can_know() -> None:
    # abi.md 4.47; a function without a runtime could not know of a dry run
    with pytest.raises(TypeError, match="dry_run_flag needs a parameter of type ToolRuntime"):

        @tool(dry_run_flag=True)
        def blind() -> str:
            """For tests."""
            return "did"

    @tool(dry_run_flag=True)
    def seeing(runtime: ToolRuntime) -> str:
        """For tests."""
        return str(runtime.invocation.dry_run)

    assert tools_of(seeing)[1][0].dry_run_flag


def test_a_class_opts_in_by_an_attribute() -> None:
    class Blind(Tool):
        name, description, dry_run_flag = "blind", "d", True
        input_schema = MappingProxyType({"type": "object"})

        def execute(self, input: dict[str, Any]) -> str:
            return "did"

    class Seeing(Blind):
        def execute_with_runtime(self, input: dict[str, Any], runtime: ToolRuntime) -> str:
            return str(runtime.invocation.dry_run)

    class Odd(Seeing):
        dry_run_flag: Any = "yes"

    with pytest.raises(TypeError, match="no execute_with_runtime to receive it"):
        tools_of(Blind)
    with pytest.raises(TypeError, match="dry_run_flag must be True or False"):
        tools_of(Odd)
    assert tools_of(Seeing)[1][0].dry_run_flag
