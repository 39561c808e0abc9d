"""host/wasm/imports.py: the requests of plugins to their host, also for missing things, in real hosts."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cortexfs.core.manifest import targets
from cortexfs.core.manifest.targets import WasmModule
from cortexfs.host.wasm import imports
from tests.shell import wat
from tests.shell.calling import serving
from tests.shell.forks import public_directory
from tests.shell.wat import ARGS, BUFFER, HUGE, OUT, SHAPES, TOOLS, WORD, Asked, answered, broken, then
from tests.waiting import awaited


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as made:
        yield made


async def test_the_log(tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture) -> None:
    # abi.md 9.36
    # Of the originals: "cap state keys/bytes and log rate"
    texts = wat.Texts()
    again = "(br_if $l (i32.lt_u (local.tee $t (i32.add (local.get $t) (i32.const 1))) (i32.const 1000000)))"
    tools = {
        "log": then(f"(call $log {ARGS})", "(i32.const 0)"),
        "bad": then(f"(call $log {texts(b'bad ' + bytes([0xFF, 10, 27]) + b'forged')})", "(i32.const 0)"),
        "flood": f"(loop $l (call $log {texts('flood')}) {again}) (call $number (local.get $t) {OUT})",
        "vast": then("(call $log (i32.const 0) (i32.const 0x2000000))", "(i32.const 0)"),
        "long": then("(call $log (i32.const 0) (i32.const 0x1000000))", f"(call $say {ARGS} {OUT})"),
    }
    plugin = wat.plugin(place / "m.wasm", wat.text(tools, texts), timeout=2)
    with caplog.at_level(logging.INFO, "cortexfs"):
        async with serving(tmp_path) as world:
            asked = Asked(world, plugin)
            await asked("log", text="hello")
            await awaited(lambda: 'fixture: {"text":"hello"}' in caplog.text)
            await asked("bad")
            await awaited(
                lambda: re.search(r"fixture: bad \ufffd\s*forged$", caplog.text, re.MULTILINE) is not None
            )
            # each line costs some µs of Python: either all get through, or the deadline ends the call
            assert (await asked("flood")).code in (None, "ETIMEDOUT")
            assert "outside of the memory" in (await asked("vast")).message
            assert (await asked("long")).code is None


def test_the_log_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    class Instance:
        """An instance whose memory is full of line ends."""

        memory: Any

        def read(self, at: int, length: int, most: int) -> bytes:
            return b"\n" * min(length, most)

    instance: Any = Instance()
    instance.memory = instance
    with contextlib.closing(imports.WasmState("", "p")) as state:
        host = imports.HostFunctions("p", WasmModule("p.wasm"), state)
        host.functions(instance)
        for _ in range(2000):
            host.log(0, 1 << 20)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == imports.MAX_LINES + 1
    assert lines[0] == "p: " + " " * imports.MAX_LINE
    assert lines[-1] == "p: over 1000 lines in one call; the others are lost"


async def test_the_configuration(tmp_path: Path, place: Path) -> None:
    # abi.md 9.37
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
    seen = targets.environment_of("my-tool", environment)
    assert "PATH" not in seen
    config = {"theme": "dark", "limit": 3, "on": True, "empty": "", "none": None, "long": "ü" * 200}
    plugin = wat.plugin(place / "m.wasm", wat.text(tools, texts), "my-tool", config=config, environment=seen)
    async with serving(tmp_path) as world:
        asked = Asked(world, plugin)
        said = [await asked.said(f"k{at}") for at in range(8)]
        # a missing value gives -1 and the length 0
        assert said == ["dark", "3", "true", "0", "0", "mapped", "shared", "own"]
        assert await asked.said("k8") == "ü" * 32
        assert [await asked.said(f"k{at}") for at in (9, 10, 11)] == ["0", "0", "0"]
        # Of the originals: "longer values are truncated silently"
        # abi.md 9.39
        assert await asked.said("cut") == "üüü"
        # Of the originals: "0 means 65536"
        assert await asked.said("whole") == "ü" * 200


async def test_the_state(tmp_path: Path, place: Path) -> None:
    # abi.md 9.38
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
    """This holds also if the call that began it has an unusual umask."""
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
    # abi.md 9.36
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
    # abi.md 9.33
    def alloc(size: int) -> str:
        return f"(call $number (call $alloc (i32.const {size})) {OUT})"

    tools = {
        **{f"a{size}".replace("-", "m"): alloc(size) for size in (1, 8, 0, -1, 1 << 30, 700_000, 0x7FFFFFFF)},
        "free": then("(call $free (i32.const 0x20000))", "(call $free (i32.const 7))", f"(call $free {HUGE})",
                     f"(call $say {ARGS} {OUT})"),
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
        # a plugin that takes the whole heap gets a new instance, and the call is made
        assert int(await asked.said("calls", text="x" * 20_000)) < count


async def test_the_host_leaves_the_scratch_area_and_the_plugins_memory_alone(
    tmp_path: Path, place: Path
) -> None:
    # abi.md 9.33
    # Of the originals: "stack in 0..0xFFFF = the scratch area. So never put buffers in scratch"
    def touched(start: int, end: int) -> str:
        return f"""(local.set $t (i32.const {start}))
            (loop $l (if (i32.ne (i32.load8_u (local.get $t)) (i32.const 0x5a)) (then (return (i32.const 7))))
              (local.set $t (i32.add (local.get $t) (i32.const 1)))
              (br_if $l (i32.lt_u (local.get $t) (i32.const {end}))))"""

    areas = ((0, 0x10000), (0x190000, 0x1F0000), (0x200000, 0x1000000))
    filled = "".join(f"(memory.fill (i32.const {a}) (i32.const 0x5a) (i32.const {b - a}))" for a, b in areas)
    tools = {
        "intact": then(*(touched(a, b) for a, b in areas), f"(call $say {ARGS} {OUT})"),
        "busy": then(
            f"(drop (call $config (i32.const 0x190000) (i32.const 9) {BUFFER} {WORD}))",
            f"(call $set (i32.const 0x190000) (i32.const 9) {ARGS})",
            "(drop (call $alloc (i32.const 600000)))",
            f"(call $say {ARGS} {OUT})",
        ),
    }
    more = f"(func $fill {filled}) (start $fill)"
    async with serving(tmp_path) as world:
        asked = Asked(world, wat.plugin(place / "m.wasm", wat.text(tools, more=more)))
        for size in (0, 1, 60_000):
            assert await asked.said("busy", text="x" * size) == f'{{"text":"{"x" * size}"}}'
            assert (await asked.said("intact", text="y")) == '{"text":"y"}'


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
    # abi.md 9.34
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
            world.pool.replace(lambda plugin: False)  # as when a new version replaces it
            await host.exited.wait()
            assert host.status == 0
            # abi.md 9.34
            await awaited(lambda: "fixture: destroyed" in caplog.text)
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
