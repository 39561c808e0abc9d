"""What a tool in WebAssembly costs: through the mount, and in its host."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cortexfs import offers, sdk
from cortexfs.core import arguments, calls
from cortexfs.host import loading
from cortexfs.host.runtime import Runtime
from cortexfs.plugins import package
from tests.bench import measure
from tests.mounted.ctx_mount import Ctx
from tests.mounted.test_manifestjson_plugins import saying

PAIRS = 300
ROUNDS = 2000
NAME = "bench-wasm"
INPUT = b'{"text":"x"}'


class Calls(NamedTuple):
    over: float  # spawn to exit, over /bin/cat of 1 KiB
    took: float  # ms
    first: float  # ms: a user's first one, with a host that nobody has compiled for


def through_the_mount(ctx: Ctx) -> Calls:
    return installed(ctx, saying(ctx.work, NAME))


def installed(ctx: Ctx, plugin: Path) -> Calls:
    """What the tool costs that is called as its plugin."""
    small = ctx.work / "small"
    small.write_text("x" * 1023 + "\n")
    ctx.ctx("plugin", "install", str(plugin))
    words = [ctx.tool(plugin.name), "{}"]
    first = measure.spawn(words, ctx.environ)
    ours, _, over = measure.paired(
        lambda: measure.spawn(words, ctx.environ),
        lambda: measure.spawn(["/bin/cat", str(small)], ctx.environ),
        PAIRS,
    )
    return Calls(over, ours, first)


class Inside(NamedTuple):
    over: float  # µs: a call of a module, over that of a tool in Python that does nothing
    took: float  # µs: the input parsed and checked, the module called, its answer taken


class _Nothing(sdk.Tool):
    name = NAME
    description = "Does nothing."

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.input_schema = schema

    def execute(self, input: dict[str, Any]) -> sdk.ToolResult:
        return sdk.ToolResult.success("hello")


def in_its_host() -> Inside:
    """Both with the same input and schema, without the way to the host."""
    with tempfile.TemporaryDirectory(prefix="ctx-bench-") as folder:
        plugin = offers.declared(package.read(saying(Path(folder), NAME)), Path(folder) / NAME)
        assert plugin
        tool, validator = loading.loaded(plugin)[NAME]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            runtime = Runtime(theirs)
            runtime.begin(calls.Call("r", calls.Invocation(NAME), None, INPUT, 0o22, {}))

            def once(which: sdk.Tool) -> None:
                value = arguments.json_object(INPUT)
                validator.check(value)
                assert not sdk.run(which, value, runtime).is_error

            took = measure.per_call(lambda: once(tool), ROUNDS)
            nothing = _Nothing(tool.input_schema)
            return Inside(took - measure.per_call(lambda: once(nothing), ROUNDS), took)
