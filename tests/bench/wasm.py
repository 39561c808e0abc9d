"""The cost of a tool in WebAssembly: through the mount, and in its host."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import wasmtime

from cortexfs import sdk
from cortexfs.core import hostcalls, jsontext
from cortexfs.host import loaders
from cortexfs.host.call.runtime import Runtime
from cortexfs.plugins import enabled
from cortexfs.plugins.package import package
from tests.bench import measure
from tests.mounted.ctx_mount import Ctx
from tests.mounted.test_manifestjson_plugins import saying

PAIRS = 300
ROUNDS = 2000
NAME = "bench-wasm"
INPUT = b'{"text":"x"}'
PROGRAM = Path(__file__).parents[2] / "build" / "peers" / "wasmtime_cli" / "wasmtime"
_SAYING = """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\\08\\00\\00\\00\\06\\00\\00\\00hello\\n")
  (func (export "_start")
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))))"""


class Calls(NamedTuple):
    over: float  # spawn to exit, over /bin/cat of 1 KiB
    took: float  # ms
    first: float  # ms: the first call of a user, with a module that is not compiled for his host yet


def through_the_mount(ctx: Ctx) -> Calls:
    return installed(ctx, saying(ctx.work, NAME))


def installed(ctx: Ctx, plugin: Path) -> Calls:
    """Install the plugin, and measure its tool of the same name."""
    ctx.ctx("plugin", "install", str(plugin))
    return called(ctx, plugin.name)


def called(ctx: Ctx, tool: str, input: str = "{}") -> Calls:
    small = ctx.work / "small"
    small.write_text("x" * 1023 + "\n")
    words = [ctx.tool(tool), input]
    first = measure.spawn(words, ctx.environ)
    ours, _, over = measure.paired(
        lambda: measure.spawn(words, ctx.environ),
        lambda: measure.spawn(["/bin/cat", str(small)], ctx.environ),
        PAIRS,
    )
    return Calls(over, ours, first)


def alone() -> float | None:
    """ms: `wasmtime run` of a module with the same output, if the Makefile has installed that program."""
    if not PROGRAM.exists():
        return None
    with tempfile.TemporaryDirectory(prefix="ctx-bench-") as folder:
        program, saying = Path(folder) / "wasmtime", Path(folder) / "module.wasm"
        shutil.copy(PROGRAM, program)
        program.chmod(0o755)  # its package leaves this out
        saying.write_bytes(wasmtime.wat2wasm(_SAYING))
        words = [str(program), "run", str(saying)]
        return sorted(measure.spawn(words, dict(os.environ)) for _ in range(30))[15]


class Inside(NamedTuple):
    over: float  # µs: a call of a module, minus a call of a tool in Python that does nothing
    took: float  # µs: parse and check the input, call the module, take its answer


class _Nothing(sdk.Tool):
    name = NAME
    description = "Does nothing."

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.input_schema = schema

    def execute(self, input: dict[str, Any]) -> sdk.ToolResult:
        return sdk.ToolResult.success("hello")


def in_its_host() -> Inside:
    """Measure both with the same input and schema, without the way to the host."""
    with tempfile.TemporaryDirectory(prefix="ctx-bench-") as folder:
        plugin = enabled.declared(package.read(saying(Path(folder), NAME)), Path(folder) / NAME)
        assert plugin
        tool, validator = loaders.loaded(plugin)[NAME]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            runtime = Runtime(theirs)
            runtime.begin(hostcalls.CallRequest("r", hostcalls.Invocation(NAME), None, INPUT, 0o22, {}))

            def once(which: sdk.Tool) -> None:
                value = jsontext.json_object(INPUT)
                validator.check(value)
                assert not sdk.run(which, value, runtime).is_error

            took = measure.per_call(lambda: once(tool), ROUNDS)
            nothing = _Nothing(tool.input_schema)
            return Inside(took - measure.per_call(lambda: once(nothing), ROUNDS), took)
