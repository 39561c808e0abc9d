"""Engines, from the daemon's side: one child process per GGUF file, which lives while it is used.

Main path: `Engines.serving` provides the address and the key of a loaded server, and starts the process if it
does not run. `_Process.run` is that process's whole life. `Engines.run` is the nursery of all of them.

Rules: the child is not trusted: its output is bounded, and it is killed when it does not load, does not
answer or is not needed. When a child ends, its unfinished answers fail, and the fault names the cause. Only
the next use starts an engine again. The key goes down a socket, and nowhere else.
This file must never know the questions to a model.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeAlias

import trio

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.models import engine_protocol
from cortexfs.core.safe_text import one_line
from cortexfs.models.exchange.clients import get
from cortexfs.models.exchange.endpoint import Endpoint, Lost
from cortexfs.models.local.weights import Weights
from cortexfs.pool.starter import Child

# While a child dies, its connections fail with these codes. The fault of its end, soon after, says more.
DYING = ("EREMOTEIO", "EHOSTDOWN", "EPROTO")
DYING_SECONDS = 0.5
REAP_SECONDS = 5.0  # a process that was killed may wait for a disk
KEPT_LINES = 5  # of the engine's output, for the sentence about its end
MAX_SAID = 4 << 10

log = logging.getLogger("cortexfs")


# Starts a process. Returns it with two descriptors: the socket to its standard input, and its output.
Start: TypeAlias = Callable[[], Awaitable[tuple[Child, list[int]]]]


class EngineTerms(NamedTuple):
    """The limits of engines: times in seconds, and the work that they do at a time."""

    idle: float = 300.0
    load: float = 300.0  # a file of many GB may come from a slow disk
    silence: float = 120.0  # one batch of a prompt may take long on a busy machine
    watch: float = 5.0
    streams: int = 2
    threads: int = 0  # 0: as many as the cores that we may use


class Engines:
    """All engines of a daemon. A file has one engine, even if it has several names."""

    def __init__(self, terms: EngineTerms, start: Start) -> None:
        self._terms = terms
        self._start = start
        self._nursery: trio.Nursery | None = None
        self._over = trio.Event()
        self._by_file: dict[Path, _Process] = {}

    def __len__(self) -> int:
        """The number of running engines."""
        return sum(process.pid is not None for process in self._by_file.values())

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._over.set()

    async def end(self) -> None:
        """End all engines. The starter's messages must still be read, as they report the ends."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
            await self._over.wait()

    @asynccontextmanager
    async def serving(self, weights: Weights) -> AsyncIterator[Endpoint]:
        """Provides the loaded server while it is used. If its process ends meanwhile, the body of the context
        is cancelled, and the context raises a fault that names the cause."""
        process, broken = self._process(weights), False
        with process.used() as scope:
            endpoint = await process.loaded()
            try:
                yield endpoint
            except Fault as fault:
                if fault.code not in DYING:
                    raise
                with trio.move_on_after(DYING_SECONDS):
                    await process.ended.wait()
                if process.fault is None:
                    raise
                broken = True
        if process.fault and (broken or scope.cancelled_caught):
            raise process.fault

    def _process(self, weights: Weights) -> _Process:
        """Returns the process of a file, and starts one if none can be used."""
        process = self._by_file.get(weights.path)
        if process is None or process.fault or process.weights.context != weights.context:
            if self._nursery is None:
                raise Fault("EHOSTDOWN", "the daemon is not ready to start engines; try again")
            process = self._by_file[weights.path] = _Process(weights, self._terms, self._start)
            self._nursery.start_soon(process.run)
        return process


