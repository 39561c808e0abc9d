"""Modules as authors write them: with fields of their own, mistakes, and faults that must be reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson.fetched import FetchRequest
from cortexfs.core.manifestjson.fields import tool_result
from cortexfs.host.esm import fetch
from cortexfs.plugins.catalog import Catalog
from tests.shell import esmodules
from tests.shell.calling import serving
from tests.shell.forks import public_directory
from tests.shell.wat import Asked, broken

ENUM = '{name: "colour", type: "enum", description: "", options: [{label: "Red", value: "red"}, "blue"]}'
FREE = '{name: "size", type: "string", description: "", defaultValue: "m"}'


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as found:
        yield found


async def test_words_of_the_module_and_then_of_the_manifest_are_the_only_ones(
    tmp_path: Path, place: Path
) -> None:
    # abi.md 9.44, 9.46
    text = esmodules.tool("return args.colour + args.size", "paint", f"{ENUM}, {FREE}")
    words = {"paint": {"size": ("s", "m"), "colour": ("green",)}}
    plugin = esmodules.plugin(place / "p", f"export const tools = [{text}]", words=words)
    async with serving(tmp_path) as world:
        registry = await Catalog(world.pool).registry([plugin])
        paint = registry.get("tool", "paint")
        assert paint is not None
        assert msgspec.json.decode(paint.schema)["properties"] == {
            "colour": {"type": "string", "description": "", "enum": ["red", "blue"]},
            "size": {"type": "string", "description": "", "enum": ["s", "m"], "default": "m"},
        }
        asked = Asked(world, plugin)
        assert await asked.said("paint", colour="red", size="s") == "reds"
        assert (await asked("paint", colour="green", size="s")).code == "EINVAL"
        assert (await asked("paint", colour="red", size="l")).code == "EINVAL"


async def test_a_tool_that_is_not_described_costs_that_tool(tmp_path: Path, place: Path) -> None:
    # abi.md 11.35
    sound = esmodules.tool("return 1", "sound")
    odd = sound.replace('"sound"', '"odd"').replace('type: "string"', 'type: "strnig"')
    plugin = esmodules.plugin(place / "p", f"export const tools = [{odd}, {sound}]")
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        registry = await catalog.registry([plugin])
        assert await Asked(world, plugin).said("sound", text="") == "1"
        assert (catalog.broken, {"odd", "sound"} <= {*registry.names("tool")}) == ({}, True)
        assert catalog.wrong["fixture"].startswith("odd: it is not described: Invalid enum value 'strnig'")


async def test_exports_that_are_no_tools_are_told(tmp_path: Path, place: Path) -> None:
    # abi.md 11.35
    odd = esmodules.tool("return 1", "odd").replace('type: "string"', 'type: "strnig"')
    told = {
        f"[{odd}]": "odd: it is not described: Invalid enum value 'strnig'",
        odd: 'ESM plugin "fixture": its export tools is no list; write: export const tools = [...]',
    }
    async with serving(tmp_path) as world:
        for number, (tools, why) in enumerate(told.items()):
            catalog = Catalog(world.pool)
            await catalog.registry([esmodules.plugin(place / str(number), f"export const tools = {tools}")])
            assert catalog.broken["fixture"].startswith(why)


@pytest.mark.parametrize("is_failed", [True, False])
def test_a_failure_need_not_name_its_tool(is_failed: bool) -> None:
    # abi.md 9.45
    said = {"toolName": "", "success": not is_failed, "output": "", "error": "no pen", "durationMs": 1}
    if is_failed:
        assert tool_result(said, "write").error == "no pen"
    else:
        with pytest.raises(Fault, match="returned a result of"):
            tool_result(said, "write")


async def test_a_file_that_is_no_typescript_is_named(tmp_path: Path, place: Path) -> None:
    # abi.md 9.50
    plugin = esmodules.plugin(place / "p", 'import "./lib.ts"; export const tools = [];')
    (place / "p/lib.ts").write_text("const fine = 1;\nexport const x = ;\n")
    assert (await broken(tmp_path, plugin)).startswith(
        'ESM plugin "fixture": lib.ts:2:18: it cannot be read: Expression expected'
    )


def test_a_file_that_is_no_typescript_is_named_while_modules_are_fetched() -> None:
    # abi.md 9.50
    files = {
        "mod.ts": b'import "./lib.ts"; import "https://127.0.0.1:9/x.ts";',
        "lib.ts": b"export const x = ;\n",
    }
    with pytest.raises(Fault) as raised:
        fetch.fetch(FetchRequest(files, "mod.ts", None), (), lambda connections, size: None)
    assert raised.value.code == "EINVAL"
    assert raised.value.message.startswith("lib.ts:1:18: it cannot be read: Expression expected")


async def test_a_right_that_is_missing_is_told_by_its_capability(tmp_path: Path, place: Path) -> None:
    # abi.md 9.50
    bodies = {
        "read": "return await Deno.readTextFile('/etc/passwd')",
        "env": "return Deno.env.get('HOME')",
    }
    plugin = esmodules.plugin(place / "p", esmodules.source(bodies))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        read, env = [(await asked(name, text="")).message for name in bodies]
    assert read.endswith('access to "/etc/passwd"; it takes fs:read in the capabilities of its manifest')
    assert env.endswith('access to "HOME"; it takes a permission that no capability gives')
