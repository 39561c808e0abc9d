"""The connections that the page holds for its user, and the questions to the user on them.

    await holders.send(address, send)       sends a message, and holds the session until it is answered
    await holders.hold(address)             holds a session that is active already
    await holders.inbox(emit)               emits each change of the open questions and active sessions

Rules: an approval is denied if no connected user could decide it. So an active session is held, until
HOLD_SECONDS after the last tab has left. A session without a run or message under way is not held, and costs
the daemon nothing.
This file must never know HTTP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from cortexfs.chat import said
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk import approvals
from cortexfs.core.talk.requests import Resume, Send
from cortexfs.web.children import WebPlace
from cortexfs.web.lines import Line, opened
from cortexfs.web.telling import SessionAddress, Telling

HOLD_SECONDS = 300.0
BEGIN_SECONDS = 2.0  # after which a message that has not begun is reported as waiting
MAX_HELD = 64


class HeldSession:
    """A session with a run or message under way."""

    def __init__(self, address: SessionAddress, changed: Callable[[], None]) -> None:
        self.address = address
        self.line: Line | None = None
        self.scope = trio.CancelScope()
        self.questions: dict[tuple[str, str], dict[str, Any]] = {}  # by their kind and id
        self.runs: set[str] = set()
        self._changed = changed
        self._sent: dict[str, trio.Event] = {}
        self._refused: dict[str, Fault] = {}

    @property
    def is_over(self) -> bool:
        return not (self.runs or self._sent)

    def expect(self, id_: str) -> trio.Event:
        """Returns an event that is set when this message is started or refused."""
        return self._sent.setdefault(id_, trio.Event())

    def check(self, id_: str) -> None:
        if fault := self._refused.pop(id_, None):
            raise fault

    def hear(self, frame: AnyFrame, more: dict[str, Any] | None = None) -> None:
        if isinstance(frame, frames.Start | frames.Error) and frame.request in self._sent:
            self._sent.pop(frame.request).set()
            if frame.run is None and isinstance(frame, frames.Error):
                self._refused[frame.request] = Fault(frame.code, frame.message)
        if frame.run is None:
            return
        before = len(self.runs), list(self.questions)
        self.runs.add(frame.run)
        if frame.FINAL:
            self.runs.discard(frame.run)
            self.questions = {
                call: question for call, question in self.questions.items() if question["run"] != frame.run
            }
        elif isinstance(frame, frames.Approval):
            self.questions["call", frame.call] = msgspec.to_builtins(frame) | (more or {})
        elif isinstance(frame, frames.Question):
            self.questions["question", frame.question] = msgspec.to_builtins(frame) | (more or {})
        elif isinstance(frame, frames.ToolResult):
            self._settle(frame.call)
        elif isinstance(frame, frames.Observer):
            if decided := approvals.read(frame):
                self._settle(decided.call)
            elif answered := approvals.read_answer(frame):
                self.questions.pop(("question", answered.question), None)
        if before != (len(self.runs), list(self.questions)):
            self._changed()

    def _settle(self, call: str) -> None:
        """Forget the questions of a call that is decided or over."""
        self.questions = {
            id_: question for id_, question in self.questions.items() if question["call"] != call
        }

    def end(self) -> None:
        """Note that the connection has ended, and wake all that wait for a start."""
        for id_, event in self._sent.items():
            self._refused[id_] = Fault("EHOSTDOWN", "the connection ended; the page sends the message again")
            event.set()
        self._changed()


class Holders:
    """All held sessions, and the tabs that watch them."""

    def __init__(self, place: WebPlace, nursery: trio.Nursery) -> None:
        self._place = place
        self._nursery = nursery
        self._held: dict[SessionAddress, HeldSession] = {}
        self._tabs = 0
        self._moves = 0  # how often a tab has left or come
        self._news = trio.Event()
        self._making = trio.Lock()

    async def send(self, address: SessionAddress, send: Send) -> str:
        """Send a message. Returns "begun", or "waits" if it waits for another one."""
        assert send.id is not None
        held = await self.hold(address)
        begun = held.expect(send.id)
        assert held.line is not None
        await held.line.say(send)
        with trio.move_on_after(BEGIN_SECONDS):
            await begun.wait()
        held.check(send.id)
        return "begun" if begun.is_set() else "waits"

    async def hold(self, address: SessionAddress) -> HeldSession:
        """Returns the session, which is held from now on while it is active."""
        async with self._making:
            if held := self._held.get(address):
                return held
            if len(self._held) >= MAX_HELD:
                why = f"{MAX_HELD} sessions are at work, which is the limit; wait until one is done"
                raise Fault("EAGAIN", why)
            held = await self._nursery.start(self._hold, address)
            assert isinstance(held, HeldSession)
            return held

    async def find(self, address: SessionAddress) -> None:
        """Hold this session if it is active."""
        with contextlib.suppress(Fault):
            held = await self.hold(address)
            if held.is_over:
                held.scope.cancel()

    async def _hold(self, address: SessionAddress, task_status: trio.TaskStatus[HeldSession]) -> None:
        held, telling = HeldSession(address, self._tell), Telling(self._place, address)
        try:
            async with opened(self._place, address.object) as held.line:
                known = await trio.to_thread.run_sync(said.tail, telling.folder, abandon_on_cancel=True)
                await self._hear(held, telling, known)
                last = known[-1].id if known else None
                follow = Resume(session=address.session, scope=address.scope, after=last, id="page")
                await held.line.say(follow)
                self._held[address] = held
                self._tell()
                task_status.started(held)
                with held.scope:
                    async for found in held.line.heard():
                        await self._hear(held, telling, found)
                        if held.is_over:
                            break
        except Fault:
            if held.address not in self._held:
                raise
        finally:
            self._held.pop(address, None)
            held.end()

    async def _hear(self, held: HeldSession, telling: Telling, found: list[AnyFrame]) -> None:
        for frame in found:
            is_asked = isinstance(frame, frames.Approval | frames.Question)
            held.hear(frame, await telling.more(frame) if is_asked else None)

    async def inbox(self, emit: Callable[[bytes], Awaitable[None]]) -> None:
        """Send a tab the open questions and active sessions, at each change, until it leaves."""
        self._tabs += 1
        self._moves += 1
        try:
            while True:
                news = self._news
                await emit(b"data: %s\n\n" % msgspec.json.encode(self._state()))
                await news.wait()
        finally:
            self._tabs -= 1
            self._moves += 1
            if not self._tabs:
                self._nursery.start_soon(self._let_go, self._moves)

    async def _let_go(self, moves: int) -> None:
        """Let all sessions go, unless a tab comes within HOLD_SECONDS after the last one has left."""
        await trio.sleep(HOLD_SECONDS)
        if self._moves == moves:
            for held in list(self._held.values()):
                held.scope.cancel()

    def _state(self) -> dict[str, Any]:
        questions = [
            question | held.address._asdict()
            for held in self._held.values()
            for question in held.questions.values()
        ]
        return {
            "asked": questions,
            "active": [held.address._asdict() for held in self._held.values() if held.runs],
        }

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()
