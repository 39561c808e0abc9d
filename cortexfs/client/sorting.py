"""The frames of one connection, sorted by the requests that they answer.

    inbox = sorter.open(request)           # will keep the frames that answer this request
    line = sorter.encode(request)          # to be written
    sorter.receive(data)                   # any data, whenever it arrives
    inbox.take()                           # the next frame, once `inbox.is_ready`

Rules: frames are kept until they are taken from their inbox, at most MAX_KEPT bytes of them. Over that limit
a reader gets an error before it reads. An inbox without references gets no frames. An event does not name its
session, so a connection follows one session at a time. Its own sends are told apart by their ids.
This file must never know sockets, threads, Trio or time.
"""

from __future__ import annotations

import uuid
import weakref
from collections import deque

from cortexfs.client.results import Failed
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame
from cortexfs.core.talk.protocol import ClientSide
from cortexfs.core.talk.requests import AnyRequest, Cancel, Resume, Send, encode

# Limit of the bytes of waiting frames: far more than a chat needs, far less than a machine has.
MAX_KEPT = 64 << 20


def new_id() -> str:
    """Returns an id that is unique across processes."""
    return uuid.uuid4().hex


class SentMessage:
    """A send of this connection, until its run is over."""

    def __init__(self, request: Send) -> None:
        self.id = request.id
        self.session = (request.scope, request.session)
        self.run: str | None = None


class Inbox:
    """The frames that answer one request. This base class keeps all frames."""

    def __init__(self, id_: str | None = None) -> None:
        self.id = id_  # of the request
        self.run: str | None = None
        self.last: str | None = None  # the newest event id that was taken
        self.fault: Fault | None = None  # why no more frames come
        self.is_over = False  # no more frames come, and that is no error
        self._queue: deque[tuple[AnyFrame, int]] = deque()
        self._bytes_in = 0  # bytes; two counters, as one thread puts while another takes
        self._bytes_out = 0

    @property
    def held(self) -> int:
        return self._bytes_in - self._bytes_out

    @property
    def is_ready(self) -> bool:
        """Returns True if `take` does not have to wait: it has a frame, the end, or a failure."""
        return bool(self._queue) or self.is_settled

    @property
    def is_settled(self) -> bool:
        return self.is_over or self.fault is not None

    def take(self) -> AnyFrame | None:
        """Returns the next frame, or None at the end. Raises Failed when no frame can come any more."""
        if self._queue:
            frame, size = self._queue.popleft()
            self._bytes_out += size
            self.last = frame.id or self.last
            return frame
        if self.fault is not None and not self.is_over:
            raise Failed(self.fault.code, self.fault.message, self.run)
        return None

    def take_kept(self) -> list[AnyFrame]:
        """Returns all frames that are kept. Raises Failed when there are none and none can come any more."""
        first = self.take()
        rest = [self.take() for _ in range(len(self._queue))]
        return [frame for frame in (first, *rest) if frame is not None]

    def put(self, frame: AnyFrame, size: int, sent: SentMessage | None) -> None:
        if not self.is_over and self.wants(frame, sent):
            self._queue.append((frame, size))
            self._bytes_in += size

    def wants(self, frame: AnyFrame, sent: SentMessage | None) -> bool:
        return True

    def is_refused(self, refusal: frames.Error, sent: SentMessage | None) -> bool:
        """Returns True if this refusal answers the request of this inbox."""
        return False

    def stop(self) -> None:
        """Take no more frames, and forget those that were kept."""
        self.is_over = True
        self._bytes_out = self._bytes_in
        self._queue.clear()


class Replies(Inbox):
    """Of a ping: its pong. An approval gets no reply unless it is refused."""

    def wants(self, frame: AnyFrame, sent: SentMessage | None) -> bool:
        self.is_over = self.is_over or (isinstance(frame, frames.Pong) and frame.request == self.id)
        return False

    def is_refused(self, refusal: frames.Error, sent: SentMessage | None) -> bool:
        return refusal.request == self.id


class RunOfSend(Inbox):
    """The frames of the run of one send, up to its done."""

    def __init__(self, sent: SentMessage) -> None:
        super().__init__(sent.id)
        self._sent = sent

    def wants(self, frame: AnyFrame, sent: SentMessage | None) -> bool:
        if sent is not self._sent:
            return False
        self.run = sent.run
        self.is_over = frame.FINAL
        return True

    def is_refused(self, refusal: frames.Error, sent: SentMessage | None) -> bool:
        return sent is self._sent


class SessionEvents(Replies):
    """Every event of one session, without an end."""

    def __init__(self, request: Resume) -> None:
        super().__init__(request.id)
        self.session = (request.scope, request.session)
        self.last = request.after

    def wants(self, frame: AnyFrame, sent: SentMessage | None) -> bool:
        is_event = frame.run is not None and frame.id is not None
        return is_event and (sent is None or sent.session == self.session)


class Ending(Inbox):
    """The done frame of a run to be cancelled. `id` is the id of the run, or of the send that began it."""

    def __init__(self, id_: str, is_ours: bool, is_alone: bool) -> None:
        super().__init__(id_)
        self._is_ours = is_ours
        self._is_alone = is_alone  # no events of other runs are expected

    def wants(self, frame: AnyFrame, sent: SentMessage | None) -> bool:
        if not isinstance(frame, frames.Done):
            return False
        self.is_over = self.id in (frame.run, sent.id if sent else None) or (
            # the id of a send from another connection does not tell the run
            sent is None and not self._is_ours and (self._is_alone or frame.status == "cancelled")
        )
        return self.is_over

    def is_refused(self, refusal: frames.Error, sent: SentMessage | None) -> bool:
        return sent is None and refusal.request == self.id


