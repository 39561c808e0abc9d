"""A session in memory: its state, its log, its followers, its messages' senders, and the run that goes on.

Rules: an appended event counts as sent, and followers are woken when it can be seen. The users of a session
bear the memory of its messages. A run is stopped with a reason, which becomes its end. A call that asks for
approval is denied if no follower can decide, when the last who could leaves, and after a time.
This file must never know which sessions there are, nor lines or sockets.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, Delta, Frame, Message, Question, Text, Usage
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Key as ObjectKey
from cortexfs.core.registry import is_own, plain
from cortexfs.core.talk.approvals import answer_told, decided
from cortexfs.core.talk.requests import Input, Scope, SessionKey, Verdict
from cortexfs.core.talk.session import SHORT, AcceptedMessage, LogEvent, Session
from cortexfs.models.ask.driver import Driver, Who
from cortexfs.models.drivers import answered
from cortexfs.pool.run_table import ObjectRun
from cortexfs.sessions.layout import Address, Space
from cortexfs.sessions.log import Log

MESSAGE = 640  # bytes of an answered message, by the length of its id; measured: 300 to 1,100
CHARGED = 16  # messages that a session's basic cost includes
# Events of a driver before other tasks have their turn: those of a short answer are written together.
IN_A_ROW = 64
MAX_UNFINISHED = 8 << 20  # bytes of an answer that is not whole yet; a whole answer has no such limit
ADDRESSES = 64  # addresses of sessions that are cached; those of ended connections go soon
APPROVAL_SECS = 600.0  # the time for which a call waits for its approval
UNHEARD = "no connected client can answer"
LEFT = "every client that could answer has left"

_messages = msgspec.json.Decoder(Message)


class Follower(Protocol):
    """A connection, as sessions use it."""

    def stir(self, key: SessionKey) -> None:
        """Called when there may be events to send of the session that it knows by this key."""

    def may_decide(self, key: SessionKey, run: str, uid: int) -> bool:
        """Returns True if the connection receives that run's questions, and can answer for that user."""

    def lost(self, live: LiveSession, fault: Fault) -> None:
        """Give up events that were appended: they are not in the log, and will not be."""


class Asker(NamedTuple):
    """The sender of a message, the callback when it is answered, and the object of its socket."""

    identity: Identity
    over: Callable[[], None]
    object: ObjectKey

    @property
    def uid(self) -> int:
        return self.identity.uid


APPROVAL, ANSWER = "approval", "answer"


class QuestionKey(NamedTuple):
    run: str
    kind: str  # APPROVAL or ANSWER
    id: str  # of the call, or of the question


class PendingApproval:
    """A call that waits for its approval, or for an answer to its tool."""

    def __init__(self, uid: int) -> None:
        self.uid = uid  # the only user who may decide
        self.verdict: Verdict | None = None
        self.settled = trio.Event()
        self.is_said = False  # before, its session does not know it, and it cannot be decided


