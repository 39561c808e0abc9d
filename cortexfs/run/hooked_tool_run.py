"""A run of a tool with hooks: a relay that stops where plugins have to be asked.

Main path: the host sends the input with which the tool is to run (wire.INPUT) and waits. The plugins are
asked, and the host gets their answer. If there is middleware for the output, the output is held until the
tool has ended and all were asked. The tool's other frames (progress, notes) pass as they come.
Rules: when the caller leaves, asking the plugins ends too. The time that plugins take before the tool counts
as the call's own.
This file must never know how a plugin is asked.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault, bare, timed_out
from cortexfs.core.hooks import MAX_HEARD, MAX_SHOWN, HookedCall, HookedOutput
from cortexfs.core.registry import Object
from cortexfs.peers.caller import Caller
from cortexfs.pool.call import GARBAGE, broken_by
from cortexfs.pool.pool import Pool
from cortexfs.pool.run_table import ObjectRun
from cortexfs.run.output import Voice
from cortexfs.run.tool_run import Relay

MAX_OVERHEARD = 4 * MAX_HEARD  # bytes of that many characters

_pack = msgspec.msgpack.Encoder().encode
_inputs = msgspec.json.Decoder(dict[str, Any])


class NestedRun(HookedCall, Protocol):
    hooked: Any  # the hooks that apply to the call as well

    @property
    def delegates(self) -> bool:
        """Returns True if the tool starts agents."""

    @property
    def token(self) -> str:
        """The token of a host for this call alone, as its programs run tools themselves; else empty."""

    def close(self) -> None:
        """Note that the call is over, however it ended."""

    async def log_end(self) -> None:
        """Report how the call ended, in its agent's session."""


class NestedRuns(Protocol):
    """The calls that the programs of an agent's call make (agents/nested.py)."""

    def begin(self, tool: Object, dry: bool, depth: int) -> NestedRun: ...


