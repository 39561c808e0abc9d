"""host/wasm/tools.py: calls of modules, friendly and hostile, in real hosts; built from text by wasmtime
itself."""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import wasmtime

from cortexfs import sdk
from cortexfs.core.manifest import targets
from cortexfs.core.manifestjson import wasm_layout
from cortexfs.host import loaders
from cortexfs.host.call import plugin_state
from cortexfs.host.net import fetch
from cortexfs.host.wasm import code, instance
from cortexfs.host.wasm import imports as wasmhost
from cortexfs.host.wasm import tools as wasm
from cortexfs.net import web
from tests.places import PROJECT
from tests.shell import wat
from tests.shell.calling import serving
from tests.shell.forks import public_directory
from tests.shell.wat import ARGS, BUFFER, OUT, SHAPES, TOOLS, WORD, Asked, answered, then

PAGE = (PROJECT / "docs" / "plugins.md").read_text()
RULES = " ".join((PROJECT / "docs" / "abi.md").read_text().split())
(EXAMPLE,) = re.findall(r"^```wat\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as made:
        yield made


# -- calls


@pytest.mark.parametrize("shape", SHAPES)
async def test_calls(tmp_path: Path, place: Path, shape: str) -> None:
    plugin = wat.plugin(place / "m.wasm", wat.text(TOOLS | {"mute": "(i32.const 0)"}, memory=SHAPES[shape]))
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        # abi.md 9.39
        assert await asked.said("echo", text="ü\U0001f600\0") == '{"text":"ü\U0001f600\\u0000"}'
        assert await asked.said("echo") == "{}"
        assert await asked.said("silent") == ""
        assert await asked.said("room") == "65536"
        assert await asked.said("abi") == "1"
        # the terminating zeros are not part of the lengths; they are for readers of C strings
        assert await asked.said("name") == "name\0"
        assert await asked.said("after") == "\0"
        for tool, expected in {
            "soft": ("EIO", '{"text":"no"}', 1),
            "failed": ("EIO", "WASM tool execution failed with status 1", 1),
            "wordless": ("EIO", "WASM tool execution failed with status -7", 1),
            "lie": (
                "EPROTO",
                "WASM trap: it says that it wrote 65537 bytes where there is room for 65536",
                70,
            ),
            "liar": ("EPROTO", "WASM trap: it says that it wrote 4294967295 bytes", 70),
            "mute": ("EPROTO", "WASM trap: it succeeded, and wrote neither its output nor the output's", 70),
            "latin": ("EPROTO", "latin answered text that is not UTF-8", 70),
            "trap": ("EPROTO", "WASM trap: wasm `unreachable` instruction executed", 70),
            "deep": ("EPROTO", "WASM trap: call stack exhausted", 70),
        }.items():
            answer = await asked(tool, text="no")
            assert (answer.code, answer.status) == (expected[0], expected[2]), tool
            assert expected[1] in answer.message
        assert len(world.pool.by_pid) == 1


async def test_an_instance_lasts_until_it_traps(tmp_path: Path, place: Path) -> None:
    # Of the originals: "after trap/interrupt/out-of-fuel drop the instance and re-instantiate"
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
        assert answer.message == "the tool spin did not end within 1 s"  # abi.md 4.59
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


def sleeps(thread: threading.Thread) -> bool:
    """Returns True if the kernel does not wake the thread for half a second."""
    status = Path(f"/proc/self/task/{thread.native_id}/status")
    before = status.read_text().partition("\nvoluntary_ctxt_switches:")[2]
    select.select([], [], [], 0.5)
    return before == status.read_text().partition("\nvoluntary_ctxt_switches:")[2]


def test_the_clock_sleeps_when_nobody_calls(place: Path) -> None:
    # design.md: an idle host does nothing
    tools = loaders.loaded(wat.plugin(place / "m.wasm", wat.text(TOOLS), timeout=1))
    worker, runtime, said = wasm._workers[-1], sdk.MemoryRuntime(), []
    try:
        for _ in range(2):
            said.append(sdk.run(tools["calls"][0], {}, runtime).output)
            end = time.monotonic() + 60
            while not sleeps(worker):
                assert time.monotonic() < end
            with pytest.raises(sdk.ExecutionFailed, match="the tool spin did not end within 1 s"):
                sdk.run(tools["spin"][0], {}, runtime)
        assert said == ["1", "1"]
    finally:
        wasm.drop_all()
        worker.leave()
        worker.join()


async def test_memory_has_its_limits(tmp_path: Path, place: Path) -> None:
    # abi.md 9.30
    source = wat.text(TOOLS, memory='(memory (export "memory") 256)')
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", source))
        assert await asked.said("grow") == "4294967295"
        assert await asked.said("more") == "256"
        assert await asked.said("more") == "4294967295"
        assert await asked.said("echo", text="a") == '{"text":"a"}'


async def test_large_arguments(tmp_path: Path, place: Path) -> None:
    # Of the originals: "Cap: args+name+64 KiB out must fit 896 KiB ...
    # reject larger (`args too large`)"
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
    """A call that waits for its turn has its own deadline, and its end ends no other call."""
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
            answer = await world.cancelled(world.inode("echo", plugin), "{}", turns=step)
            assert answer.code in (None, "ECANCELED")
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


# -- two hosts, one contract


def reference(data: bytes, name: str, arguments: bytes) -> tuple[int, bytes]:
    """A reference harness: the least code that can call a module of the ABI."""
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
                        "EIO", said.decode() or f"WASM tool execution failed with status {status}"
                    )  # fmt: skip
                else:
                    assert (answer.code, answer.output) == (None, said.decode()), tool


# -- the page


async def test_the_example(tmp_path: Path, place: Path) -> None:
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", EXAMPLE))
        assert await asked.said("echo") == "{}"


def test_the_types_are_those_of_the_code() -> None:
    # abi.md 9.54
    found = {}
    for name, before, takes in re.findall(r"(?:FROM|TO)\((\w+)\) ([^(]*)\b\1\(([^)]*)\);", PAGE):
        letters = ["" if one == "void" else "i" for one in re.split(r",\s*(?://.*\n\s*)?", takes)]
        returns = {"void ": "", "uint64_t ": "I"}.get(before, "i")
        found[name] = ("".join(letters), returns)
    assert found == {**code.EXPORTS, **code.IMPORTS}


def test_the_figures_are_those_of_the_code() -> None:
    # abi.md 9.30, 9.31, 9.36, 9.38, 9.39
    for figure in (
        f"A tool of it has {targets.WASM_SECONDS} s, and a request over HTTP {fetch.SECONDS:g} s",
        f"({instance.OUTPUT} for a tool's",
        f"{instance.CAPABILITIES} for its description",
        f"offers it has {instance.PAGES[0]} pages. Its memory has at most {instance.PAGES[1]}",
        f"from {wasm_layout.HEAP.start:#x} to 0xFFFFF",
        f"share {len(wasm_layout.HEAP) >> 10} KiB",
        f"keeps {wasmhost.MAX_LINE >> 10} KiB of a line, and {wasmhost.MAX_LINES} lines of a call",
        f"key has {plugin_state.MAX_KEY >> 10} KiB at most, a value {plugin_state.MAX_VALUE >> 10} KiB",
        f"{plugin_state.MAX_KEYS:,} keys and {plugin_state.MAX_TOTAL >> 20} MiB",
        f"64 KiB of the body and {web.MAX_REDIRECTS} redirects",
        f"gives {wasmhost.MAX_RANDOM} bytes at a time",
        *code.IMPORTS.keys(),
        *code.EXPORTS,
    ):
        assert figure in RULES, figure
