"""host/wasm.py: modules, friendly and hostile, in real hosts; built from text by wasmtime itself."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import wasmtime

from cortexfs.catalog import Catalog
from cortexfs.core import calls
from cortexfs.host import wasm, wasmcode, wasmhost, wasminstance, wasmstate, webfetch
from tests.shell import wat
from tests.shell.calling import Answer, World, serving, until

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()
(EXAMPLE,) = re.findall(r"^```wat\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
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


async def test_calls_that_are_cancelled_harm_no_other(tmp_path: Path, place: Path) -> None:
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        await asked.said("calls")
        pids = set(world.pool.by_pid)
        for step in range(60):
            async with world.begun(world.inode("echo", plugin), "{}") as runner:
                for _ in range(step):
                    os.sched_yield()
                runner.stream.shutdown(socket.SHUT_WR)
                assert (await runner.answer()).code in (None, "ECANCELED")
            assert await asked.said("echo", text="a") == '{"text":"a"}'
        assert set(world.pool.by_pid) == pids


async def test_tables_have_their_limits(tmp_path: Path, place: Path) -> None:
    # issue 6: "memory and table limits"
    more = "(table $t 1 funcref)"
    grow = "(call $number (table.grow $t (ref.null func) (i32.const {})) " + OUT + ")"
    tools = {"much": grow.format(10_000_000), "some": grow.format(1000)}
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", wat.text(tools, more=more)))
        assert await asked.said("much") == "4294967295"
        assert await asked.said("some") == "1"


async def test_an_unknown_tool_is_not_executed(tmp_path: Path, place: Path) -> None:
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", wat.text(TOOLS)))
        assert (await asked("missing")).code == "ENOENT"
        assert await asked.said("calls") == "1"


# -- what it may ask of its host


async def test_the_log(tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    # seed 004: "host_log ... Log message to CortexPrism"; reference 8: "cap state keys/bytes and log rate"
    texts = wat.Texts()
    again = "(br_if $l (i32.lt_u (local.tee $t (i32.add (local.get $t) (i32.const 1))) (i32.const 1000000)))"
    tools = {
        "log": then(f"(call $log {ARGS})", "(i32.const 0)"),
        "bad": then(f"(call $log {texts(b'bad ' + bytes([0xFF, 10, 27]) + b'forged')})", "(i32.const 0)"),
        "flood": f"(loop $l (call $log {texts('flood')}) {again}) (call $number (local.get $t) {OUT})",
        "vast": then("(call $log (i32.const 0) (i32.const 0x2000000))", "(i32.const 0)"),
        "long": then("(call $log (i32.const 0) (i32.const 0x1000000))", "(i32.const 0)"),
    }
    plugin = wat.plugin(place / "m.wasm", wat.text(tools, texts), timeout=2)
    with caplog.at_level(logging.INFO, "cortexfs"):
        async with serving(tmp_path) as world:
            asked = Asked(world, plugin)
            await asked("log", text="hello")
            await until(lambda: 'fixture: {"text":"hello"}' in caplog.text)
            await asked("bad")
            await until(
                lambda: re.search(r"fixture: bad \ufffd\s*forged$", caplog.text, re.MULTILINE) is not None
            )
            # each costs some µs of Python: either it gets through, or its deadline ends it
            assert (await asked("flood")).code in (None, "ETIMEDOUT")
            assert "outside of the memory" in (await asked("vast")).message
            assert (await asked("long")).code is None


def test_the_log_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    class Instance:
        """One whose memory is full of line ends."""

        memory: Any

        def read(self, at: int, length: int, most: int) -> bytes:
            return b"\n" * min(length, most)

    instance: Any = Instance()
    instance.memory = instance
    host = wasmhost.Host(wasmhost.Facts("p", {}, {}, (), ()), wasmstate.State("", "p"))
    host.functions(instance)
    for _ in range(2000):
        host.log(0, 1 << 20)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == wasmhost.MAX_LINES + 1
    assert lines[0] == "p: " + " " * wasmhost.MAX_LINE
    assert lines[-1] == "p: over 1000 lines in one call; the others are lost"


async def test_the_configuration(tmp_path: Path, place: Path) -> None:
    # seed 004: "Read CORTEX_PLUGIN_{NAME}_{KEY} or CORTEX_WASM_{KEY} env var"
    texts = wat.Texts()
    keys: tuple[str | bytes, ...] = (
        "theme",
        "limit",
        "on",
        "empty",
        "none",
        "api-key",
        "proxy",
        "both",
        "long",
        b"\xff",
        "",
        "k" * 2000,
    )
    tools = {
        f"k{at}": answered(f"(call $config {texts(key)} {BUFFER} {WORD})") for at, key in enumerate(keys)
    }
    tools["cut"] = answered(f"(call $config {texts('long')} {BUFFER} {WORD})", 7)
    tools["whole"] = answered(f"(call $config {texts('long')} {BUFFER} {WORD})", 0)
    environment = {
        "CORTEX_PLUGIN_MY_TOOL_API_KEY": "mapped",
        "CORTEX_WASM_PROXY": "shared",
        "CORTEX_WASM_BOTH": "shared",
        "CORTEX_PLUGIN_MY-TOOL_BOTH": "own",
        "CORTEX_WASM_THEME": "not this",
        "PATH": "secret",
    }
    seen = wasm.environment_of("my-tool", environment)
    assert "PATH" not in seen
    config = {"theme": "dark", "limit": 3, "on": True, "empty": "", "none": None, "long": "ü" * 200}
    plugin = wat.plugin(place / "m.wasm", wat.text(tools, texts), "my-tool", config=config, environment=seen)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        said = [await asked.said(f"k{at}") for at in range(8)]
        # -1 and the length 0 where there is nothing
        assert said == ["dark", "3", "true", "0", "0", "mapped", "shared", "own"]
        assert await asked.said("k8") == "ü" * 32
        assert [await asked.said(f"k{at}") for at in (9, 10, 11)] == ["0", "0", "0"]
        # reference 4.1: "longer values are truncated silently"; seed 004: "All strings are UTF-8"
        assert await asked.said("cut") == "üüü"
        # reference 4.1: "0 means 65536"
        assert await asked.said("whole") == "ü" * 200


async def test_the_state(tmp_path: Path, place: Path) -> None:
    # seed 004: "Persist state (in-memory + SQLite)"
    texts = wat.Texts()
    key = texts("k")
    tools = {
        "get": answered(f"(call $get {key} {BUFFER} {WORD})", 0),
        "set": then(f"(call $set {key} {ARGS})", "(i32.const 0)"),
        "set_and_trap": then(f"(call $set {key} {ARGS})", "(unreachable)"),
        "set_and_get": then(f"(call $set {key} {ARGS})", answered(f"(call $get {key} {BUFFER} {WORD})", 0)),
        "large": then(f"(call $set {key} (i32.const 0) (i32.const 65537))", "(i32.const 0)"),
        "nameless": then(f"(call $set (i32.const 0) (i32.const 0) {ARGS})", "(i32.const 0)"),
        "vast": then(f"(call $set {key} (i32.const 16) {HUGE})", "(i32.const 0)"),
        "many": f"""(loop $l (i32.store {BUFFER} (local.get $t))
          (call $set {BUFFER} (i32.const 4) (i32.const 0) (i32.const 1))
          (br_if $l (local.tee $t (i32.add (local.get $t) (i32.const 1))))) (i32.const 0)""",
    }
    store = place / "state"
    plugin = wat.plugin(place / "m.wasm", wat.text(tools, texts), state=str(store))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        assert await asked.said("get") == "0"
        assert await asked.said("set_and_get", text="a") == '{"text":"a"}'
        await asked("set_and_trap", text="b")
        assert await asked.said("get") == '{"text":"b"}'
        for tool, why in {
            "large": "a value of its state has 65537 bytes, over the limit of 65536",
            "nameless": "a key of its state has 0 bytes",
            "vast": "4294967295 bytes at 0x10 are outside of the memory",
            "many": "its state is over 10000 keys or 16 MiB",
        }.items():
            answer = await asked(tool)
            assert answer.code == "EPROTO"
            assert why in answer.message, tool
        assert await asked.said("get") == '{"text":"b"}'
    (tmp_path / "s").unlink()
    async with serving(tmp_path) as world:  # another daemon, other hosts
        assert await Asked(world, plugin).said("get") == '{"text":"b"}'


async def test_what_it_keeps_is_for_its_user_alone(tmp_path: Path, place: Path) -> None:
    """Also where the call that began it has a umask of its own."""
    texts = wat.Texts()
    tools = {"set": then(f"(call $set {texts('k')} {ARGS})", TOOLS["silent"])}
    (place / "cache").mkdir()
    plugin = wat.plugin(
        place / "m.wasm", wat.text(tools, texts), state=str(place / "state"), cache=str(place / "cache")
    )
    async with serving(tmp_path) as world:
        for umask in (0o777, 0):
            assert (await world.call(world.inode("set", plugin), "{}", umask=umask)).code is None
    kept = [place / "state", *(place / "cache" / str(os.geteuid())).iterdir()]
    assert [each.stat().st_mode & 0o777 for each in kept] == [0o600, 0o600]


async def test_the_state_of_two_plugins(tmp_path: Path, place: Path) -> None:
    texts = wat.Texts()
    tools = {
        "get": answered(f"(call $get {texts('k')} {BUFFER} {WORD})"),
        "set": then(f"(call $set {texts('k')} {ARGS})", TOOLS["silent"]),
    }
    source = wat.text(tools, texts)
    one, two = (
        wat.plugin(place / f"{n}.wasm", source, n, state=str(place / "state")) for n in ("one", "two")
    )
    async with serving(tmp_path) as world:
        assert await Asked(world, one).said("set", text="a") == ""
        assert await Asked(world, one).said("get") == '{"text":"a"}'
        assert await Asked(world, two).said("get") == "0"


async def test_a_state_that_cannot_be_kept(tmp_path: Path, place: Path) -> None:
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS), state=str(place / "missing" / "state"))
    assert "its state cannot be read or written" in await broken(tmp_path, plugin)


async def test_time_and_chance(tmp_path: Path, place: Path) -> None:
    # seed 004: "host_get_time_ms () -> i64"; "Cryptographically random bytes"
    tools = {
        "time": f"(call $number (i32.wrap_i64 (i64.div_u (call $time) (i64.const 1000))) {OUT})",
        "random": then(
            "(call $random (local.get $out) (i32.const 16))",
            "(i64.store (local.get $out) (i64.and (i64.load (local.get $out))"
            " (i64.const 0x3f3f3f3f3f3f3f3f)))",
            "(i32.store (local.get $length) (i32.const 8))",
            "(i32.const 0)",
        ),
        "much": then("(call $random (i32.const 0x20000) (i32.const 65537))", "(i32.const 0)"),
        "vast": then(f"(call $random (i32.const 8) {HUGE})", "(i32.const 0)"),
        "outside": then("(call $random (i32.const 0xfffffff) (i32.const 1))", "(i32.const 0)"),
    }
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", wat.text(tools)))
        before = int(time.time())
        assert before <= int(await asked.said("time")) <= int(time.time())
        assert await asked.said("random") != await asked.said("random")
        assert "host_random gives 65536 bytes at a time, not 65537" in (await asked("much")).message
        for tool in ("vast", "outside"):
            assert "outside of the memory" in (await asked(tool)).message


async def test_the_heap(tmp_path: Path, place: Path) -> None:
    # seed 004: "[0x020000 - 0x0FFFFF] Host-managed heap (896 KB) — host_alloc/host_free"
    def alloc(size: int) -> str:
        return f"(call $number (call $alloc (i32.const {size})) {OUT})"

    tools = {
        **{f"a{size}".replace("-", "m"): alloc(size) for size in (1, 8, 0, -1, 1 << 30, 700_000, 0x7FFFFFFF)},
        "free": then("(call $free (i32.const 0x20000))", "(call $free (i32.const 7))", f"(call $free {HUGE})",
                     "(i32.const 0)"),
        "calls": TOOLS["calls"],
        "take": f"(loop $l (br_if $l (call $alloc (i32.const 8192)))) (call $number (i32.const 1) {OUT})",
        "steal": then("(call $free (i32.sub (local.get $name) (i32.const 8)))",
                      "(drop (call $alloc (i32.const 64)))", f"(call $say {ARGS} {OUT})"),
    }  # fmt: skip
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", wat.text(tools)))
        places = {name: int(await asked.said(name)) for name in ("a1", "a8", "a0", "am1", "a1073741824")}
        assert places["a0"] == places["am1"] == places["a1073741824"] == 0
        assert await asked.said("a2147483647") == "0"
        for name in ("a1", "a8"):
            assert places[name] % 8 == 0
            assert 0x20000 <= places[name] < 0x100000
        assert places["a1"] != places["a8"]
        await asked.said("free")
        await asked.said("steal", text="a")
        count = int(await asked.said("calls"))
        await asked.said("take")
        # what keeps the heap to itself gets a new instance, and the call is made
        assert int(await asked.said("calls", text="x" * 20_000)) < count


ABUSES = {
    "a key of 4 GiB": f"(drop (call $config (i32.const 0) {HUGE} {BUFFER} {WORD}))",
    "a key outside": f"(drop (call $config {HUGE} (i32.const 1) {BUFFER} {WORD}))",
    "a word outside": f"(drop (call $config (i32.const 0) (i32.const 1) {BUFFER} {HUGE}))",
    "half a word": f"(drop (call $config (i32.const 0) (i32.const 1) {BUFFER} (i32.const 0x1fffffd)))",
    "a log outside": "(call $log (i32.const 0x1fffffff) (i32.const 1))",
    "a wrapped log": f"(call $log {HUGE} {HUGE})",
    "an output outside": f"(drop (call $get (i32.const 0) (i32.const 1) {BUFFER} {HUGE}))",
    "a request outside": f"(drop (call $http {HUGE} {'(i32.const 9)' * 7} {BUFFER} {BUFFER} {WORD}))",
    "a status outside": f"(drop (call $http {'(i32.const 0)' * 8} {HUGE} {BUFFER} {WORD}))",
    "a body outside": f"(drop (call $http {'(i32.const 0)' * 8} {BUFFER} {HUGE} {WORD}))",
}


async def test_host_functions_are_given_what_is_not_there(tmp_path: Path, place: Path) -> None:
    # issue 6: "alloc of 4 GiB lengths, unaligned pointers, lying lengths"
    tools = {
        "unaligned": then(
            "(i32.store (i32.const 0x180001) (i32.const 64))",
            "(drop (call $config (i32.const 0x100000) (i32.const 1) (i32.const 0x180003)"
            " (i32.const 0x180001)))",
            f"(call $number (i32.load (i32.const 0x180001)) {OUT})",
        ),
        **{f"t{at}": then(step, "(i32.const 0)") for at, step in enumerate(ABUSES.values())},
    }
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", wat.text(tools), config={"{": "value"}))
        assert await asked.said("unaligned") == "5"
        for at, what in enumerate(ABUSES):
            answer = await asked(f"t{at}")
            assert answer.code == "EPROTO", what
            assert "outside of the memory" in answer.message, what
        assert len(world.pool.by_pid) == 1


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_start_function_may_ask_too(
    tmp_path: Path, place: Path, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    # seed 004: "plugin_init ... Called once on load"
    texts = wat.Texts()
    more = f"""(func $s (call $log {texts("started")})) (start $s)
        (func (export "plugin_init") (call $log {texts("initialized")}))
        (func (export "plugin_destroy") (call $log {texts("destroyed")}))"""
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS, texts, more=more, memory=SHAPES[shape]))
    with caplog.at_level(logging.INFO, "cortexfs"):
        async with serving(tmp_path) as world:
            asked = Asked(world, plugin)
            await asked.said("calls")
            await asked.said("calls")
            (host,) = world.pool.by_pid.values()
            world.pool.replace(lambda plugin: False)  # as a new version makes it leave
            await host.exited.wait()
            assert host.status == 0
            # seed 004: "plugin_destroy ... Called on unload - cleanup"
            await until(lambda: "fixture: destroyed" in caplog.text)
    for said in ("started", "initialized", "destroyed"):
        assert caplog.text.count(f"fixture: {said}") == 1
    assert caplog.text.index("started") < caplog.text.index("initialized")


async def test_a_module_that_hangs_when_it_is_dropped(tmp_path: Path, place: Path) -> None:
    more = '(func (export "plugin_destroy") (loop $l (br $l)))'
    async with serving(tmp_path) as world:
        await Asked(world, wat.plugin(place / "m.wasm", wat.text(TOOLS, more=more))).said("calls")
        (host,) = world.pool.by_pid.values()
        world.pool.replace(lambda plugin: False)
        await host.exited.wait()
        assert host.status == 0


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
    engine = wasmcode.engine()
    (place / "m.wasm").write_bytes(data := bytes(wasmtime.wat2wasm(wat.text(TOOLS))))
    other = wasmtime.Module(engine, bytes(wasmtime.wat2wasm(wat.text({})))).serialize()
    mine = place / str(os.geteuid())
    mine.mkdir(mode=0o700)
    planted = mine / hashlib.sha256(data).hexdigest()

    def functions() -> int:
        return len(wasmcode.compiled(engine, data, str(place)).serialize())

    honest = len(wasmtime.Module(engine, data).serialize())
    planted.write_bytes(other)
    planted.chmod(0o600)
    assert functions() == len(other)  # as long as nobody else could have written it
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


# -- two hosts, one contract


def reference(data: bytes, name: str, arguments: bytes) -> tuple[int, bytes]:
    """The contract with nothing around it: the least that can call a module of the ABI."""
    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    module = wasmtime.Module(engine, data)
    held: dict[str, wasmtime.Memory] = {}
    kept: dict[bytes, bytes] = {}
    top = [0x90000]

    def read(at: int, length: int) -> bytes:
        return bytes(held["memory"].read(store, at, at + length))

    def give(value: bytes | None, out: int, length: int) -> int:
        most = int.from_bytes(read(length, 4), "little") or 65536
        value, status = (value or b"")[:most], -(value is None)
        held["memory"].write(store, value, out)
        held["memory"].write(store, len(value).to_bytes(4, "little"), length)
        return status

    def alloc(size: int) -> int:
        top[0] += size + 7 & ~7
        return top[0] - (size + 7 & ~7)

    def put(k: int, kl: int, v: int, vl: int) -> None:
        kept[read(k, kl)] = read(v, vl)

    functions: dict[str, Any] = {
        "host_alloc": alloc,
        "host_free": lambda at: None,
        "host_log": lambda at, length: None,
        "host_get_config": lambda k, kl, o, ol: give(b"dark" if read(k, kl) == b"theme" else None, o, ol),
        "host_set_state": put,
        "host_get_state": lambda k, kl, o, ol: give(kept.get(read(k, kl)), o, ol),
        "host_http_request": lambda *_: -1,
        "host_get_abi_version": lambda: 1,
        "host_get_time_ms": lambda: 0,
        "host_random": lambda at, length: None,
    }
    imports: list[wasmtime.Func | wasmtime.Memory] = []
    for one in module.imports:
        if isinstance(one.type, wasmtime.MemoryType):
            held["memory"] = wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(256, 512)))
            imports.append(held["memory"])
        else:
            assert isinstance(one.type, wasmtime.FuncType)
            imports.append(wasmtime.Func(store, one.type, functions[one.name or ""]))
    exports = wasmtime.Instance(store, module, imports).exports(store)
    memory = exports.get("memory") or held["memory"]
    assert isinstance(memory, wasmtime.Memory)
    held["memory"] = memory
    memory.write(store, name.encode() + b"\0", 0x20000)
    memory.write(store, arguments + b"\0", 0x21000)
    memory.write(store, (65536).to_bytes(4, "little"), 0x60000)
    execute = exports["plugin_execute_tool"]
    assert isinstance(execute, wasmtime.Func)
    status = execute(store, 0x20000, len(name), 0x21000, len(arguments), 0x70000, 0x60000)
    return status, read(0x70000, int.from_bytes(read(0x60000, 4), "little"))


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_same_as_with_the_least_host(tmp_path: Path, place: Path, shape: str) -> None:
    # issue 6: "a differential test: the same inputs through our host and through a 60-line reference harness"
    texts = wat.Texts()
    theme, other = texts("theme"), texts("other")
    tools = {
        name: TOOLS[name] for name in ("echo", "name", "after", "silent", "soft", "failed", "room", "abi")
    }
    tools |= {
        "known": answered(f"(call $config {theme} {BUFFER} {WORD})"),
        "cut": answered(f"(call $config {theme} {BUFFER} {WORD})", 2),
        "unknown": answered(f"(call $config {other} {BUFFER} {WORD})"),
        "state": then(f"(call $set {other} {ARGS})", answered(f"(call $get {other} {BUFFER} {WORD})", 0)),
        "forgotten": answered(f"(call $get {theme} {BUFFER} {WORD})"),
        "upper": """(loop $l (if (i32.lt_u (local.get $t) (local.get $alen)) (then
            (i32.store8 (i32.add (local.get $out) (local.get $t)) (i32.and (i32.const 0x5f)
              (i32.load8_u (i32.add (local.get $args) (local.get $t)))))
            (local.set $t (i32.add (local.get $t) (i32.const 1))) (br $l))))
            (i32.store (local.get $length) (local.get $t)) (i32.const 0)""",
        "block": then(
            "(local.set $t (call $alloc (local.get $alen)))",
            "(memory.copy (local.get $t) (local.get $args) (local.get $alen))",
            f"(drop (call $say (local.get $t) (local.get $alen) {OUT}))",
            "(call $free (local.get $t))",
            "(i32.const 0)",
        ),
    }
    plugin = wat.plugin(
        place / "m.wasm", wat.text(tools, texts, memory=SHAPES[shape]), config={"theme": "dark"}
    )
    data = (place / "m.wasm").read_bytes()
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        for tool in tools:
            for text in ("", "a", "aa", "aaa", "zebra" * 1000, '\\n\t"', "plain"):
                status, said = reference(data, tool, msgspec.json.encode({"text": text}))
                answer = await asked(tool, text=text)
                if status:
                    assert (answer.code, answer.message) == (
                        "EIO", said.decode() or "WASM tool execution failed"
                    )  # fmt: skip
                else:
                    assert (answer.code, answer.output) == (None, said.decode()), tool


# -- the page


async def test_the_example(tmp_path: Path, place: Path) -> None:
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", EXAMPLE))
        assert await asked.said("echo") == "{}"


def test_the_figures_are_those_of_the_code() -> None:
    for figure in (
        f"{wasm.TOOL_SECONDS} s, all in all",
        f"({wasminstance.OUTPUT} for a tool's",
        f"{wasminstance.CAPABILITIES} for its description",
        f"of {wasminstance.PAGES[0] >> 4} MiB, and may grow to {wasminstance.PAGES[1] >> 4}",
        f"from {wasminstance.HEAP.start:#x} to 0xFFFFF",
        f"share {len(wasminstance.HEAP) >> 10} KiB",
        f"{wasmhost.MAX_LINE >> 10} KiB of it, {wasmhost.MAX_LINES} for a call",
        f"keys of {wasmstate.MAX_KEY >> 10} KiB, values of {wasmstate.MAX_VALUE >> 10} KiB",
        f"{wasmstate.MAX_KEYS:,} keys, {wasmstate.MAX_TOTAL >> 20} MiB",
        f"{webfetch.SECONDS:g} s, 64 KiB of the body, {webfetch.MAX_REDIRECTS} redirects",
        f"random bytes: {wasmhost.MAX_RANDOM} at a time",
        *wasmcode.IMPORTS.keys() - {"host_get_abi_version"},
        *wasmcode.EXPORTS,
    ):
        assert figure in PAGE, figure