class HookedRelay(Relay):
    def __init__(
        self,
        stream: socket.socket,
        voice: Voice,
        run: ObjectRun,
        output_bytes: int,
        hooked: HookedCall,
        admit: Callable[[bytes], None],
    ) -> None:
        super().__init__(stream, voice, run, output_bytes)
        self._hooked = hooked
        self._admit = admit  # raises a Fault where this caller may not run the tool with a changed input
        self._asks = bytearray()  # the input, as far as the host has sent it
        self._was_shown = self._is_shown = False
        self._held: list[tuple[int, bytes]] = []  # output that is held for middleware, or kept for an event
        self._size = self._length = 0  # of the output, in bytes and characters
        self._passes = not hooked.holds
        self._is_refused = False  # the output was too large, and none of it may pass

    async def work(
        self,
        pool: Pool,
        plugin: hostcalls.Plugin,
        request: hostcalls.CallRequest,
        caller: Caller,
        seconds: float,
    ) -> None:
        try:
            shown = hostcalls.ShownCallRequest(*msgspec.structs.astuple(request))
            await super().work(pool, plugin, shown, caller, seconds)
            await self._ended(request.invocation.tool_name, seconds)
        finally:
            self._hooked.let_go()

    async def _ended(self, tool: str, seconds: float) -> None:
        """Settle how the run ended, after the host's part of it."""
        if self._is_left:
            self.fault = Fault("ECANCELED", "")
        elif self.fault is None and self._is_shown:
            self.fault = Fault("ETIMEDOUT", timed_out(tool, seconds))
        elif self.fault is None and not self._hooked.is_begun:
            self.fault = Fault("EPROTO", "the tool's host did not report the input of the call")
        if self._hooked.is_begun:
            await self._after()

    # Before the tool runs.

    @property
    def _ending(self) -> bool:
        return self._is_shown or super()._ending

    async def _pump(self, call: socket.socket, watched: bool) -> bool:
        """Do the same with a stop for the plugins. It is always watched, as plugins may take any time."""
        if not watched:
            return False
        ended = await super()._pump(call, watched)
        if not self._is_shown:
            return ended
        self._is_shown = False
        try:
            answer = await self._ask_plugins()
        except GARBAGE as error:
            self.fault = bare(error if isinstance(error, Fault) else broken_by(error))
            return True
        await self._pass(call, memoryview(wire.message(wire.INPUT, answer)))
        return await super()._pump(call, watched)

    async def _ask_plugins(self) -> bytes:
        """Ask the plugins. Returns the answer for the host: empty, or the changed input and its changer."""
        large = len(self._asks) > MAX_SHOWN
        input_, notes = await self._hooked.before(None if large else _inputs.decode(self._asks))
        self._asks.clear()
        answer = b""
        if changer := self._hooked.changed_by:
            changed = msgspec.json.encode(input_)
            self._admit(changed)
            answer = _pack((changer, changed))
        self._note(notes)
        self._hooked.begin(input_)
        return answer

    # Messages of the host.

    def _heard(self, kind: int, payload: bytes) -> bytes:
        if kind == wire.INPUT:
            self._show(payload)
            return b""
        if kind not in (wire.DELTA, wire.MEDIA):
            return super()._heard(kind, payload)
        if kind == wire.DELTA:
            self._length += len(payload.decode())
        self._size += len(payload)
        if self._is_refused:
            return b""
        if self._passes:  # and the part of it that an event may hold is kept
            if kind == wire.DELTA and self._hooked.listens and self._size - len(payload) < MAX_OVERHEARD:
                self._held.append((kind, payload))
            return super()._heard(kind, payload)
        if not self._may_hold(len(payload)):
            return b""
        self._held.append((kind, payload))
        return self._too_large() if self._size > MAX_SHOWN else b""

    def _may_hold(self, size: int) -> bool:
        try:
            self._hooked.hold(size)
        except Fault as fault:
            self._refuse(fault)
        return not self._is_refused

    def _refuse(self, fault: Fault) -> None:
        """Let no more of the output pass."""
        self.fault, self._is_refused = fault, True
        self._held.clear()

    def _show(self, payload: bytes) -> None:
        if self._was_shown:
            raise Fault("EPROTO", "it has reported its input twice")
        if len(self._asks) <= MAX_SHOWN and self._may_hold(len(payload)):
            self._asks += payload
        self._was_shown = self._is_shown = not payload

    def _too_large(self) -> bytes:
        """The output is too large for middleware: the run fails, or goes on without asking."""
        try:
            self._hooked.too_large()
        except Fault as fault:
            self._refuse(fault)
            return b""
        self._passes = True
        return self._released()

    # After it.

    async def _after(self) -> None:
        output = b"".join(payload for kind, payload in self._held if kind == wire.DELTA).decode()
        if self._passes or self._is_refused or self._is_left:
            self._hooked.end(output, self.fault, self._length)
            return
        self._done = False
        outcome = await self._unless_left(output)
        if outcome is None:
            self._hooked.end("", Fault("ECANCELED", ""))
            return
        self._note(outcome.notes)
        if outcome.refused is not None:
            self.fault = outcome.refused
        else:
            self._out += self._released(None if outcome.output == output else outcome.output)
        self._done = True

    async def _unless_left(self, output: str) -> HookedOutput | None:
        """Returns the output after middleware, or None when the caller has left."""
        outcome = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._leaves, nursery.cancel_scope)
                outcome = await self._hooked.after(output, self.fault)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup:  # Trio wraps a cancellation, too
            await trio.lowlevel.checkpoint_if_cancelled()
            raise
        return outcome

    async def _leaves(self, scope: trio.CancelScope) -> None:
        while await self._hear():
            pass
        scope.cancel()

    def _released(self, changed: str | None = None) -> bytes:
        """Returns the held output as bytes for the runner: as the tool sent it, or with its text replaced."""
        held = self._held
        if changed is not None:
            held = [(kind, payload) for kind, payload in held if kind != wire.DELTA]
        pieces = [super(HookedRelay, self)._heard(kind, payload) for kind, payload in held]
        if changed:
            self._run.bytes_out += len(changed.encode())
            pieces.append(self._voice.say(frames.Delta(run=self._run.id, text=changed)))
        return b"".join(pieces)

    def _note(self, notes: list[frames.Observer]) -> None:
        own = [msgspec.structs.replace(note, run=self._run.id) for note in notes]
        self._out += b"".join(map(self._voice.say, own))
