"""One call of a tool for an agent: in a host that is the person and no more, and what it said.

Main path: `ToolCalls.call` takes a host from the pool, sends the request, and collects the output until the
host is done. What the tool says meanwhile (progress, notes, media) is passed on as it comes.

Rules: what is kept of an output is bounded, for each call and for each user, and the rest is counted. A call
that is given up is half-closed, which cancels it; a host that does not let go, or that broke the protocol, is
replaced (relay.py does the same for a runner).
This file must never know why a tool is called, or whether it may be.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

import msgspec
import trio

from cortexfs import strangers
from cortexfs.agents.world import Outcome
from cortexfs.core import calls, frames, wire
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object
from cortexfs.hosts import Host, Pool, announce
from cortexfs.relay import (
    GARBAGE,
    LET_GO_SECONDS,
    heard_faults,
    heard_observers,
    name_the_end,
    of_the_tool,
    receive,
    send,
)

MAX_KEPT = 2 << 20  # bytes of one output; what a model is told of it is far less
MAX_HELD = 64 << 20  # and of all that are kept at a time for one user

PATIENCE = 30.0  # seconds that a call waits for a host
LOOK = 1.0  # and after which it looks by itself

Said = Callable[[frames.Frame], Awaitable[None]]


class ToolCalls:
    """Calls of tools by whoever is no runner."""

    def __init__(self, pool: Pool, default_seconds: float) -> None:
        self._pool = pool
        self._seconds = default_seconds
        self._held: Counter[int] = Counter()  # by uid
        self._waiting: WeakValueDictionary[int, trio.lowlevel.ParkingLot] = WeakValueDictionary()

    async def call(self, tool: Object, identity: calls.Identity, asked: calls.Call, say: Said) -> Outcome:
        """Run it to its end. A fault of the tool is in the outcome; one of ours is, too."""
        if tool.plugin is None:
            return Outcome("", Fault("EHOSTDOWN", f"{tool.name} cannot run: {tool.status}"))
        seconds = tool.timeout or self._seconds
        one = _One(tool.name, say, identity.uid, self._held)
        try:
            host = await self._host(tool.plugin, identity)
        except Fault as fault:
            return Outcome("", fault)
        try:
            with trio.move_on_after(seconds) as clock:
                await one.run(host, asked)
            if clock.cancelled_caught:
                one.fault = Fault("ETIMEDOUT", f"the tool did not end within {seconds:g} s")
        except Fault as fault:
            one.fault = fault
        finally:
            self._pool.release(host, stuck=one.broken or not one.let_go)
            one.forget()
            if waiting := self._waiting.get(identity.uid):
                waiting.unpark()
        return one.outcome()

    async def _host(self, plugin: calls.Plugin, identity: calls.Identity) -> Host:
        """One of this user's; while all that he may have are at work, it is waited for."""
        deadline = trio.current_time() + PATIENCE
        while True:
            try:
                return await self._pool.acquire(plugin, identity, [])
            except Fault as fault:
                if fault.code != "EAGAIN" or trio.current_time() >= deadline:
                    raise
            # Hosts of his that are at work otherwise, or have yet to end, wake nobody here.
            with trio.move_on_at(min(deadline, trio.current_time() + LOOK)):
                await self._waiting.setdefault(identity.uid, trio.lowlevel.ParkingLot()).park()


class _One:
    """One call, as far as it has come."""

    def __init__(self, name: str, say: Said, uid: int, held: Counter[int]) -> None:
        self._name = name
        self._say = say
        self._uid = uid
        self._held = held
        self._kept = bytearray()  # not its pieces, each of which may be a byte
        self._size = 0
        self._done = False
        self._wants = False
        self.let_go = True
        self.broken = False
        self.fault: Fault | None = None

    def outcome(self) -> Outcome:
        text = self._kept.decode(errors="ignore")  # cut inside a character, perhaps
        return Outcome(text, self.fault, self._size - len(self._kept))

    def forget(self) -> None:
        """It counts for its user no more."""
        self._held[self._uid] -= len(self._kept)
        if not self._held[self._uid]:
            del self._held[self._uid]

    async def run(self, host: Host, asked: calls.Call) -> None:
        with strangers.closing(host.call(None)) as call:
            self.let_go = False
            try:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    await send(call, announce(asked))
                await self._hear(call)
            finally:
                if not self.let_go:
                    await self._release(call)
        if not self._done and self.fault is None:
            self.fault = await name_the_end(host)

    async def _hear(self, call: socket.socket) -> None:
        splitter = wire.Splitter(wire.MAX_SAID)
        while not self._done:
            try:
                data = await receive(call)
            except OSError:
                data = b""
            if not data:
                self.let_go = self.broken = True
                return
            said: list[frames.Frame] = []
            try:
                for kind, payload in splitter.feed(data):
                    said += self._take(kind, payload)
                    if self._done:
                        break
            except GARBAGE as error:
                self.broken = True
                self.fault = Fault("EPROTO", f"the tool's host broke the protocol: {error}")
            for frame in said:
                await self._say(frame)
            if self.broken:
                return
            if self._wants:  # it has its input; there is no more
                self._wants = False
                with contextlib.suppress(OSError):  # what becomes of it is heard next
                    await send(call, wire.message(wire.STDIN, b""))
            await trio.lowlevel.checkpoint()

    def _take(self, kind: int, payload: bytes) -> list[frames.Frame]:
        """One message of the host; what is to be said of it."""
        if kind == wire.DELTA:
            self._size += len(payload)
            self._keep(payload)
        elif kind == wire.DONE:
            self._done = self.let_go = True
        elif kind == wire.FAULT:
            self.fault = of_the_tool(*heard_faults.decode(payload))
        elif kind == wire.WANT:
            self._wants = True
        elif frame := _frame(self._name, kind, payload):
            return [frame]
        return []

    def _keep(self, payload: bytes) -> None:
        """As much of it as there is room for; what comes behind a gap is not kept."""
        if self._size - len(payload) == len(self._kept):
            taken = payload[: max(0, min(MAX_KEPT - len(self._kept), MAX_HELD - self._held[self._uid]))]
            self._kept += taken
            self._held[self._uid] += len(taken)

    async def _release(self, call: socket.socket) -> None:
        with trio.move_on_after(LET_GO_SECONDS, shield=True):
            with contextlib.suppress(OSError):
                call.shutdown(socket.SHUT_WR)
                while await receive(call):
                    await trio.lowlevel.checkpoint()
            self.let_go = True


def _frame(name: str, kind: int, payload: bytes) -> frames.Frame | None:
    """What a tool says beside its output. Its notes bear its name: the run's own tell what was decided."""
    if kind == wire.PROGRESS:
        return frames.Progress(message=payload.decode())
    if kind == wire.OBSERVER:
        source, content = heard_observers.decode(payload)
        return frames.Observer(source=f"{name}: {source}" if source else name, content=content)
    if kind == wire.MEDIA:
        return frames.Media(attachment=msgspec.json.decode(payload))
    return None