class _Process:
    """One child, from its start to its end."""

    def __init__(self, weights: Weights, terms: EngineTerms, start: Start) -> None:
        self.weights = weights
        self._terms = terms
        self._start = start
        self._child: Child | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._users: set[trio.CancelScope] = set()
        self._idle_since = trio.current_time()
        self._ready = trio.Event()
        self._endpoint: Endpoint | None = None
        self.ended = trio.Event()
        self.fault: Fault | None = None  # the cause, once the process cannot be used

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child and not self.fault else None

    @contextlib.contextmanager
    def used(self) -> Iterator[trio.CancelScope]:
        """Count a user; the scope is cancelled when the process ends."""
        with trio.CancelScope() as scope:
            self._users.add(scope)
            try:
                yield scope
            finally:
                self._users.discard(scope)
                self._idle_since = trio.current_time()

    async def loaded(self) -> Endpoint:
        await self._ready.wait()
        if self._endpoint is None:
            raise self.fault or self._fault("EHOSTDOWN", "ended")
        return self._endpoint

    async def run(self) -> None:
        """Run the process until it has ended, by itself or by us. Then cancel its users."""
        try:
            child, rights = await self._start()
        except OSError as problem:
            why = f"no engine can be started now: {problem.strerror}"
            self._over(Fault("EHOSTDOWN", why))
            return
        self._child = child
        sock = socket.socket(fileno=rights[0])
        sock.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        async with stream as channel, trio.lowlevel.FdStream(rights[1]) as output:
            await self._serve(child, channel, output)

    async def _serve(self, child: Child, channel: trio.SocketStream, output: trio.abc.ReceiveStream) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._overhear, output)
                nursery.start_soon(self._live, channel)
                await child.ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._end(child)

    async def _live(self, channel: trio.SocketStream) -> None:
        with trio.move_on_after(self._terms.load) as clock:
            self._endpoint = await self._load(channel)
        if clock.cancelled_caught:
            self._kill("EHOSTDOWN", f"did not load within {self._terms.load:g} s")
        if self._endpoint is None:
            return
        self._idle_since = trio.current_time()
        self._ready.set()
        while True:
            await trio.sleep(min(self._terms.watch, self._terms.idle))
            if self._users:
                await self._look(self._endpoint)
            elif trio.current_time() - self._idle_since >= self._terms.idle:
                self._kill("EHOSTDOWN", "was ended, as no request needed it")

    async def _load(self, channel: trio.SocketStream) -> Endpoint | None:
        """Send the request to load the weights. Returns None if the engine does not load them."""
        key = secrets.token_urlsafe(32)
        load = engine_protocol.LoadRequest(
            weights=str(self.weights.path),
            name=self.weights.name,
            context=self.weights.context,
            streams=self._terms.streams,
            threads=self._terms.threads or len(os.sched_getaffinity(0)),
            key=key,
        )
        try:
            await channel.send_all(engine_protocol.encode(load))
            answer = engine_protocol.decode_answer(await _line(channel))
        except trio.BrokenResourceError:
            return None  # the engine has died, and its status says more
        except UNREADABLE:
            self._kill("EPROTO", "sent an answer that is not of the engine's protocol")
            return None
        if isinstance(answer, engine_protocol.LoadFailure):
            self._kill("EHOSTDOWN", f"cannot load: {one_line(answer.why)}")
            return None
        return Endpoint(f"http://127.0.0.1:{answer.port}/v1", key, self._is_alive)

    async def _look(self, endpoint: Endpoint) -> None:
        """Kill an engine that does not report its slots. The thread that computes the answers reports them,
        between two batches."""
        with trio.move_on_after(self._terms.silence) as clock:
            try:
                await get(endpoint, "/slots")
            except Lost as lost:
                log.warning("the engine of %s did not report its slots: %s", self.weights.name, lost.why)
        if clock.cancelled_caught:
            self._kill("EPROTO", f"did not answer for {self._terms.silence:g} s and was ended")

    async def _overhear(self, output: trio.abc.ReceiveStream) -> None:
        """Read all output of the engine. Lines after the load are not kept, as they may quote users."""
        while data := await output.receive_some(MAX_SAID):
            if self._endpoint is None:
                lines = [one_line(line) for line in data.decode(errors="replace").splitlines() if line]
                self._lines.extend(lines)
                log.info("engine of %s: %s", self.weights.name, lines)

    def _is_alive(self) -> bool:
        return self._child is not None and self._child.status is None

    def _kill(self, code: str, why: str) -> None:
        self.fault = self.fault or self._fault(code, why)
        if self._child:
            self._child.kill()

    async def _end(self, child: Child) -> None:
        if child.status is None:
            self._kill("EHOSTDOWN", "was ended, as the daemon ends")
            with trio.move_on_after(REAP_SECONDS) as clock:
                await child.ended.wait()
            if clock.cancelled_caught:
                log.warning("the engine of %s was killed, and does not end", self.weights.name)
        code = "EPROTO" if self._endpoint else "EHOSTDOWN"
        self._over(self._fault(code, self._ending(child.status)))

    def _over(self, fault: Fault) -> None:
        self.fault = self.fault or fault
        log.info("%s", self.fault.message.partition("; ")[0])
        self._ready.set()
        self.ended.set()
        for scope in self._users:
            scope.cancel()

    def _ending(self, status: int | None) -> str:
        last = f"; its last words: {self._lines[-1]}" if self._lines and self._endpoint is None else ""
        if status is not None and status < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"was killed by {names.get(-status, f'signal {-status}')}{last}"
        return f"exited with status {status}{last}"

    def _fault(self, code: str, why: str) -> Fault:
        mend = "ask again, which starts another" if code == "EPROTO" else "see: ctx doctor"
        return Fault(code, f"the engine of {self.weights.name} {why}; {mend}")


async def _line(channel: trio.SocketStream) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < engine_protocol.MAX_LINE:
        if not (data := await channel.receive_some(engine_protocol.MAX_LINE)):
            raise trio.BrokenResourceError
        line += data
    return line
