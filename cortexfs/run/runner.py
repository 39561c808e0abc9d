"""The runner's side of a run: what is said to it, and how the run ends.

Main path: `until_the_end` says start, lets the work be done, and says how it ended. `fault` says which end
it was: none, one of the work's own, a caller who left (ECANCELED), or a daemon that stops (EHOSTDOWN).

Rules: all bytes for the runner go through `_out`, and what a cancellation interrupts is sent first the
next time, so a frame is never cut. In a nursery no OSError is let out, as that would come wrapped.
This file must never know what answers: a host, or a model's driver.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable

import trio

from cortexfs.core import frames, wire
from cortexfs.core.errors import Fault, bare, exit_status
from cortexfs.models.own_providers import CLASS as OWN
from cortexfs.peers import safe_sockets, trace
from cortexfs.peers.prompt import in_task
from cortexfs.peers.streams import RECEIVE
from cortexfs.pool.run_table import ObjectRun
from cortexfs.run.output import Voice

_WELL = wire.message(wire.EXIT, b"\0")
WAIT_SECONDS = 1.0  # until a terminal is told that it waits, and how long by now
LAST_SECONDS = 0.2  # how long a stopping daemon tries to say so to a runner


class RunnerSide:
    """One run, as its runner is told of it."""

    def __init__(self, stream: socket.socket, voice: Voice, run: ObjectRun) -> None:
        self._stream = stream
        self._voice = voice
        self._run = run
        self._from_runner: wire.Splitter | None = None  # of what it says beyond its greeting
        self._out = bytearray()
        self._left = False  # the caller has gone, or wants to
        self._is_read = False  # standard input was asked for
        self._reads = False  # and is still to come
        self._done = False  # the answer is whole: a daemon that stops now has lost nothing
        self.fault: Fault | None = None

    async def until_the_end(self, work: Awaitable[None]) -> None:
        """The whole run, from its start frame to its exit status."""
        self._out += self._voice.start()
        try:
            await work
        except Fault as fault:
            self.fault = bare(fault)
        except OSError:
            self._left = True
        except trio.Cancelled:
            if not self._done:
                self.fault = Fault("EHOSTDOWN", "the daemon was stopped during the call")
            with trio.move_on_after(LAST_SECONDS, shield=True):
                await self._finish()
            raise
        await self._finish()

    async def _finish(self) -> None:
        """Say how it ended; a caller who has only half left still hears it."""
        if self._left:
            self.fault = Fault("ECANCELED", "")
        code, message = (self.fault.code, self.fault.message) if self.fault else (None, "")
        self._out += self._voice.end(frames.ENDS.get(code, "error"), code, message)
        self._out += (b"" if self._is_read or self._left else self._voice.unread()) + farewell(self.fault)
        try:
            await self._flush()
        except OSError:
            self.fault = self.fault or Fault("ECANCELED", "")

    async def _flush(self) -> None:
        while self._out:
            try:
                self._sent(self._stream.send(self._out))
            except BlockingIOError:
                await in_task()
                await trio.lowlevel.wait_writable(self._stream)

    def _sent(self, size: int) -> None:
        if trace.wire:
            trace.wire(self._run.id, "said", self._out[:size])
        del self._out[:size]

    def _send_what_fits(self) -> None:
        """Sends as much as fits; the next flush sends the rest."""
        try:
            if self._out:
                self._sent(self._stream.send(self._out))
        except BlockingIOError:
            pass
        except OSError:
            self._left = True

    async def _show_waiting(self) -> None:
        """On a terminal, say each second how long it has taken; who types there is left alone."""
        while self._voice.is_watched:
            await trio.sleep(WAIT_SECONDS)
            if not self._reads and not self._out:
                self._out += self._voice.waiting(time.monotonic() - self._run.began)
                self._send_what_fits()

    async def _try_flush(self) -> None:
        try:
            await self._flush()
        except OSError:
            self._left = True

    async def _hear(self) -> list[tuple[int, bytes]]:
        """Returns the runner's next messages; nothing at all when it has left."""
        self._from_runner = self._from_runner or wire.Splitter()
        while not self._left:
            await trio.lowlevel.wait_readable(self._stream)
            try:
                data = safe_sockets.receive(self._stream, RECEIVE)
                if trace.wire and self._run.class_ != OWN:  # which hears keys
                    trace.wire(self._run.id, "heard", data)
                messages = self._from_runner.feed(data)
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, Fault):
                data, messages = b"", []
            if not data:
                self._left = True
            if messages:
                return messages
        return []


def farewell(fault: Fault | None) -> bytes:
    """The message that ends a runner."""
    return wire.message(wire.EXIT, bytes([exit_status(fault.code)])) if fault else _WELL
