"""host/wasm.py: modules, friendly and hostile, in real hosts; built from text by wasmtime itself."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import wasmtime

from cortexfs.catalog import Catalog
from cortexfs.core import calls
from cortexfs.host import wasmcode
from tests.shell import wat
from tests.shell.calling import Answer, World, serving

OUT = "(local.get $out) (local.get $length)"
ARGS = "(local.get $args) (local.get $alen)"
# Room for answers of host functions, and the word for its length.
BUFFER, WORD = "(i32.const 0x180000)", "(i32.const 0x17fff0)"
HUGE = "(i32.const -1)"
SHAPES = {"own": wat.OWN, "imported": wat.IMPORTED, "imported, not exported": wat.HIDDEN}


def room(size: int) -> str:
    return f"(i32.store {WORD} (i32.const {size}))"


def answered(call: str, size: int = 64) -> str:
    """What a host function has written; its status where it is not 0."""
    return (
        f"(block (result i32) {room(size)} (local.set $t {call}) (if (local.get $t) (then (return (call"
        f" $number (i32.load {WORD}) {OUT})))) (call $say {BUFFER} (i32.load {WORD}) {OUT}))"
    )


def then(*steps: str) -> str:
    return f"(block (result i32) {' '.join(steps)})"


@pytest.fixture
def place() -> Iterator[Path]:
    """Where everybody may read: under root, plugins describe themselves as nobody."""
    made = Path(tempfile.mkdtemp(prefix="cortexfs-wasm-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


class Asked:
    """A plugin in a host."""

    def __init__(self, world: World, plugin: calls.Plugin) -> None:
        self.world = world
        self.plugin = plugin

    async def __call__(self, tool: str, **input: Any) -> Answer:
        inode = self.world.inode(tool, self.plugin)
        return await self.world.call(inode, msgspec.json.encode(input).decode())

    async def said(self, tool: str, **input: Any) -> str:
        answer = await self(tool, **input)
        assert (answer.code, answer.status) == (None, 0), answer.message
        return answer.output


async def broken(place: Path, plugin: calls.Plugin) -> str:
    """Why it does not load."""
    async with serving(place) as world:
        catalog = Catalog(world.pool)
        registry = await catalog.registry([plugin])
        assert [o.name for o in registry if o.plugin == plugin] == []
        return catalog.broken.get(plugin.name, "")


TOOLS = {
    "echo": f"(call $say {ARGS} {OUT})",
    "name": f"(call $say (local.get $name) (i32.add (local.get $nlen) (i32.const 1)) {OUT})",
    "after": f"(call $say (i32.add (local.get $args) (local.get $alen)) (i32.const 1) {OUT})",
    "calls": f"(call $number (global.get $calls) {OUT})",
    "room": f"(call $number (i32.load (local.get $length)) {OUT})",
    "silent": "(i32.store (local.get $length) (i32.const 0)) (i32.const 0)",
    "soft": then(f"(drop (call $say {ARGS} {OUT}))", "(i32.const 3)"),
    "failed": then("(i32.store (local.get $length) (i32.const 0))", "(i32.const 1)"),
    "trap": "unreachable",
    "spin": "(loop $l (br $l)) (i32.const 0)",
    "deep": "(call $deep (i32.const 0))",
    "lie": then("(i32.store (local.get $length) (i32.const 65537))", "(i32.const 0)"),
    "liar": then(f"(i32.store (local.get $length) {HUGE})", "(i32.const 0)"),
    "latin": then(
        "(i32.store8 (local.get $out) (i32.const 255))",
        "(i32.store (local.get $length) (i32.const 1))",
        "(i32.const 0)",
    ),
    "abi": f"(call $number (call $host_abi) {OUT})",
    "grow": f"(call $number (memory.grow (i32.const 100000)) {OUT})",
    "more": f"(call $number (memory.grow (i32.const 256)) {OUT})",
}


# -- what it says of itself


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_module_says_what_its_tools_are(tmp_path: Path, place: Path, shape: str) -> None:
    # seed 004: "Capabilities JSON must include full parameter schemas so LLMs understand tool signatures"
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
        # seed 004: "Tools execute in a dedicated Worker with 120 s timeout"
        assert (tool.description, tool.timeout) == ("Does something", 120)
        schema = msgspec.json.decode(tool.schema)
        assert schema["properties"]["limit"]["type"] == "number"
        assert schema["required"] == ["input"]
        assert [effect.kind for effect in tool.capabilities.effects] == ["network_request"]
        asked = Asked(world, plugin)
        assert (await asked("my_tool")).code == "EINVAL"
        assert await asked.said("my_tool", input="a") == '{"input":"a"}'


async def test_a_plugin_without_the_capability_has_no_tools(tmp_path: Path, place: Path) -> None:
    # seed 004: "tools ... Register tools in the agent tool registry"; denied, it registers none
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS), capabilities=())
    assert await broken(tmp_path, plugin) == ""


_VERSION = '(func (export "plugin_get_abi_version") (result i32) (i32.const 1))'
_SAYS = '(func (export "plugin_get_capabilities") (param i32 i32) (result i32) (i32.const 0))'
_RUNS = '(func (export "plugin_execute_tool") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 0))'
_LOOP = "(func $forever (loop $l (br $l)))"
BROKEN: dict[str, tuple[str | bytes, str]] = {
    # seed 004: "Host rejects incompatible versions on load"
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
        "its plugin_get_abi_version takes or returns other types than the ABI says",
    ),
    "a global": (
        f'(module {wat.OWN} {_SAYS} {_RUNS} (global (export "plugin_get_abi_version") i32 (i32.const 1)))',
        "its plugin_get_abi_version is no function",
    ),
    "wasi": (
        wat.text(
            {}, imports=wat.IMPORTS + '(import "wasi_snapshot_preview1" "proc_exit" (func (param i32)))'
        ),
        "it imports wasi_snapshot_preview1.proc_exit, which this host has not",
    ),
    "an unknown import": (
        wat.text({}, imports=wat.IMPORTS + '(import "env" "system" (func (param i32)))'),
        "it imports env.system",
    ),
    "an import of another type": (
        wat.text({}, imports=wat.IMPORTS + '(import "env" "host_get_time_ms" (func (result i32)))'),
        "its import env.host_get_time_ms takes or returns other types than the ABI says",
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
    # wasmtime compiles this as well, which is not what was looked at
    "text as binary": (wat.text(TOOLS).encode(), "is no WebAssembly module in the binary format, version 1"),
    "a component": (b"\0asm\x0d\0\1\0", "is no WebAssembly module in the binary format, version 1"),
    "nothing": (b"", "is no WebAssembly module in the binary format, version 1"),
    "garbage": (wasmcode.MAGIC + b"garbage", "its module is not valid: "),
    "a trap at the start": (
        wat.text({}, more="(func $s unreachable) (start $s)"),
        "WASM trap: wasm `unreachable`",
    ),
    "a trap in init": (
        wat.text({}, more='(func (export "plugin_init") unreachable)'),
        "WASM trap: wasm `unreach",
    ),
    "another status": (wat.text({}, status=4), "plugin_get_capabilities failed with status 4"),
    "no JSON": (wat.text({}, said=b"{"), "Failed to parse WASM capabilities JSON: "),
    "no UTF-8": (wat.text({}, said=b'{"tools":[],"a":"\xff"}'), "Failed to parse WASM capabilities JSON: "),
    "deep JSON": (wat.text({}, said=b"[" * 60000), "Failed to parse WASM capabilities JSON: "),
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
        "Failed to parse WASM capabilities JSON: ",
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
    assert "timed out" in await broken(tmp_path, plugin)


async def test_a_module_that_was_replaced_after_it_was_looked_at(tmp_path: Path, place: Path) -> None:
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS))
    (place / "m.wasm").write_bytes(wasmtime.wat2wasm(wat.text({})))
    assert "its module was replaced" in await broken(tmp_path, plugin)


# -- calls


@pytest.mark.parametrize("shape", SHAPES)
async def test_calls(tmp_path: Path, place: Path, shape: str) -> None:
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS, memory=SHAPES[shape]))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        # seed 004: "All strings are UTF-8 in linear memory. Return 0 on success, non-zero on error."
        assert await asked.said("echo", text="ü\U0001f600\0") == '{"text":"ü\U0001f600\\u0000"}'
        assert await asked.said("echo") == "{}"
        assert await asked.said("silent") == ""
        assert await asked.said("room") == "65536"
        assert await asked.said("abi") == "1"
        # not part of the lengths, for whoever reads C strings
        assert await asked.said("name") == "name\0"
        assert await asked.said("after") == "\0"
        for tool, expected in {
            "soft": ("EIO", '{"text":"no"}', 1),
            "failed": ("EIO", "WASM tool execution failed", 1),
            "lie": (
                "EPROTO",
                "WASM trap: it says that it wrote 65537 bytes where there is room for 65536",
                70,
            ),
            "liar": ("EPROTO", "WASM trap: it says that it wrote 4294967295 bytes", 70),
            "latin": ("EPROTO", "latin answered text that is not UTF-8", 70),
            "trap": ("EPROTO", "WASM trap: wasm `unreachable` instruction executed", 70),
            "deep": ("EPROTO", "WASM trap: call stack exhausted", 70),
        }.items():
            answer = await asked(tool, text="no")
            assert (answer.code, answer.status) == (expected[0], expected[2]), tool
            assert expected[1] in answer.message
        assert len(world.pool.by_pid) == 1


async def test_an_instance_lasts_until_it_traps(tmp_path: Path, place: Path) -> None:
    # reference 4.3: "after trap/interrupt/out-of-fuel drop the instance and re-instantiate"
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert [await asked.said("calls") for _ in range(3)] == ["1", "2", "3"]
        await asked("failed")
        assert await asked.said("calls") == "5"
        await asked("trap")
        assert await asked.said("calls") == "1"
        await asked("lie")
        assert await asked.said("calls") == "1"
        assert len(world.pool.by_pid) == 1


async def test_an_endless_loop_ends_at_its_deadline(tmp_path: Path, place: Path) -> None:
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS), timeout=1)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        await asked.said("calls")
        pids = set(world.pool.by_pid)
        answer = await asked("spin")
        assert (answer.code, answer.status) == ("ETIMEDOUT", 1)
        assert 'WASM plugin "fixture" timed out' in answer.message
        assert await asked.said("calls") == "1"
        assert set(world.pool.by_pid) == pids


async def test_an_endless_loop_can_be_cancelled(tmp_path: Path, place: Path) -> None:
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        await asked.said("calls")
        pids = set(world.pool.by_pid)
        async with world.begun(world.inode("spin", plugin), "{}") as runner:
            await runner.until(b"start")
            runner.stream.shutdown(socket.SHUT_WR)
            assert (await runner.answer()).code == "ECANCELED"
        assert await asked.said("calls") == "1"
        assert set(world.pool.by_pid) == pids


async def test_memory_has_its_limits(tmp_path: Path, place: Path) -> None:
    # seed 004: "Memory: initial: 256 pages (16 MiB), maximum: 512 pages (32 MiB)"
    source = wat.text(TOOLS, memory='(memory (export "memory") 256)')
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", source))
        assert await asked.said("grow") == "4294967295"
        assert await asked.said("more") == "256"
        assert await asked.said("more") == "4294967295"
        assert await asked.said("echo", text="a") == '{"text":"a"}'


async def test_a_small_memory_is_grown_to_the_layout(tmp_path: Path, place: Path) -> None:
    source = f"""(module (memory (export "memory") 1) {_VERSION}
      (data (i32.const 0) "{wat.capabilities({"a": ""}).decode().replace('"', chr(92) + '"')}")
      (func (export "plugin_get_capabilities") (param i32 i32) (result i32)
        (memory.copy (local.get 0) (i32.const 0) (i32.const {len(wat.capabilities({"a": ""}))}))
        (i32.store (local.get 1) (i32.const {len(wat.capabilities({"a": ""}))})) (i32.const 0))
      {_RUNS})"""
    async with serving(tmp_path) as world:
        answer = await Asked(world, wat.plugin(place / "m.wasm", source))("a")
        assert (answer.code, len(answer.output)) == (None, 65536)  # it has said that all is output


async def test_large_arguments(tmp_path: Path, place: Path) -> None:
    # reference 4.3: "Cap: args+name+64 KiB out must fit 896 KiB ... reject larger (`args too large`)"
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert len(await asked.said("echo", text="x" * 65000)) == 65011
        assert await asked.said("silent", text="x" * 830_000) == ""
        answer = await asked("silent", text="x" * 900_000)
        assert (answer.code, answer.status) == ("EMSGSIZE", 2)
        assert "args too large" in answer.message
        assert await asked.said("calls") == "3"


async def test_calls_take_turns(tmp_path: Path, place: Path) -> None:
    """Who waits for a turn has a deadline of his own, and his going ends no other's call."""
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS), timeout=2)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        await asked.said("calls")
        async with world.begun(world.inode("spin", plugin), "{}") as first:
            await first.until(b"start")
            async with world.begun(world.inode("calls", plugin), "{}") as second:
                await second.until(b"start")
                second.stream.shutdown(socket.SHUT_WR)
                assert (await second.answer()).code == "ECANCELED"
            assert (await first.answer()).code == "ETIMEDOUT"
        assert await asked.said("calls") == "1"
