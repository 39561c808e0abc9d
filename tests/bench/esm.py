"""The cost of a tool in JavaScript: through the mount, and in its host."""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from pathlib import Path

from cortexfs import sdk
from cortexfs.core import hostcalls, jsontext
from cortexfs.host import loaders
from cortexfs.host.call.runtime import Runtime
from cortexfs.plugins import enabled
from cortexfs.plugins.package import package
from tests.bench import measure
from tests.bench.wasm import INPUT, ROUNDS, Calls, installed
from tests.mounted.ctx_mount import Ctx
from tests.mounted.test_esm import plugin

NAME = "bench-esm"
FIRSTS = 7  # plugins, each measured by its first call
REST = 0.5


def saying(where: Path) -> Path:
    """A plugin with one tool of the plugin's name."""
    return plugin(where, NAME, {NAME: "return 'hello'"})


def through_the_mount(ctx: Ctx) -> Calls:
    found = installed(ctx, saying(ctx.work))
    return found._replace(
        first=statistics.median(_first(ctx, f"{NAME}-{number}") for number in range(FIRSTS))
    )


def _first(ctx: Ctx, name: str) -> float:
    ctx.ctx("plugin", "install", str(plugin(ctx.work, name, {name: "return 'hello'"})))
    time.sleep(REST)  # so that nothing else is starting during the call
    return measure.spawn([ctx.tool(name), "{}"], ctx.environ)


def alone() -> float:
    """ms: start Deno for a module with the same output, without a sandbox or a protocol."""
    from cortexfs.host.esm import permissions

    with tempfile.TemporaryDirectory(prefix="ctx-bench-") as folder:
        script = Path(folder) / "mod.ts"
        script.write_text("console.log('hello')\n")
        words = [permissions.found(), "run", "--no-config", "--no-lock", str(script)]
        return sorted(measure.spawn(words, dict(os.environ)) for _ in range(30))[15]


def in_its_host() -> float:
    """µs: parse and check the input, ask the process, take its answer."""
    with tempfile.TemporaryDirectory(prefix="ctx-bench-") as folder:
        declared = enabled.declared(package.read(saying(Path(folder))), Path(folder) / NAME)
        assert declared
        tool, validator = loaders.loaded(declared)[NAME]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            runtime = Runtime(theirs)
            runtime.begin(hostcalls.CallRequest("r", hostcalls.Invocation(NAME), None, INPUT, 0o22, {}))

            def once() -> None:
                value = jsontext.json_object(INPUT)
                validator.check(value)
                assert not sdk.run(tool, value, runtime).is_error

            return measure.per_call(once, ROUNDS)
