"""One run of a model for a runner: it reads the prompt where needed, and passes on the driver's frames.

Main path: `ModelRun.work`. Standard input is read only when the arguments want it. Then the driver answers,
while a second task watches for the caller leaving, which cancels the driver.
Rules: a prompt is bounded before it is parsed, and so is the memory for all prompts of a user. A driver that
sends more than the runner takes waits. No question can be put to the user here: that needs a conversation.
This file must never know which drivers there are, or what a host is.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec
import trio

from cortexfs.core import wire
from cortexfs.core.arguments.parse import prompt, prompt_room
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, Delta, Frame, Message, Question, ReasoningDelta, Usage
from cortexfs.core.talk.approvals import answer_told, decided
from cortexfs.core.talk.requests import Input, Verdict
from cortexfs.models.ask.driver import Driver, Who
from cortexfs.models.drivers import answered
from cortexfs.peers.guests import SMALL, Guest
from cortexfs.pool.run_table import ObjectRun
from cortexfs.run.output import Voice
from cortexfs.run.runner import RunnerSide

# A prompt of more bytes, or a frame of more characters, is decoded or encoded in a thread of its own.
LARGE = 64 << 10
HOLD = 1 << 20  # the memory for standard input is counted in steps of this size

UNASKED = "this call needs an approval or an answer, and a single call cannot ask; use ctx chat, or the .sock"
_DENIAL = Verdict("deny", None, UNASKED)


class ModelRun(RunnerSide):
    """A run between one runner and one driver, which sees it as its turn (models/ask/driver.py)."""

    def __init__(
        self, stream: socket.socket, voice: Voice, run: ObjectRun, output_bytes: int, user: Who
    ) -> None:
        super().__init__(stream, voice, run)
        self.input: Input = ""
        self.who = user
        self.uid = user.identity.uid
        self.session_memory: dict[str, object] = {}
        self._output_bytes = output_bytes
        self._scope = trio.CancelScope()
        self._saying = trio.Lock()
        self._has_deltas = False  # whether deltas were sent since the last message

    async def work(self, driver: Driver, arguments: Sequence[bytes], guest: Guest) -> None:
        self.input = await self._prompt(arguments, guest)
        if self._is_left:
            return
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._watch)
                nursery.start_soon(self._show_waiting)
                self.fault = await answered(driver, self)
                self._done = True
                self._scope.cancel()
        except BaseExceptionGroup:  # Trio wraps a cancellation, too
            await trio.lowlevel.checkpoint_if_cancelled()
            raise

    async def _prompt(self, arguments: Sequence[bytes], guest: Guest) -> Input:
        room = prompt_room(arguments)
        piped = b"" if room is None else await self._standard_input(room, guest)
        self._run.bytes_in = len(piped) + sum(map(len, arguments))
        if self._run.bytes_in > LARGE:
            return await trio.to_thread.run_sync(prompt, arguments, piped)
        return prompt(arguments, piped)

    async def _standard_input(self, room: int, guest: Guest) -> bytes:
        """Returns all of standard input; if there is more than `room`, just enough to show that."""
        self._is_read = True
        self._out += wire.message(wire.WANT, wire.U32.pack(room + 1))
        await self._flush()
        data, held = bytearray(), SMALL
        while messages := await self._hear():
            for kind, payload in messages:
                if kind == wire.STDIN:
                    data += payload
                    if not payload or len(data) > room:
                        return bytes(data)
            while len(data) > held:
                guest.hold(HOLD)
                held += HOLD
        return b""

    async def _watch(self) -> None:
        """Wait until the runner leaves; a message from it now means that, or that it is not one of ours. The
        start of the run is sent here when the driver first waits, if it has not gone out with the first
        frames."""
        self._send_what_fits()
        await self._hear()
        self._is_left = True
        self._scope.cancel()

    # -- called by the driver

    async def history(self, room: int) -> list[Message]:
        return []

    async def say(self, *frames: Frame) -> None:
        """Pass on the driver's frames. If the caller has left, the driver is cancelled."""
        parts = []
        for frame in frames:
            self._count(frame)
            own = msgspec.structs.replace(frame, run=self._run.id)
            large = _size(own) > LARGE
            voiced = self._voice.say
            parts.append(await trio.to_thread.run_sync(voiced, own) if large else voiced(own))
        self._out += b"".join(parts)
        try:
            self._saying.acquire_nowait()  # saves a turn of the loop
        except trio.WouldBlock:  # one task waits at a time; the calls of an agent speak side by side
            await self._saying.acquire()
        try:
            await self._try_flush()
        finally:
            self._saying.release()
        if self._is_left:
            self._scope.cancel()
        await trio.lowlevel.checkpoint()

    async def settled(self) -> None:
        """Do nothing: a single call is kept nowhere."""

    async def ask(self, approval: Approval) -> Verdict:
        await self.say(approval, decided(approval, _DENIAL))
        return _DENIAL

    async def question(self, question: Question) -> Verdict:
        await self.say(question, answer_told(question, _DENIAL))
        return _DENIAL

    def _count(self, frame: Frame) -> None:
        """Count the bytes of output as a terminal shows them."""
        if isinstance(frame, Delta):
            self._has_deltas = True
            self._run.bytes_out += len(frame.text.encode())
        elif isinstance(frame, Usage):
            self._run.count(frame)
        elif isinstance(frame, Message):
            has_deltas, self._has_deltas = self._has_deltas, False
            if not has_deltas:
                self._run.bytes_out += sum(len(part.text.encode()) for part in frame.content)
        if self._run.bytes_out > self._output_bytes:
            raise Fault("EFBIG", f"the output is over the limit of {self._output_bytes} bytes")


def _size(frame: Frame) -> int:
    if isinstance(frame, Delta | ReasoningDelta):
        return len(frame.text)
    if isinstance(frame, Message):
        return sum(len(part.text) for part in frame.content)
    return 0