class LiveSession:
    """A session in memory.

    Its attributes are its state until it rests: followers, questions, memories, and the charges for its own
    memory.
    """

    def __init__(self, address: Address, session: Session, log: Log) -> None:
        self.address, self.parts = address, address.parts
        self.session = session
        self.log = log
        self.followers: dict[Follower, SessionKey] = {}
        self.working = False
        self.is_lost = False
        self.fault: Fault | None = None  # why the log did not take events that the session has
        self.askers: dict[str, Asker] = {}  # by run, of the messages that are not answered
        self.questions: dict[QuestionKey, PendingApproval] = {}
        self.memories: dict[int, dict[str, object]] = {}  # what drivers remember, by user
        self._places: dict[int, str] = {}  # the working directory of each user, by uid
        self._scope: trio.CancelScope | None = None
        self._stopped: tuple[str, Fault] | None = None
        self._charged = CHARGED  # messages of the session whose memory is charged to a user
        self._charges: list[Callable[[], None]] = []

    def charge(self, hold: Callable[[int], Callable[[], None]]) -> None:
        """Charge a user's share of memory for this session's messages, the next one included."""
        while self._charged <= len(self.session.runs):
            step = max(len(self.session.runs) - self._charged, self._charged // 4, CHARGED)
            self._charges.append(hold(step * MESSAGE))
            self._charged += step

    def let_go(self) -> None:
        """Release the charges of a session that is not used now."""
        for let_go in self._charges:
            let_go()
        self._charges, self._charged = [], CHARGED

    @property
    def is_used(self) -> bool:
        return bool(self.followers or self.working or self.session.active)

    def append(self, events: Sequence[LogEvent]) -> None:
        self.append_lines([event.line for event in events])

    def append_lines(self, lines: Sequence[bytes]) -> None:
        try:
            self.log.append(lines)
        except Fault as fault:
            self.fault = Fault(fault.code, fault.message)
            raise

    def wake(self) -> None:
        for follower, key in self.followers.items():
            follower.stir(key)

    def moved(self, uid: int, cwd: str) -> None:
        """Keep the working directory that this user has chosen, and may use."""
        self._places[uid] = cwd

    def place(self, uid: int) -> str:
        """Returns this user's working directory; in a shared session, none that another user chose."""
        shared = self.address.space.folder.startswith("shared/")
        return self._places.get(uid, "" if shared else self.session.cwd or "")

    # The active run.

    def stop(self, run: str, fault: Fault) -> None:
        """End the active run, for this reason."""
        self._stopped = (run, fault)
        if self._scope:
            self._scope.cancel()

    def decide(self, key: QuestionKey, verdict: Verdict) -> None:
        """Take the decision or answer, so that all later ones are too late. Raises ENOENT or EALREADY."""
        take = self.session.approve if key.kind == APPROVAL else self.session.answer
        take(key.run, key.id)
        if question := self.questions.get(key):
            question.verdict = question.verdict or verdict
            question.settled.set()

    def deny_unheard(self, why: str = LEFT) -> None:
        """Deny the questions that no follower can decide: all who could have left, or send no more."""
        for question_key, question in self.questions.items():
            heard = (
                each.may_decide(key, question_key.run, question.uid) for each, key in self.followers.items()
            )
            if question.is_said and not any(heard):
                self._deny(question_key, why)

    async def verdict(self, key: QuestionKey, seconds: float) -> Verdict:
        """Returns the decision about a question that was sent."""
        question = self.questions[key]
        question.is_said = True
        self.deny_unheard(UNHEARD)
        with trio.move_on_after(seconds):
            await question.settled.wait()
        return question.verdict or self._deny(key, f"no answer came within {seconds:g} s")

    def _deny(self, key: QuestionKey, why: str) -> Verdict:
        verdict = Verdict("deny", None, why)
        if self.questions[key].verdict is None:
            self.decide(key, verdict)
        return verdict

    async def drive(self, run: str, driver: Driver, turn: SessionTurn) -> Fault | None:
        """Let the driver answer. Returns a Fault with the reason if there is no answer, or no whole one."""
        fault = None
        with trio.CancelScope() as scope:
            self._scope = scope
            if self._reason(run):
                scope.cancel()
            fault = await answered(driver, turn)
        self._scope = None
        return (self._reason(run) or Fault("ECANCELED", "")) if scope.cancelled_caught else fault

    def _reason(self, run: str) -> Fault | None:
        return self._stopped[1] if self._stopped and self._stopped[0] == run else None


class ClientView(NamedTuple):
    """The sessions that a client's keys mean. A temp session is its connection's, a private one its user's. A
    user's own agent has no shared sessions."""

    object: ObjectKey
    uid: int
    number: int  # the number of his connection

    @functools.lru_cache(ADDRESSES)  # noqa: B019  # of a tuple: nothing is kept alive but some words
    def address(self, key: SessionKey) -> Address:
        if key.scope == "temp":
            space = Space(f"temp/{key.owner}", self.uid)
        else:
            space = Space.shared() if key.scope == "shared" else Space.private(key.owner)
        return Address(space, *plain(self.object), key.session)  # sessions are kept by the plain name

    def sees(self, live: LiveSession) -> bool:
        key = key_of(live.address)
        if key.scope == "shared" and is_own(self.object):
            return False
        owner = {"private": self.uid, "shared": 0, "temp": self.number}[key.scope]
        return (live.address.class_, live.address.object) == plain(self.object) and key.owner == owner


def key_of(address: Address) -> SessionKey:
    where, _, owner = address.space.folder.partition("/")
    scope: Scope = "private" if where == "home" else "shared" if where == "shared" else "temp"
    return SessionKey(scope, 0 if scope == "shared" else int(owner), address.session)


class SessionTurn:
    """A message that is being answered (models/ask/driver.py)."""

    def __init__(
        self,
        live: LiveSession,
        accepted: AcceptedMessage,
        asker: Asker,
        run: ObjectRun,
        approval_secs: float = APPROVAL_SECS,
    ) -> None:
        self.input: Input = accepted.request.input
        self.uid = asker.uid
        address, cwd = live.address, accepted.request.cwd or live.place(asker.uid)
        folder = () if address.space.folder.startswith("temp/") else live.parts
        self.who = Who(asker.identity, cwd, address.session, folder, address.space.uid, accepted.run)
        self._live = live
        self._id = accepted.run
        self._run = run
        run.bytes_in = len(
            self.input.encode() if isinstance(self.input, str) else msgspec.json.encode(self.input)
        )
        if accepted.request.cwd:
            live.moved(asker.uid, accepted.request.cwd)
        self._approval_secs = approval_secs
        self._in_a_row = 0
        self._unfinished = bytearray()  # the text of the deltas since the last message

    @property
    def session_memory(self) -> dict[str, object]:
        return self._live.memories.setdefault(self.uid, {})

    async def history(self, room: int) -> list[Message]:
        first = self._live.session.runs[self._id].first
        lines = await self._live.log.messages(room, first)
        return [_messages.decode(line) for line in lines]

    async def say(self, *frames: Frame) -> None:
        await self._live.log.room()
        live = self._live
        if all(type(frame) is Delta and len(frame.text) < SHORT for frame in frames):
            texts = [frame.text for frame in frames]  # type: ignore[attr-defined]
            lines = live.session.emit_deltas(self._id, texts)
            self._remember("".join(texts))
        else:
            lines = [event.line for event in live.session.emit(self._id, *frames)]
            for frame in frames:
                if isinstance(frame, Usage):
                    self._run.count(frame)
                elif isinstance(frame, Message):
                    if not self._unfinished:
                        self._run.bytes_out += sum(len(part.text.encode()) for part in frame.content)
                    self._unfinished.clear()
                elif isinstance(frame, Delta):
                    self._remember(frame.text)
        live.append_lines(lines)
        self._in_a_row += len(lines)
        if self._in_a_row < IN_A_ROW:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._in_a_row = 0
            await trio.lowlevel.checkpoint()

    def _remember(self, text: str) -> None:
        data = text.encode(errors="replace")
        self._run.bytes_out += len(data)
        if len(self._unfinished) < MAX_UNFINISHED:
            self._unfinished += data

    def unfinished(self) -> list[Message]:
        """Returns the part of an unfinished answer, as the message that the session keeps."""
        text = self._unfinished.decode()
        return [Message(role="assistant", content=[Text(text)])] if text else []

    async def settled(self) -> None:
        await self._live.log.durable(self._live.session.next - 1)

    async def ask(self, approval: Approval) -> Verdict:
        key = QuestionKey(self._id, APPROVAL, approval.call)
        verdict = await self._decided(key, approval, self._live.session.runs[self._id].asked)
        await self.say(decided(approval, verdict))
        return verdict

    async def question(self, question: Question) -> Verdict:
        key = QuestionKey(self._id, ANSWER, question.question)
        verdict = await self._decided(key, question, self._live.session.runs[self._id].questions)
        await self.say(answer_told(question, verdict))
        return verdict

    async def _decided(self, key: QuestionKey, question: Frame, before: Collection[str]) -> Verdict:
        if key.id in before:
            raise Fault("EPROTO", f"the run has asked for this {key.kind} before, {key.id!r}; use a new id")
        live = self._live
        live.questions[key] = PendingApproval(self.uid)
        try:
            await self.say(question)
            return await live.verdict(key, self._approval_secs)
        finally:
            del live.questions[key]
