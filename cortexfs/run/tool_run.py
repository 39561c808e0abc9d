"""One run of a tool: the host's messages become frames, and the runner's messages become its input.

Main path: `Relay.work`. A run ends in one of these ways, which `fault` names: the host is done; it died; the
time or the output is over its limit; the caller left; the daemon stops.
Rules: bytes do not pile up: those from the host are passed on before more are taken. So a runner that does
not read holds back only its own host.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket

import msgspec
import trio

from cortexfs.core import frames, hostcalls, jsontext, wire
from cortexfs.core.errors import Fault, bare, timed_out
from cortexfs.peers import safe_sockets, trace
from cortexfs.peers.caller import Caller
from cortexfs.peers.prompt import in_task, is_readable
from cortexfs.peers.streams import RECEIVE
from cortexfs.pool.call import (
    GARBAGE,
    begins,
    broken_by,
    heard_faults,
    heard_observers,
    let_go,
    name_the_end,
    of_the_tool,
    take_back,
)
from cortexfs.pool.host import Host, announce
from cortexfs.pool.pool import Pool
from cortexfs.pool.run_table import ObjectRun
from cortexfs.run.output import Voice
from cortexfs.run.runner import RunnerSide

LOOK_SECONDS = 0.2  # between two checks that the caller is there, while the host does not take its input


class Relay(RunnerSide):
    """A run between one runner and one host."""

    def __init__(self, stream: socket.socket, voice: Voice, run: ObjectRun, output_bytes: int) -> None:
        super().__init__(stream, voice, run)
        self._output_bytes = output_bytes
        self._from_host: wire.Splitter | None = None
        self._heard_bytes = 0
        self._demand = 0
        # After a call that was done, both are closed only once the runner knows.
        self._call: socket.socket | None = None
        self._host_end: socket.socket | None = None  # the host's end, as long as the call can be taken back
        self._let_go = True  # the host has no more part in this run
        self._broken = False  # the host has died, or is not trusted with another call
        self._worn = False  # the host itself asks for no other call
        self.news = b""  # the host's new description of a script that has changed

    async def work(
        self,
        pool: Pool,
        plugin: hostcalls.Plugin,
        request: hostcalls.CallRequest,
        caller: Caller,
        seconds: float,
    ) -> None:
        """Do the host's part of the run."""
        identity = caller.identity
        if plugin.kind == hostcalls.NATIVE:
            identity = hostcalls.of_call(identity, request.environment)
        begun = False
        while not begun:
            if not pool.is_warm(plugin, identity):
                await in_task()
                await self._flush()
            host = await pool.acquire(plugin, identity, self._stream)
            try:
                cwd = caller.cwd
                if host.is_enclosed and cwd is not None:
                    request = msgspec.structs.replace(request, directory=os.readlink(f"/proc/self/fd/{cwd}"))
                    cwd = None
                begun = await self._ask(host, request, cwd, seconds)
                if not begun and self._call is not None:
                    pool.set_aside(host, self._call)
                    self._call = None
            finally:
                pool.release(host, stuck=self._broken or not self._let_go, worn=self._worn)

    async def _ask(self, host: Host, request: hostcalls.CallRequest, cwd: int | None, seconds: float) -> bool:
        """Make the call in this host. Returns False if the host did not begin it."""
        deadline = trio.current_time() + seconds
        announcement = announce(request)
        call, host_end, rest = host.open(cwd, announcement)
        self._call, self._host_end = call, host_end
        self._let_go = False
        if trace.calls:
            trace.calls(self._run.id, "said", announcement)
        begun = True
        try:
            begun = await self._relay(host, rest, deadline)
            self._let_go = self._let_go or not begun
            if not self._let_go and not self._ending:
                self.fault = Fault("ETIMEDOUT", timed_out(request.invocation.tool_name, seconds))
            if not self._let_go:
                self._let_go = take_back(call, host_end) or await let_go(call)
        finally:
            if begun and not self._done:
                self.close()
        if begun and self._let_go and not self._done and not self._ending:
            self.fault = await name_the_end(host)
        return begun

    def close(self) -> None:
        """Close the call: the runner knows how it ended, or never will."""
        if self._call is not None:
            safe_sockets.close(self._call)
        if self._host_end is not None:
            self._host_end.close()

    @property
    def _ending(self) -> bool:
        """Returns True if the end of the run is settled."""
        return self._done or self._is_left or self.fault is not None

    async def _relay(self, host: Host, rest: memoryview, deadline: float) -> bool:
        """Relay until the run ends, or its time is over. Returns False if the host did not begin it.

        A run that ends within a moment needs no task that watches for the caller leaving, and its start is
        sent with its output. Only longer runs pay for these.
        """
        call, host_end = self._call, self._host_end
        assert call is not None
        assert host_end is not None
        if not rest and await self._pump(call, watched=False):
            return True
        await in_task()
        with trio.CancelScope(deadline=deadline):
            if not await begins(host, call, host_end, bool(rest), lambda: _has_left(self._stream)):
                return False
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch, call, rest, nursery.cancel_scope)
                    nursery.start_soon(self._show_waiting)
                    await self._pump(call, watched=True)
                    nursery.cancel_scope.cancel()
            except BaseExceptionGroup:  # Trio wraps a cancellation, too
                await trio.lowlevel.checkpoint_if_cancelled()
                raise
        return True

    async def _pump(self, call: socket.socket, watched: bool) -> bool:
        """Pass on the host's output until the run ends (True). Unwatched, stop after a moment or for
        input."""
        if watched:
            await self._try_flush()
        while not self._let_go and not self._ending:
            if not watched and (self._demand or not await is_readable(call)):
                return False
            try:
                data = safe_sockets.receive(call, RECEIVE)
            except BlockingIOError:
                if watched:
                    await trio.lowlevel.wait_readable(call)
                continue
            except (ConnectionResetError, ConnectionAbortedError):
                data = b""
            self._take(data)
            if not self._let_go:  # otherwise the end of the run goes with it
                await self._try_flush()
            if len(data) >= RECEIVE // 4:  # a host that floods must not keep the others waiting
                await in_task()
                await trio.lowlevel.checkpoint()
        return True

    def _take(self, data: bytes) -> None:
        if not data:
            self._let_go = self._broken = True
            return
        if trace.calls:
            trace.calls(self._run.id, "heard", data)
        self._heard_bytes += len(data)
        spoken = []
        try:
            self._from_host = self._from_host or wire.Splitter(wire.MAX_SAID)
            for kind, payload in self._from_host.feed(data):
                spoken.append(self._heard(kind, payload))
                if self._done:
                    break
        except GARBAGE as error:
            self._broken = True
            self.fault = bare(broken_by(error))
        self._out += b"".join(spoken)
        if self._heard_bytes > self._output_bytes and not self.fault:
            self.fault = Fault("EFBIG", f"the output is over the limit of {self._output_bytes} bytes")

    def _heard(self, kind: int, payload: bytes) -> bytes:
        """Turn one message of the host into bytes for the runner."""
        voice, run = self._voice, self._run
        if kind == wire.DELTA:
            run.bytes_out += len(payload)
            return voice.say(frames.Delta(run=run.id, text=payload.decode()))
        if kind == wire.DONE:
            self._done = self._let_go = True
            self._worn = bool(payload)
        elif kind == wire.PROGRESS:
            return voice.say(frames.Progress(run=run.id, message=payload.decode()))
        elif kind == wire.OBSERVER:
            source, content = heard_observers.decode(payload)
            return voice.say(frames.Observer(run=run.id, source=source, content=content))
        elif kind == wire.MEDIA:
            return voice.say(frames.Media(run=run.id, attachment=jsontext.decode(payload, "an attachment")))
        elif kind == wire.DESCRIPTORS:
            self.news = payload
        elif kind == wire.FAULT:
            self.fault = of_the_tool(*heard_faults.decode(payload))
        elif kind == wire.WANT:
            self._is_read = self._reads = True
            (more,) = wire.U32.unpack(payload)
            self._demand += more
            return wire.message(wire.WANT, payload)
        return b""

    async def _watch(self, call: socket.socket, rest: memoryview, scope: trio.CancelScope) -> None:
        """Pass on the rest of the request, then standard input. Notice when the caller leaves."""
        await self._pass(call, rest)
        while messages := await self._hear():
            for kind, payload in messages:
                if kind == wire.STDIN:
                    await self._input(call, payload)
        scope.cancel()

    async def _input(self, call: socket.socket, payload: bytes) -> None:
        self._run.bytes_in += len(payload)
        self._demand -= len(payload)
        self._reads = bool(payload)
        if self._demand < 0:  # sent without being wanted: no runner of ours
            self._is_left = True
            return
        if trace.calls:
            trace.calls(self._run.id, "said", payload)
        await self._pass(call, memoryview(wire.message(wire.STDIN, payload)))

    async def _pass(self, call: socket.socket, data: memoryview) -> None:
        """Send to the host. While it does not take the data, check that the caller is still there."""
        with contextlib.suppress(OSError):  # the host is done or dead; the pump finds out which
            while data and not self._is_left:
                try:
                    data = data[call.send(data) :]
                except BlockingIOError:
                    with trio.move_on_after(LOOK_SECONDS):
                        await trio.lowlevel.wait_writable(call)
                    self._is_left = _has_left(self._stream)


def _has_left(stream: socket.socket) -> bool:
    """Returns True if the peer has closed or half-closed, whatever it sent before."""
    look = select.poll()
    look.register(stream, select.POLLRDHUP)
    return bool(look.poll(0))