class Sorter:
    """The client's side of one connection."""

    def __init__(self, name: str) -> None:
        self._name = name  # the peer's name, for error messages
        self._client = ClientSide()
        self._inboxes: weakref.WeakSet[Inbox] = weakref.WeakSet()
        self._sends: dict[str, SentMessage] = {}
        self._runs: dict[str, SentMessage] = {}
        self._carried = 0  # bytes of a frame that is not whole yet
        self._parting: Fault | None = None  # the last error that belonged to no request
        self.fault: Fault | None = None  # why this connection cannot be used any more

    def encode(self, request: AnyRequest) -> bytes:
        """Returns the request as a line. Raises Failed when it cannot be encoded."""
        try:
            return encode(request)
        except Fault as fault:
            raise Failed(fault.code, fault.message) from None
        except UnicodeEncodeError:
            raise Failed("EINVAL", "the request has text that is not UTF-8") from None
        except (TypeError, ValueError, RecursionError) as problem:
            raise Failed("EINVAL", f"the request cannot be written as JSON: {problem}") from None

    def open(self, request: AnyRequest | None = None) -> Inbox:
        """Keep the frames that answer this request, which is about to be written. Without one, keep all."""
        inbox: Inbox
        follows = any(isinstance(each, SessionEvents) and not each.is_settled for each in self._inboxes)
        if request is None:
            inbox = Inbox()
        elif isinstance(request, Send):
            if request.id in self._sends:
                why = f"the send {request.id} is under way in this conversation"
                raise Failed("EBUSY", f"{why}; read its frames there")
            inbox = RunOfSend(self.note(request))
        elif isinstance(request, Resume):
            if follows:
                raise Failed("EBUSY", "this conversation follows a session already; open another one")
            inbox = SessionEvents(request)
        elif isinstance(request, Cancel):
            inbox = Ending(request.id, request.id in self._sends, not follows)
        else:
            inbox = Replies(request.id)
        inbox.fault = self.fault
        self._inboxes.add(inbox)
        return inbox

    def note(self, request: Send) -> SentMessage:
        """Remember this send, so that its run is recognized when it begins."""
        if request.id is None:
            return SentMessage(request)
        return self._sends.setdefault(request.id, SentMessage(request))

    def check(self) -> None:
        """Raises Failed when this connection cannot be used any more."""
        if self.fault is not None:
            raise Failed(self.fault.code, self.fault.message)

    def check_room(self) -> None:
        """Call this before reading. Raises Failed while too many received frames wait to be taken."""
        if sum(inbox.held for inbox in self._inboxes) >= MAX_KEPT:
            why = f"{MAX_KEPT >> 20} MiB of frames wait for other iterators; read or close those"
            raise Failed("ENOBUFS", why)

    def receive(self, data: bytes) -> None:
        """Sort received data. Empty data means that the other side has closed the connection."""
        if not data:
            why = "its daemon ended, or you have too many connections; see: ctx status"
            lost = Fault("EHOSTDOWN", f"the connection to {self._name} is lost: {why}")
            self.end(self._parting or lost)
            return
        self._carried += len(data)
        try:
            heard = self._client.receive(data)
        except Fault as fault:
            self.end(Fault(fault.code, f"{self._name}: {fault.message}; see: ctx doctor"))
            return
        for frame in heard:
            self._put(frame, self._carried // len(heard))
        self._carried = 0 if heard else self._carried

    def end(self, fault: Fault) -> None:
        """End the connection. Frames that were kept can still be taken; then each inbox raises the fault."""
        self.fault = self.fault or fault
        for inbox in list(self._inboxes):
            inbox.fault = inbox.fault or self.fault

    def close(self) -> None:
        """End the connection from this side. For inboxes that follow a session, this is no failure."""
        self.end(Fault("ECANCELED", "this conversation was closed"))
        for inbox in list(self._inboxes):
            inbox.is_over = inbox.is_over or isinstance(inbox, SessionEvents) or type(inbox) is Inbox

    def _put(self, frame: AnyFrame, size: int) -> None:
        sent = self._sent(frame)
        for inbox in list(self._inboxes):
            inbox.put(frame, size, sent)
        if isinstance(frame, frames.Error) and frame.run is None:
            self._refuse(frame)
        if sent is not None and frame.FINAL:
            self._forget(sent)

    def _sent(self, frame: AnyFrame) -> SentMessage | None:
        """Returns the send of this connection to whose run the frame belongs."""
        if frame.run is None:
            return None
        # A run whose session could not be written has no start frame.
        if isinstance(frame, frames.Start | frames.Error) and frame.request in self._sends:
            sent = self._sends[frame.request]
            sent.run = frame.run
            self._runs[frame.run] = sent
        return self._runs.get(frame.run)

    def _refuse(self, refusal: frames.Error) -> None:
        fault = Fault(refusal.code, refusal.message)
        if refusal.request is None:
            self._parting = fault
            return
        sent = self._sends.get(refusal.request)
        if sent and (sent.run or refusal.code == "EALREADY"):
            sent = None  # the refusal is for a cancel by the id of a send, not for the send
        for inbox in list(self._inboxes):
            if inbox.is_refused(refusal, sent):
                inbox.fault = fault
        if sent is not None:
            self._forget(sent)

    def _forget(self, sent: SentMessage) -> None:
        if sent.id is not None and self._sends.get(sent.id) is sent:
            del self._sends[sent.id]
        if sent.run is not None:
            self._runs.pop(sent.run, None)
