"""The exec service with a real fork server and real hosts, and runners that are played by tests."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import unittest.mock
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object
from cortexfs.core.tree import controls, places
from cortexfs.models.drivers import Drivers
from cortexfs.peers import safe_sockets
from cortexfs.peers.caller import Caller, nobody
from cortexfs.peers.guests import Arrivals
from cortexfs.peers.streams import receive, send
from cortexfs.pool import pool as hosts
from cortexfs.pool.people import People
from cortexfs.pool.pool import Pool
from cortexfs.pool.run_table import Runs
from cortexfs.pool.starter import Starter
from cortexfs.pool.starter_ends import begin
from cortexfs.run.listener import Exec, ExecTerms, ExecTree
from cortexfs.state.run_logs import Logs
from tests.waiting import PATIENCE, awaited

SITE = str(Path(__file__).parents[1] / "fixtures" / "site")
FAULTY = hostcalls.Plugin("faulty", "1.0", "python", "ctx_test_plugin:tools", SITE)
SERVE = hostcalls.Plugin("serve", "1.0", "python", "ctx_serve_plugin:tools", SITE)
LIMITS = hostcalls.HostLimits(memory_bytes=1 << 30, processes=64, open_files=256)
SETTINGS = ExecTerms(
    tool_timeout=30.0, output_bytes=1 << 40, connections=4096, depth=8, serve_sandboxed=nobody
)


class Answer(NamedTuple):
    """All that a runner received."""

    frames: list[Any]
    status: int | None
    err: bytes

    @property
    def code(self) -> str | None:
        return getattr(self.frames[-1], "code", None) if self.frames else None

    @property
    def output(self) -> str:
        return "".join(frame.text for frame in self.frames if isinstance(frame, frames.Delta))

    @property
    def message(self) -> str:
        return "".join(frame.message for frame in self.frames if isinstance(frame, frames.Error))


class Runner:
    """One connection of a runner, greeted and read step by step."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self.splitter = wire.Splitter()
        self.out = self.err = b""
        self.wanted = 0
        self.status: int | None = None
        self.others: list[tuple[int, bytes]] = []

    async def hear(self) -> bool:
        """Take the data that has arrived. Returns False at the end of the stream."""
        try:
            data = await receive(self.stream)
        except ConnectionResetError:
            data = b""
        for kind, payload in self.splitter.feed(data):
            if kind == wire.STDOUT:
                self.out += payload
            elif kind == wire.STDERR:
                self.err += payload
            elif kind == wire.WANT:
                self.wanted += wire.U32.unpack(payload)[0]
            elif kind == wire.EXIT:
                self.status = payload[0]
            else:
                self.others.append((kind, payload))
        return bool(data)

    async def until(self, said: bytes) -> None:
        while said not in self.out:
            assert await self.hear(), self.out

    async def answer(self, stdin: bytes = b"") -> Answer:
        while await self.hear():
            if self.wanted:
                self.wanted = 0
                await send(
                    self.stream, wire.message(wire.STDIN, stdin) * bool(stdin) + wire.message(wire.STDIN)
                )
        return Answer([frames.decode(line) for line in self.out.splitlines()], self.status, self.err)


class World:
    def __init__(self, place: Path, settings: ExecTerms, listener: socket.socket, state: Path | None) -> None:
        self.pool = Pool(LIMITS, Starter(begin(state=state)))
        self.logs = Logs(place / "log", 1 << 20)
        self.runs = Runs(self.logs, 10_000)
        self.objects: dict[int, Object] = {}
        drivers = Drivers(lambda key: None, control)
        chosen, root = drivers.chosen, "/the/root"
        found, admit = self.object_of, lambda *_: None
        ports = (admit, unchanged, not_renewed)
        tree = ExecTree(root, found, no_command, chosen, *ports, {}, lambda token: None, NoScripts())
        self.arrivals = Arrivals()
        self.exec = Exec(tree, self.pool, self.runs, settings, self.arrivals, strict=True)
        self.listener = listener
        self.scope = trio.CancelScope()
        self.stopped = trio.Event()

    def object_of(self, inode: int, uid: int) -> Object | None:
        return self.objects.get(inode)

    def inode(self, name: str, plugin: hostcalls.Plugin = SERVE, **fields: Any) -> int:
        """Add an object and return its inode."""
        return self.add(Object(class_="tool", name=name, description="", plugin=plugin, **fields))

    def add(self, object_: Object) -> int:
        number = (len(self.objects) + 1) << places.BITS
        self.objects[number] = object_
        return number

    @contextlib.contextmanager
    def connected(self) -> Any:
        stream = socket.socket(socket.AF_UNIX)
        with stream:
            stream.connect(self.listener.getsockname())
            stream.setblocking(False)
            yield Runner(stream)

    @contextlib.asynccontextmanager
    async def begun(self, inode: int, *words: str, **greeting: Any) -> AsyncIterator[Runner]:
        with self.connected() as runner:
            await send(runner.stream, hello(inode, *words, **greeting))
            yield runner

    async def call(self, inode: int, *words: str, stdin: bytes = b"", **greeting: Any) -> Answer:
        async with self.begun(inode, *words, **greeting) as runner:
            return await runner.answer(stdin)

    async def cancelled(self, inode: int, *words: str, turns: int = 0) -> Answer:
        """Make a call whose caller leaves after it has yielded the processor `turns` times."""
        async with self.begun(inode, *words) as runner:
            for _ in range(turns):
                os.sched_yield()
            runner.stream.shutdown(socket.SHUT_WR)
            return await runner.answer()

    async def pid(self) -> int:
        return int((await self.call(self.inode("pid"), stdin=b"{}")).output)

    async def idle(self) -> None:
        """Wait until nobody is connected. Connections made before this call were accepted before its own."""
        await self.call(0)
        await awaited(lambda: self.exec._guests._total == 0)


