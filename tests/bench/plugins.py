"""The cost of plugins: a call of each kind through the mount and in its host, and a thousand plugins.

A host here is a child that the fork server would have forked, without its change of user: `serve` in a
child, with calls as the daemon makes them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cortexfs import config, sdk
from cortexfs.core import hostcalls, jsontext, wire
from cortexfs.host import loaders, serve
from cortexfs.host.call.runtime import Runtime
from cortexfs.plugins import enabled
from cortexfs.plugins.install import install
from cortexfs.plugins.package import directory, package, records
from cortexfs.pool.host import announce
from tests.bench import listings, measure
from tests.mounted import plugins
from tests.mounted.ctx_mount import Ctx, mounted

PAIRS = 300
MANY = 1000
ROUNDS = 2000
INPUT = b'{"text":"x"}'
DONE = wire.message(wire.DONE)
_SCRIPT = "#!/bin/sh\nread line\nprintf '\"hello\"'\n"


class Calls(NamedTuple):
    """Spawn to exit, over /bin/cat of 1 KiB; milliseconds."""

    over: float
    took: float


def through_the_mount(ctx: Ctx) -> dict[str, Calls]:
    """Returns the figures of each kind of plugin, by its name."""
    small = ctx.work / "small"
    small.write_text("x" * 1023 + "\n")
    found = {}
    for kind, made in plugins.KINDS.items():
        ctx.ctx("plugin", "install", str(made(ctx.work, f"bench-{kind}")))
        words = [ctx.tool(f"bench-{kind}"), "{}"]
        ours, _, over = measure.paired(
            functools.partial(measure.spawn, words, ctx.environ),
            lambda: measure.spawn(["/bin/cat", str(small)], ctx.environ),
            PAIRS,
        )
        found[kind] = Calls(over, ours)
    return found


def over_the_script(ctx: Ctx) -> float:
    """ms: a call of an installed program, minus a run of the program with the same request as its input."""
    made = plugins.program(ctx.work, "bench-script", _SCRIPT)
    ctx.ctx("plugin", "install", str(made))
    words, script = [ctx.tool("bench-script"), INPUT.decode()], [str(made / "bin" / "run")]
    took, alone, _ = measure.paired(
        lambda: measure.spawn(words, ctx.environ), lambda: _timed_child(script), PAIRS
    )
    return took - alone


def _timed_child(words: list[str]) -> float:
    began = time.perf_counter()
    _child(words)
    return (time.perf_counter() - began) * 1e3


class InHost(NamedTuple):
    native: float  # µs: parse and check the input, call the library, parse its answer
    native_round: float  # µs: the same as a whole call, from the request to the last message
    process_over: float  # ms: a call, minus the bare child


def in_a_host() -> InHost:
    with tempfile.TemporaryDirectory(prefix="ctx-bench-") as folder:
        native = _plugin(plugins.native(Path(folder), "native"))
        program = plugins.program(Path(folder), "program", _SCRIPT)
        with _hosted(native) as host:
            around = measure.per_call(lambda: host("native"), ROUNDS)
        with _hosted(_plugin(program)) as host:
            over = _over_the_child(host, [str(program / "bin" / "run")])
        return InHost(_inside(native), around, over)


def _plugin(folder: Path) -> hostcalls.Plugin:
    declared = enabled.declared(package.read(folder), folder)
    assert declared
    return declared


def _inside(plugin: hostcalls.Plugin) -> float:
    tool, validator = loaders.loaded(plugin)["native"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        runtime = Runtime(theirs)
        runtime.begin(_call("native"))

        def once() -> None:
            value = jsontext.json_object(INPUT)
            validator.check(value)
            assert not sdk.run(tool, value, runtime).is_error

        return measure.per_call(once, ROUNDS)


def _call(tool: str) -> hostcalls.CallRequest:
    return hostcalls.CallRequest("r", hostcalls.Invocation(tool), None, INPUT, 0o22, {})


Host = Callable[[str], None]


@contextlib.contextmanager
def _hosted(plugin: hostcalls.Plugin) -> Iterator[Host]:
    """Yields a function that calls a tool of the plugin."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        control.close()
        serve.serve(theirs, plugin)
    theirs.close()
    place = os.open("/", os.O_RDONLY | os.O_DIRECTORY)

    def call(tool: str) -> None:
        ours, its = socket.socketpair()
        with ours:
            with its:
                socket.send_fds(control, [b"c"], [its.fileno(), place])
            ours.sendall(announce(_call(tool)))
            said = b""
            while not said.endswith(DONE):
                said += (data := ours.recv(1 << 16))
                assert data, said

    try:
        yield call
    finally:
        os.close(place)
        control.close()
        os.waitpid(pid, 0)


