"""One client of a `.sock`: reads its requests, and sends it the sessions that it follows (abi.md 5).

Main path: `_hear` turns bytes into requests and answers them; `_tell` reads the logs of the followed
sessions, each from this client's place in it, and sends whole lines. A client that has got everything so far
gets the next events by `stir`, without a turn of the loop.

Rules: at most one piece of a log is sent at a time, and the next request is read when the answers to the last
ones are under way. So a client that does not read costs a piece and its answers, and delays only itself. A
client that closes its sending side gets the rest of its runs, and is then let go. The sender of each message
is the user who connected. Nothing here touches a path for him: his host does.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Key as ObjectKey
from cortexfs.core.registry import is_own
from cortexfs.core.talk import requests
from cortexfs.core.talk.approvals import answer_by, by
from cortexfs.core.talk.protocol import Subscriptions
from cortexfs.core.talk.requests import Approve, Cancel, Ping, Refusal, Respond, Resume, Send, SessionKey
from cortexfs.core.talk.session import LogEvent
from cortexfs.peers.guests import Guests
from cortexfs.pool.people import People
from cortexfs.sessions.log import READ
from cortexfs.talk.conversations import Conversations
from cortexfs.talk.session import ANSWER, APPROVAL, Asker, ClientView, LiveSession, QuestionKey, key_of
from cortexfs.talk.stream import ANSWERS, CheckCwd, Hearing, Saying

FOLLOWED = 8 << 10  # bytes of a session in memory, and of a connection's place in it; measured: 6 KiB

_numbers = itertools.count(1)


class Connection:
    """One connection to a `.sock`, and the sessions that it follows.

    Its attributes are the state of each of these sessions for this client: followed, held, sent up to, with
    something to send. They change together.
    """

    def __init__(
        self,
        conversations: Conversations,
        object_key: ObjectKey,
        stream: socket.socket,
        identity: Identity,
        guests: Guests,
        people: People,
        check_cwd: CheckCwd,
    ) -> None:
        self._conversations = conversations
        self._identity = identity
        self._uid = uid = identity.uid
        self._guests = guests
        self._people = people
        self._check_cwd = check_cwd
        self._sight = ClientView(object_key, uid, next(_numbers))
        self._hearing = Hearing(stream, uid, guests)
        self._saying = Saying(stream, self.wake)
        self._subscriptions = Subscriptions()
        self._lives: dict[SessionKey, LiveSession] = {}
        self._let_go: dict[SessionKey, Callable[[], None]] = {}  # release the memory of requested sessions
        self._places: dict[SessionKey, tuple[int, int]] = {}  # of the next event: its number, its offset
        self._stirred: dict[SessionKey, None] = {}  # sessions that may have events to send
        self._woken = trio.Event()
        self._rests = False  # all events so far have been sent
        self._room: Callable[[], None] | None = None  # releases the room for a long line that is being sent
        self._says_no_more = False  # the client has closed its sending side, and all its requests are read

    async def serve(self) -> None:
        """Run until the client leaves."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, nursery.cancel_scope)
                await self._tell()
                if self._says_no_more:
                    nursery.cancel_scope.cancel()
        finally:
            self._leave()

    def let_go(self) -> None:
        """Read no more requests, and end when all events so far have been sent."""
        self._says_no_more = True
        self.wake()

    def _leave(self) -> None:
        self._hearing.close()
        self._saying.give_up()
        self._leave_room()
        for key, live in self._lives.items():
            live.followers.pop(self, None)
            if key.scope == "temp":
                self._conversations.end_temp(live)
            else:
                live.deny_unheard()
                self._conversations.retire(live)
        for key, let_go in self._let_go.items():
            let_go()
            if key.scope == "temp":  # also sessions that were lost, which have no live session
                self._conversations.sessions.remove_temp(self._sight.address(key))

    # Hearing.

    async def _hear(self, scope: trio.CancelScope) -> None:
        try:
            data = b"more"
            while data:
                data = await self._hearing.received()
                for line in self._hearing.lines.feed(data):
                    await self._answer(await self._hearing.understood(line))
                    if len(self._saying.unsent) > ANSWERS:
                        await self._saying.answers_gone()
                if refusal := self._hearing.keep():
                    self._saying.say(refusal)
            self.let_go()
            for live in self._lives.values():
                live.deny_unheard()
            if not self._saying.hears_nothing:
                await self._hearing.gone()
        except OSError:
            pass
        scope.cancel()

    async def _answer(self, heard: requests.AnyRequest | Refusal) -> None:
        if isinstance(heard, Refusal):
            self._saying.say(heard)
            return
        try:
            await _ANSWERS[type(heard)](self, heard)
        except Fault as fault:
            self._saying.say(requests.refusal(fault, heard.id))

    def _asker(self, size: int) -> Asker:
        """Returns the sender of a message, who stays known and bears its memory until it is answered."""
        held = self._guests.hold(self._uid, size)
        let_go = self._people.outlast(self._identity)

        def over() -> None:
            held()
            let_go()

        return Asker(self._identity, over, self._sight.object)

    async def _ping(self, request: Ping | requests.Take) -> None:
        if isinstance(request, requests.Take):
            await self._conversations.take(self._sight, request)
        self._saying.say(frames.Pong(request=request.id))

    async def _send(self, request: Send) -> None:
        key = SessionKey.of(request, self._uid, self._sight.number)
        is_followed = self._admit(key)
        asker = self._asker(requests.weight(request.input))
        try:
            await self._conversations.admit(self._sight.address(key))
            live = await self._open(key)
            if request.id is None or not live.session.find(request.id):  # no retry
                if request.cwd is not None:
                    await self._check_cwd(request.cwd)
                    live = await self._open(key)  # the session may have been removed meanwhile
                live.log.check_share()
            if not is_followed:  # a followed session has its place already
                self._places[key] = live.session.next, live.log.end_place
            new = self._conversations.new_run()
            run, events = live.session.send(request, new)
        except BaseException:  # a cancellation, too, goes on; the sender's memory is released first
            asker.over()
            raise
        if run == new:
            live.askers[run] = asker
        else:
            asker.over()
        for frame in self._subscriptions.answer(key, live.session, run):
            self._saying.say(frame)
        self._begin(live, events)
        if run != new:
            self.stir(key)

    async def _resume(self, request: Resume) -> None:
        key = SessionKey.of(request, self._uid, self._sight.number)
        self._admit(key)
        live = await self._open(key)
        self._subscriptions.follow(key, live.session.position(request.after))
        self.stir(key)

    async def _cancel(self, request: Cancel) -> None:
        async with self._guests.turn(self._uid):  # it may have to search every session of this user
            try:
                live, run = self._conversations.find(request.id, self._sight.sees, self)
            except Fault:
                if await self._conversations.runs.has_ended(*self._sight.object, self._uid, request.id):
                    raise Fault("EALREADY", f"the run {request.id} is over") from None
                raise
            key = key_of(live.address)
            self._admit(key)
            start = live.session.next
            events = live.session.cancel(run)
            self._follow(key, live)
            self._subscriptions.follow_run(key, run, start)
            if events:
                live.askers.pop(run).over()
            self._begin(live, events)
            if live.session.active and live.session.active.run == run:
                live.stop(run, Fault("ECANCELED", ""))

    async def _approve(self, request: Approve) -> None:
        live, run = await self._asking(request.run)
        live.decide(QuestionKey(run, APPROVAL, request.call), by(self._uid, request.decision, request.input))

    async def _answer_tool(self, request: Respond) -> None:
        live, run = await self._asking(request.run)
        live.decide(QuestionKey(run, ANSWER, request.question), answer_by(self._uid, request.content))

    async def _asking(self, id_: str) -> tuple[LiveSession, str]:
        """Returns the run that asks a question. Raises EPERM if it asks another user."""
        async with self._guests.turn(self._uid):
            live, run = self._conversations.find(id_, self._sight.sees, self)
            if (asker := live.askers.get(run)) and asker.uid != self._uid:
                raise Fault("EPERM", "run: belongs to another user, and only that user may decide")
            return live, run

    def _begin(self, live: LiveSession, events: list[LogEvent]) -> None:
        try:
            live.append(events)
            self._conversations.start(live)
        except Fault as fault:
            self._conversations.lose(live, fault)

    # Sessions.

    def _admit(self, key: SessionKey) -> bool:
        """Returns True if a session is followed already. Raises EAGAIN if too many sessions are in use."""
        if key.scope == "shared" and is_own(self._sight.object):
            raise Fault("EINVAL", "scope: your own objects have no shared sessions; choose private or temp")
        is_followed = self._subscriptions.admit(key)
        if key not in self._let_go:
            self._let_go[key] = self._guests.hold(self._uid, FOLLOWED)
        return is_followed

    async def _open(self, key: SessionKey) -> LiveSession:
        """Returns the session, which is followed from now on; `lost` is called if it is lost."""
        live = await self._conversations.open(self._sight.address(key), temp=key.scope == "temp")
        try:
            live.charge(lambda size: self._guests.hold(self._uid, size))
        except Fault:
            self._conversations.retire(live)
            raise
        self._follow(key, live)
        return live

    def _follow(self, key: SessionKey, live: LiveSession) -> None:
        live.followers[self] = key
        self._lives[key] = live

    def lost(self, live: LiveSession, fault: Fault) -> None:
        """End a lost session's runs for the client. If the session itself goes on, it is opened again."""
        key = key_of(live.address)
        live.followers.pop(self, None)
        self._places.pop(key, None)
        del self._lives[key]
        self._abandon(key, live, fault)
        if live.log.ended or key.scope == "temp":
            self._forget(key, fault)
        self.stir(key)

    def may_decide(self, key: SessionKey, run: str, uid: int) -> bool:
        return uid == self._uid and not self._says_no_more and self._subscriptions.hears(key, run)

    def _abandon(self, key: SessionKey, live: LiveSession | None, fault: Fault) -> None:
        """End the followed runs of the session for the client, without event ids."""
        for run in self._subscriptions.abandon(key):
            request = live.session.runs[run].request if live else None
            message = requests.refusal(fault).message
            self._saying.say(frames.Error(run=run, request=request, code=fault.code, message=message))
            self._saying.say(frames.Done(run=run, status="error", code=fault.code))

    def _forget(self, key: SessionKey, fault: Fault) -> None:
        if self._subscriptions.follows(key):  # by a resume, which has no other answer
            self._saying.say(requests.refusal(fault))
        self._subscriptions.forget(key)

    # Telling.

    def stir(self, key: SessionKey) -> None:
        """Called when there may be events to send of this session."""
        if not (self._rests and self._told_at_once(key)):
            self._stirred[key] = None
            self.wake()

    def wake(self) -> None:
        self._rests = False
        self._woken.set()

    async def _tell(self) -> None:
        """Send until the client is gone. After the client has closed its sending side, send the rest of its
        runs and the present events of the sessions that it resumed."""
        try:
            while True:
                self._woken = trio.Event()
                await self._saying.drain()
                if await self._send_more():
                    continue
                is_awaited = self._subscriptions.awaits_runs or self._saying.unsent or self._woken.is_set()
                if self._says_no_more and not is_awaited:
                    return
                self._rests = not self._woken.is_set()
                await self._woken.wait()
        except OSError:
            self._saying.give_up()

    async def _send_more(self) -> bool:
        """Send a piece of each log that has more. Returns True if there was one."""
        found = False
        for key in list(self._stirred):
            del self._stirred[key]
            try:
                if await self._send_of(key):
                    self._stirred[key] = None
                    found = True
            except Fault as fault:
                self._abandon(key, self._lives.get(key), fault)
                self._forget(key, fault)
            await self._saying.drain()
            self._leave_room()
        return found

    def _leave_room(self) -> None:
        if self._room:
            self._room()
            self._room = None

    async def _send_of(self, key: SessionKey) -> bool:
        """Send a piece of a log. Returns True if there may be more. A long line waits until few enough of
        them are on their way to this user, as he may never read it."""
        while (found := await self._try_to_send(key)) is None:
            self._room = await self._guests.room(self._uid)
        return found

    async def _try_to_send(self, key: SessionKey) -> bool | None:
        if not self._subscriptions.follows(key):
            return False
        live = self._lives.get(key) or await self._open(key)
        due = self._subscriptions.due(key, live.session.last)
        if not due:
            return False
        number, offset = self._places.get(key, (0, 0))
        if number != due.start:
            offset = await live.log.place(due.start)
        data = await live.log.lines(offset)
        if len(data) > READ and not self._room:
            return None
        now = self._subscriptions.due(key, live.session.last)
        if self._lives.get(key) is not live or now.start != due.start:
            return True  # a request came meanwhile
        if not data:
            self._places[key] = (due.start, offset)
            return False
        self._pass_on(key, live, now, offset, data)
        await trio.lowlevel.checkpoint()
        return True

    def _told_at_once(self, key: SessionKey) -> bool:
        """Send new events at a log's end if that needs no turn of the loop. Returns True if all are sent."""
        live, (number, offset) = self._lives.get(key), self._places.get(key, (0, 0))
        if live is None or not self._subscriptions.follows(key):
            return False
        due = self._subscriptions.due(key, live.session.last)
        try:
            if due.start != number or not (data := live.log.lines_at_hand(offset)):
                return False
            self._pass_on(key, live, due, offset, data)
        except (Fault, OSError):  # `_tell` meets it again
            return False
        return self._places[key][1] == live.log.visible and not self._says_no_more

    def _pass_on(self, key: SessionKey, live: LiveSession, due: range, offset: int, data: bytes) -> None:
        """Send the wanted lines of these, and remember the client's new place."""
        lines, done = self._subscriptions.take_lines(key, due, data)
        self._places[key] = (self._subscriptions.due(key, live.session.last).start, offset + done)
        self._saying.pass_on(lines)


_ANSWERS: dict[type, Callable[[Connection, Any], Awaitable[None]]] = {
    Send: Connection._send,
    Resume: Connection._resume,
    Cancel: Connection._cancel,
    Approve: Connection._approve,
    Respond: Connection._answer_tool,
    Ping: Connection._ping,
    requests.Take: Connection._ping,
}