class NoScripts:
    async def begin(self, *asked: object) -> Any:
        raise AssertionError("nobody here has a script")

    def inside(self, object_: Object, caller: Caller) -> Caller:
        return caller


async def unchanged(object_: Object, identity: hostcalls.Identity, under: str) -> hostcalls.Identity:
    raise AssertionError("no other machine calls here")


async def not_renewed(object_: Object, header: bytes) -> None:
    raise AssertionError("nobody here has a script")


async def no_command(words: list[bytes], uid: int) -> tuple[Object, list[bytes]]:
    raise Fault("ENOENT", "there are no commands here")


def control(object_: Object, name: str) -> str:
    """Returns the value of a control that nobody has written to."""
    found = controls.find(object_.class_, name)
    assert found is not None
    return found.render(object_)


def hello(inode: int, *words: str, flags: int = 0, umask: int = 0o22, environ: tuple[str, ...] = ()) -> bytes:
    strings = b"".join(os.fsencode(word) + b"\0" for word in (*words, *environ))
    numbers = (inode, flags, umask, len(words), len(environ), len(strings))
    return wire.HELLO.pack(wire.MAGIC, wire.PROTOCOL, *numbers) + strings


def no_hosts() -> Pool:
    """Returns a pool without hosts, for tests that only name the people whom it is to know."""

    def send(message: object, rights: object) -> None:
        raise Fault("EHOSTDOWN", "there is no fork server")

    return cast(Pool, SimpleNamespace(people=People(send)))


@contextlib.contextmanager
def _known(pool: Pool, place: Path) -> Iterator[None]:
    """Make the pool know this user, so that hosts of this user start without a caller."""
    me = hostcalls.Identity(os.geteuid(), os.getegid(), tuple(os.getgroups()))
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(place / "known"))
        listener.listen()
        client.connect(listener.getsockname())
        (place / "known").unlink()
        with listener.accept()[0] as connection:
            let_go = pool.people.keep(me, connection)
            yield
            let_go()


@contextlib.asynccontextmanager
async def serving(place: Path, state: Path | None = None, **settings: Any) -> AsyncIterator[World]:
    """Serve calls. `state` is the state directory of the called plugins, if they keep anything."""
    patient = unittest.mock.patch.object(
        hosts, "SPAWN_SECONDS", PATIENCE
    )  # the start of the fork server counts as well
    with patient, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "s"))
        listener.listen(512)
        listener.setblocking(False)
        safe_sockets.refuse_rights(listener)
        world = World(place, SETTINGS._replace(**settings), listener, state)
        try:
            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as services:
                    services.start_soon(world.pool.starter.run)
                    services.start_soon(world.pool.run)
                    services.start_soon(world.logs.run)
                    with _known(world.pool, place):
                        async with trio.open_nursery() as runs:
                            serve = functools.partial(world.exec.serve, listener, runs)
                            runs.start_soon(world.arrivals.run)
                            runs.start_soon(_within, world, serve)
                            yield world
                            runs.cancel_scope.cancel()
                    services.cancel_scope.cancel()
        finally:
            world.pool.stop()


async def _within(world: World, work: Any) -> None:
    with world.scope:
        await work()
    world.stopped.set()


def open_files(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def files_closed(most: int, pid: int | str = "self") -> None:
    """Wait until at most `most` files are open. A log of runs is scanned after its last run has ended."""
    await awaited(lambda: open_files(pid), lambda now: now <= most)
