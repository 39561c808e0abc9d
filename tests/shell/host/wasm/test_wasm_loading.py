"""host/wasm/tools.py: a module's description of itself, refused modules, and compiled modules."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import wasmtime
from msgspec.structs import replace

from cortexfs.host.wasm import code
from cortexfs.plugins.catalog import Catalog
from cortexfs.plugins.description_cache import Descriptions
from tests.shell import esmodules, wat
from tests.shell.calling import serving
from tests.shell.forks import public_directory
from tests.shell.wat import SHAPES, TOOLS, Asked, broken
from tests.waiting import awaited


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as made:
        yield made


# -- the module's description of itself


async def test_a_module_that_does_not_load_leaves_no_state_open(tmp_path: Path, place: Path) -> None:
    state = place / "state.sqlite"
    plugin = wat.plugin(place / "m.wasm", wat.text({}, status=4), state=str(state))
    async with serving(tmp_path) as world:
        for _ in range(2):
            assert "failed with status 4" in (await Asked(world, plugin)("tool")).message
        assert state.exists()
        await awaited(lambda: not esmodules.opened(state, *world.pool.by_pid))


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_module_says_what_its_tools_are(tmp_path: Path, place: Path, shape: str) -> None:
    # abi.md 9.35
    tools = [
        {
            "name": "my_tool",
            "description": "Does something",
            "params": [
                {"name": "input", "type": "string", "description": "Input", "required": True},
                {"name": "limit", "type": "number", "description": "Max results", "required": False},
            ],
        }
    ]
    said = msgspec.json.encode({"abi_version": 1, "tools": tools})
    source = wat.text({"my_tool": TOOLS["echo"]}, said=said, memory=SHAPES[shape])
    plugin = wat.plugin(place / "m.wasm", source, capabilities=("tools", "network:fetch"))
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        registry = await catalog.registry([plugin])
        assert catalog.broken == {}
        tool = registry.get("tool", "my_tool")
        assert tool is not None
        # abi.md 9.31
        assert (tool.description, tool.timeout) == ("Does something", 120)
        schema = msgspec.json.decode(tool.schema)
        assert schema["properties"]["limit"]["type"] == "number"
        assert schema["required"] == ["input"]
        assert [effect.kind for effect in tool.capabilities.effects] == ["network_request"]
        asked = Asked(world, plugin)
        assert (await asked("my_tool")).code == "EINVAL"
        assert await asked.said("my_tool", input="a") == '{"input":"a"}'


async def test_a_plugin_without_the_capability_has_no_tools(tmp_path: Path, place: Path) -> None:
    # abi.md 9.7; without the capability it registers no tools
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS), capabilities=())
    assert await broken(tmp_path, plugin) == ""


async def test_a_capability_of_tools_is_for_some(tmp_path: Path, place: Path) -> None:
    # abi.md 11.47
    plugin = wat.plugin(place / "m.wasm", wat.text({}))
    assert "it has the capability tools, but no tool; plugin_get_cap" in await broken(tmp_path, plugin)


_VERSION = '(func (export "plugin_get_abi_version") (result i32) (i32.const 1))'
_SAYS = '(func (export "plugin_get_capabilities") (param i32 i32) (result i32) (i32.const 0))'
_RUNS = '(func (export "plugin_execute_tool") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 0))'
_LOOP = "(func $forever (loop $l (br $l)))"
BROKEN: dict[str, tuple[str | bytes, str]] = {
    # abi.md 9.32, 9.34
    "another version": (wat.text({}, abi="(i32.const 2)"), "ABI version 2 is not supported (supported: 1)"),
    "no version": (f"(module {wat.OWN} {_SAYS} {_RUNS})", "does not export plugin_get_abi_version"),
    "no capabilities": (f"(module {wat.OWN} {_VERSION} {_RUNS})", "does not export plugin_get_capabilities"),
    "no execute": (f"(module {wat.OWN} {_VERSION} {_SAYS})", "does not export plugin_execute_tool"),
    "no memory": (f"(module {_VERSION} {_SAYS} {_RUNS})", "does not export memory"),
    "hidden memory": (f"(module (memory 256) {_VERSION} {_SAYS} {_RUNS})", "does not export memory"),
    "memory is a function": (
        f'(module (func (export "memory")) {_VERSION} {_SAYS} {_RUNS})',
        "does not export memory",
    ),
    "another type": (
        f"(module {wat.OWN} {_SAYS} {_RUNS}"
        ' (func (export "plugin_get_abi_version") (result i64) (i64.const 1)))',
        "its plugin_get_abi_version is () -> i64, and must be () -> i32",
    ),
    "a global": (
        f'(module {wat.OWN} {_SAYS} {_RUNS} (global (export "plugin_get_abi_version") i32 (i32.const 1)))',
        "its plugin_get_abi_version is not a function",
    ),
    "wasi": (
        wat.text(
            {}, imports=wat.IMPORTS + '(import "wasi_snapshot_preview1" "proc_exit" (func (param i32)))'
        ),
        "it imports wasi_snapshot_preview1.proc_exit, which this host does not have",
    ),
    "an unknown import": (
        wat.text({}, imports=wat.IMPORTS + '(import "env" "system" (func (param i32)))'),
        "it imports env.system",
    ),
    "an import of another type": (
        wat.text({}, imports=wat.IMPORTS + '(import "env" "host_get_time_ms" (func (result i32)))'),
        "its import env.host_get_time_ms is () -> i32, and must be () -> i64",
    ),
    "an init that takes something": (
        wat.text({}, more='(func (export "plugin_init") (param i32 f64) (result i32) (i32.const 0))'),
        "its plugin_init is (i32, f64) -> i32, and must be () -> nothing",
    ),
    "a small memory that cannot grow": (
        f'(module (memory (export "memory") 1 4) {_VERSION} {_SAYS} {_RUNS})',
        "its memory has 1 pages and cannot",
    ),
    "a large memory": (
        f'(module (memory (export "memory") 513) {_VERSION} {_SAYS} {_RUNS})',
        "its module does not link: ",
    ),
    "memory of 4 GiB": (
        f'(module (memory (export "memory") 65536) {_VERSION} {_SAYS} {_RUNS})',
        "its module does not link: ",
    ),
    "an import of a larger memory": (
        f'(module (import "env" "memory" (memory 257)) {_VERSION} {_SAYS} {_RUNS})',
        "its module does not link: ",
    ),
    "memory64": (f'(module (memory (export "memory") i64 256) {_VERSION} {_SAYS} {_RUNS})', "is not valid: "),
    "two memories": (f"(module {wat.OWN} (memory 1) {_VERSION} {_SAYS} {_RUNS})", "is not valid: "),
    "shared memory": (
        f'(module (memory (export "memory") 256 512 shared) {_VERSION} {_SAYS} {_RUNS})',
        "is not valid: ",
    ),
    "a huge table": (
        f"(module {wat.OWN} (table 10000000 funcref) {_VERSION} {_SAYS} {_RUNS})",
        "its module does not link: ",
    ),
    # wasmtime compiles text as well, but the text is not what was checked
    "text as binary": (
        wat.text(TOOLS).encode(),
        "is not a WebAssembly module in the binary format, version 1",
    ),
    "a component": (b"\0asm\x0d\0\1\0", "is not a WebAssembly module in the binary format, version 1"),
    "nothing": (b"", "is not a WebAssembly module in the binary format, version 1"),
    "garbage": (code.MAGIC + b"garbage", "its module is not valid: "),
    "a trap at the start": (
        wat.text({}, more="(func $s unreachable) (start $s)"),
        "WASM trap: wasm `unreachable`",
    ),
    "a trap in init": (
        wat.text({}, more='(func (export "plugin_init") unreachable)'),
        "WASM trap: wasm `unreach",
    ),
    "another status": (wat.text({}, status=4), "plugin_get_capabilities failed with status 4"),
    "no length": (
        wat.text({}).replace("(i32.store (local.get $length)", "(i32.store offset=4 (local.get $length)"),
        "WASM trap: it succeeded, and wrote neither its output nor the output's length",
    ),
    "no JSON": (wat.text({}, said=b"{"), "plugin_get_capabilities gave invalid JSON: "),
    "no UTF-8": (
        wat.text({}, said=b'{"tools":[],"a":"\xff"}'),
        "plugin_get_capabilities gave invalid JSON: ",
    ),
    "deep JSON": (wat.text({}, said=b"[" * 60000), "plugin_get_capabilities gave invalid JSON: "),
    "a type that is none": (
        wat.text(
            {},
            said=wat.capabilities(
                {},
                tools=[
                    {
                        "name": "a",
                        "description": "b",
                        "params": [{"name": "c", "type": "char", "description": "d"}],
                    }
                ],
            ),
        ),
        "it is not described: Invalid enum value 'char'",
    ),
    "capabilities of another version": (
        wat.text({}, said=wat.capabilities({}, abi_version=2)),
        "its capabilities are of ABI version 2, not 1",
    ),
    "capabilities that are too long": (
        f"(module {wat.OWN} {_VERSION} {_RUNS}"
        ' (func (export "plugin_get_capabilities") (param i32 i32) (result i32)'
        " (i32.store (local.get 1) (i32.const 65529)) (i32.const 0)))",
        "it says that it wrote 65529 bytes where there is room for 65528",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_module_that_breaks_the_contract(tmp_path: Path, place: Path, what: str) -> None:
    source, why = BROKEN[what]
    assert why in await broken(tmp_path, wat.plugin(place / "m.wasm", source))


@pytest.mark.parametrize("how", ["(start $forever)", '(export "plugin_init" (func $forever))'])
async def test_a_module_that_never_starts(tmp_path: Path, place: Path, how: str) -> None:
    # issue 6: "infinite start functions"
    plugin = wat.plugin(place / "m.wasm", wat.text({}, more=f"{_LOOP} {how}"), loading=0.3)
    assert "did not end within 0.3 s" in await broken(tmp_path, plugin)


async def test_a_small_memory_is_grown_to_the_layout(tmp_path: Path, place: Path) -> None:
    source = f"""(module (memory (export "memory") 1) {_VERSION}
      (data (i32.const 0) "{wat.capabilities({"a": ""}).decode().replace('"', chr(92) + '"')}")
      (func (export "plugin_get_capabilities") (param i32 i32) (result i32)
        (memory.copy (local.get 0) (i32.const 0) (i32.const {len(wat.capabilities({"a": ""}))}))
        (i32.store (local.get 1) (i32.const {len(wat.capabilities({"a": ""}))})) (i32.const 0))
      {_RUNS})"""
    async with serving(tmp_path) as world:
        answer = await Asked(world, wat.plugin(place / "m.wasm", source))("a")
        assert "wrote neither its output" in answer.message  # by its end, the output was within the memory


async def test_a_module_that_was_replaced_after_it_was_looked_at(tmp_path: Path, place: Path) -> None:
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS))
    (place / "m.wasm").write_bytes(wasmtime.wat2wasm(wat.text({})))
    assert "its module file is new" in await broken(tmp_path, plugin)


# -- compiled modules


async def test_what_was_compiled_is_used_again(tmp_path: Path, place: Path) -> None:
    # issue 6: "compile ... with a cache keyed by hash"
    cache = place / "cache"
    cache.mkdir(mode=0o755)
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS), cache=str(cache))
    async with serving(tmp_path) as world:
        assert await Asked(world, plugin).said("calls") == "1"
    (made,) = (cache / str(os.geteuid())).iterdir()
    assert made.name == hashlib.sha256((place / "m.wasm").read_bytes()).hexdigest()
    assert made.stat().st_mode & 0o777 == 0o600


def test_a_cache_of_somebody_elses_is_not_read(place: Path) -> None:
    engine = code.engine()
    (place / "m.wasm").write_bytes(data := bytes(wasmtime.wat2wasm(wat.text(TOOLS))))
    other = wasmtime.Module(engine, bytes(wasmtime.wat2wasm(wat.text({})))).serialize()
    mine = place / str(os.geteuid())
    mine.mkdir(mode=0o700)
    planted = mine / hashlib.sha256(data).hexdigest()

    def functions() -> int:
        return len(code.compiled(engine, data, str(place)).serialize())

    honest = len(wasmtime.Module(engine, data).serialize())
    planted.write_bytes(other)
    planted.chmod(0o600)
    assert functions() == len(other)  # used while no other user could have written it
    planted.chmod(0o622)
    assert functions() == honest
    planted.chmod(0o600)
    mine.chmod(0o777)
    assert functions() == honest
    mine.chmod(0o700)
    planted.unlink()
    planted.symlink_to(place / "m.wasm")
    assert functions() == honest
    planted.unlink(missing_ok=True)
    planted.write_bytes(b"garbage")
    planted.chmod(0o600)
    assert functions() == honest


async def test_what_it_has_said_is_not_asked_again(tmp_path: Path, place: Path) -> None:
    # "a plugin is asked for its tools once for each version", also by the next daemon
    plugin = replace(wat.plugin(place / "m.wasm", wat.text(wat.TOOLS)), files="f")
    kept = Descriptions(tmp_path)
    async with serving(tmp_path) as world:
        first = await Catalog(world.pool, kept).registry([plugin])
        assert {"echo", "calls"} <= set(first.names("tool"))
        # the module cannot be asked any more
        (place / "m.wasm").write_bytes(b"")
        again = await Catalog(world.pool, kept).registry([plugin])
        assert again.names("tool") == first.names("tool")
        assert again.objects["tool", "echo"].schema == first.objects["tool", "echo"].schema
        # the description is unknown for other settings, and where its file is damaged
        other = replace(wat.plugin(place / "n.wasm", wat.text(wat.TOOLS), config={"a": 1}), files="f")
        (place / "n.wasm").write_bytes(b"")
        for asked in (other, plugin):
            catalog = Catalog(world.pool, kept)
            (tmp_path / "descriptions").mkdir(exist_ok=True)
            if asked is plugin:
                (tmp_path / "descriptions" / plugin.name).write_text('{"asked": 1')
            await catalog.registry([asked])
            assert "module file is new" in catalog.broken[plugin.name]
        # the descriptions of removed plugins are deleted; the built-in tools always exist
        await Catalog(world.pool, kept).registry([])
        assert {file.name for file in (tmp_path / "descriptions").iterdir()} <= {"builtin"}
