"""The runner's side of a run: the messages to the runner, and how the run ends.

Main path: `until_the_end` sends the start, does the work, and sends the end. `fault` names the end: none, a
fault of the work, a caller who left (ECANCELED), or a daemon that stops (EHOSTDOWN).
Rules: all bytes for the runner go through `_out`. Bytes that a cancellation holds back are sent first the
next time, so a frame is never cut. In a nursery no OSError is let out, as it would arrive wrapped.
This file must never know what does the work: a host, or a model's driver.
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
WAIT_SECONDS = 1.0  # before a terminal shows how long it has waited, and between two updates
LAST_SECONDS = 0.2  # how long a stopping daemon tries to tell a runner


class RunnerSide:
    """One run, as its runner sees it."""

    def __init__(self, stream: socket.socket, voice: Voice, run: ObjectRun) -> None:
        self._stream = stream
        self._voice = voice
        self._run = run
        self._from_runner: wire.Splitter | None = None  # splits the messages after its greeting
        self._out = bytearray()
        self._is_left = False  # the caller has gone, or is going
        self._is_read = False  # standard input was asked for
        self._reads = False  # and has not ended yet
        self._done = False  # the answer is whole: if the daemon stops now, nothing is lost
        self.fault: Fault | None = None

    async def until_the_end(self, work: Awaitable[None]) -> None:
        """Do the whole run, from its start frame to its exit status."""
        self._out += self._voice.start()
        try:
            await work
        except Fault as fault:
            self.fault = bare(fault)
        except OSError:
            self._is_left = True
        except trio.Cancelled:
            if not self._done:
                self.fault = Fault("EHOSTDOWN", "the daemon was stopped during the call")
            with trio.move_on_after(LAST_SECONDS, shield=True):
                await self._finish()
            raise
        await self._finish()

    async def _finish(self) -> None:
        """Send how the run ended. A caller that has closed only its sending half still gets it."""
        if self._is_left:
            self.fault = Fault("ECANCELED", "")
        code, message = (self.fault.code, self.fault.message) if self.fault else (None, "")
        self._out += self._voice.end(frames.ENDS.get(code, "error"), code, message)
        self._out += (b"" if self._is_read or self._is_left else self._voice.unread()) + farewell(self.fault)
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
        """Send what fits now; the next flush sends the rest."""
        try:
            if self._out:
                self._sent(self._stream.send(self._out))
        except BlockingIOError:
            pass
        except OSError:
            self._is_left = True

    async def _show_waiting(self) -> None:
        """On a terminal, show each second how long the run has taken, unless it reads the user's typing."""
        while self._voice.is_watched:
            await trio.sleep(WAIT_SECONDS)
            if not self._reads and not self._out:
                self._out += self._voice.waiting(time.monotonic() - self._run.began)
                self._send_what_fits()

    async def _try_flush(self) -> None:
        try:
            await self._flush()
        except OSError:
            self._is_left = True

    async def _hear(self) -> list[tuple[int, bytes]]:
        """Returns the runner's next messages, or an empty list when it has left."""
        self._from_runner = self._from_runner or wire.Splitter()
        while not self._is_left:
            await trio.lowlevel.wait_readable(self._stream)
            try:
                data = safe_sockets.receive(self._stream, RECEIVE)
                if trace.wire and self._run.class_ != OWN:  # there the user's keys would be recorded
                    trace.wire(self._run.id, "heard", data)
                messages = self._from_runner.feed(data)
            except (BlockingIOError, InterruptedError):
                continue
            except (OSError, Fault):
                data, messages = b"", []
            if not data:
                self._is_left = True
            if messages:
                return messages
        return []


def farewell(fault: Fault | None) -> bytes:
    """Returns the message that makes the runner exit."""
    return wire.message(wire.EXIT, bytes([exit_status(fault.code)])) if fault else _WELL