def _over_the_child(host: Host, words: list[str]) -> float:
    rows = []
    for _ in range(PAIRS):
        began = time.perf_counter()
        host("program")
        rows.append((time.perf_counter() - began) * 1e3 - _timed_child(words))
    return statistics.median(rows)


def _child(words: list[str]) -> None:
    """Run the same child with the same input and output, and nothing around it."""
    (read, to), (out, write) = os.pipe(), os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, read, 0), (os.POSIX_SPAWN_DUP2, write, 1)]
    pid = os.posix_spawn(words[0], words, {"PATH": os.defpath}, file_actions=actions)
    os.close(read)
    os.close(write)
    os.write(to, b'{"tool":"program","input":%s}\n' % INPUT)
    os.close(to)
    while os.read(out, 1 << 16):
        pass
    os.close(out)
    os.waitpid(pid, 0)


def _name(number: int) -> str:
    return f"many-{number:04}"


MORE = "many-more"  # as long as the names of the others
_TEMPLATE = _name(0)


def mixed(where: Path) -> plugins.Maker:
    """Plugins of each kind in turn. Each library is a copy of a compiled one, with another name in it."""
    library = (plugins.native(where / "compiled", _TEMPLATE) / "lib/lib.so").read_bytes()
    makers = (plugins.program, plugins.python, functools.partial(_patched, library))
    kinds: Iterator[Callable[[Path, str, str], Path]] = itertools.cycle(makers)

    def made(folder: Path, name: str, says: str = "hello") -> Path:
        return next(kinds)(folder, name, says)

    return made


def _patched(library: bytes, where: Path, name: str, _: str) -> Path:
    manifest = plugins.manifest_text(name, "1.0", plugins.LIBRARY, plugins.TRUSTED)
    folder = plugins.written(where / name, {"manifest.toml": manifest})
    (folder / "lib").mkdir()
    (folder / "lib/lib.so").write_bytes(library.replace(_TEMPLATE.encode(), name.encode()))
    return folder


class Many(NamedTuple):
    first: float  # s: `ctx mount` with plugins that are new to it
    again: float  # s: the same once more
    listed: float  # s: `ctx plugin list`
    applied: float  # s: from the signal that there is one more to its first answer
    over: float  # fs.read with the plugins, over fs.read without


def many(python: Path) -> Many:
    with mounted(python) as few, mounted(python) as ctx:
        ctx.umount()
        made = mixed(ctx.work)
        _install(ctx, made)
        first, again = _mounting(ctx), _mounting(ctx)
        listed = listings.command(ctx, listings.program(ctx), "plugin", "list", rows=MANY).whole
        _put(ctx, made, MORE)
        config.choose(ctx.config, MORE, True)
        pid, began = ctx.pid, time.perf_counter()
        os.kill(pid, signal.SIGHUP)  # as each command does after a change
        while not os.path.exists(ctx.tool(MORE)):
            time.sleep(0.002)  # polling takes CPU that the daemon needs
        assert ctx.call(MORE).status == 0
        applied = time.perf_counter() - began
        small = ctx.work / "small"
        small.write_text("x" * 1023 + "\n")
        mine, its = ([each.tool("fs.read"), str(small)] for each in (ctx, few))
        *_, over = measure.paired(
            lambda: measure.spawn(mine, ctx.environ), lambda: measure.spawn(its, few.environ), PAIRS
        )
        return Many(first, again, listed, applied, over)


def _mounting(ctx: Ctx) -> float:
    ctx.umount()
    began = time.perf_counter()
    ctx.mount()
    took = time.perf_counter() - began
    assert all(ctx.call(_name(MANY - 1 - each)).status == 0 for each in range(3))
    return took


def _install(ctx: Ctx, made: plugins.Maker) -> None:
    for number in range(MANY):
        _put(ctx, made, _name(number))
    chosen = {_name(number): True for number in range(MANY)}
    (ctx.config / config.CHOICES).write_text(json.dumps(chosen))


def _put(ctx: Ctx, made: plugins.Maker, name: str) -> None:
    """Install like `ctx plugin install`, without a process and a sync for each plugin."""
    tree = package.read(made(ctx.work / "sources", name))
    record = records.file(records.PluginRecord("bench", records.files_of(tree)))
    base = ctx.state / directory.FOLDER
    base.mkdir(exist_ok=True)
    install.write(base / name, {**tree.files, records.FILE: record}, durable=False)
