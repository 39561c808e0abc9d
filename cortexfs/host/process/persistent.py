"""A warm child: one process that answers many calls, told apart by ids, in lines over two pipes.

Main path: `_begin` writes a request, in its caller's thread if the pipe takes it at once. The child's lines
are sorted by ids into its calls. The reader is the child's own thread (`_serve`), or a waiting call that
leads (pipe_reader.py). So no call waits for another.

Rules: ids are never reused, so late lines for an ended call are recognized and bounded. A child has
LET_GO_SECONDS to end a cancelled call. If it does not, it gets no new calls, and is killed when its others
have ended. A wrong line ends the child and its calls, not the thread that read it.
This file must never know what a line says, nor what a call is for.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.host.call.runtime import sentence
from cortexfs.host.process import children
from cortexfs.host.process.one_shot import status_text
from cortexfs.host.process.pipe_reader import CHUNK, ChildLines, Errors, Leading, LeadingCall, Outbox
from cortexfs.tools.support.locked import locked
from cortexfs.tools.support.process_groups import Waker

LET_GO_SECONDS = 0.5  # a cancelled run must end within a second
ROOM = 64 << 10  # for JSON around a text, and for characters that JSON writes as six
_END_SECONDS = 0.2  # from the end of its output to its own, for a child that exits
_LAST_READS = 16  # enough for a pipe of 1 MiB, the largest that a user may have

_encode = msgspec.json.Encoder().encode


S = TypeVar("S")  # a decoded line


class ChildCall(LeadingCall[S | Fault]):
    """One call, and the child's lines for it that were not yet passed on."""

    def __init__(self, most: int, over: str, late: str, nudge: Callable[[], None] = lambda: None) -> None:
        """At most `most` bytes are kept; more end the call with message `over`. `late` is a timeout's."""
        super().__init__(nudge)
        self.ended = False  # the child has sent its last line for it
        self._most, self._over, self._late = most, over, late
        self._size = 0

    def put(self, item: S | Fault, size: int = 0) -> None:
        """Called by the reader of the child. Lines over the limit are dropped."""
        if self._size > self._most:
            return
        self._size += size
        self.items.put(Fault("EIO", self._over) if self._size > self._most else item)

    def next(self, until: float | None) -> S:
        try:
            item = self.items.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise sdk.ExecutionFailed(self._late, "ETIMEDOUT") from None
        if isinstance(item, Fault | sdk.ExecutionFailed):
            raise item
        return item


C = TypeVar("C", bound=ChildCall[Any])
Start: TypeAlias = "queue.SimpleQueue[OSError | Fault | None]"


class Warm(ABC, Generic[C]):
    """The process, its thread, and its unanswered calls. A subclass says how a child starts (`_spawn`), how
    its lines are read (`_hear`), and what its calls get when it ends (`_tell`).

    Its attributes are shared by that thread and those of the calls, so they are behind one lock.
    """

    BLAME: ClassVar[str] = ""  # the beginning of the sentence that says why it was ended
    BACKLOG: ClassVar[int | None] = None  # bytes that may wait to be read; None: no limit but its calls'

    def __init__(self, most: int, limit: str) -> None:
        """At most `most` bytes may be in a line, and in late lines. `limit` is this limit in words."""
        self._most, self._limit = most, limit
        self._lock = threading.Lock()
        self._running = self._closing = False
        self._calls: dict[int, C] = {}
        self._owed: dict[int, float] = {}  # cancelled calls, and when they must have ended
        self._last = 0
        self._lines = ChildLines()
        self._ignored = 0
        self._broken = ""  # why its lines are not read any more
        self._is_mute = False
        self._waker = Waker()
        self._child = children.ChildProcess()
        self._outbox = Outbox(self._child.stdin)
        self._errors = Errors(self._child.stderr)
        self._look = select.epoll()
        self._leading = Leading(self._child.stdout, self._look, self._read_safely)

    @abstractmethod
    def _spawn(self) -> None:
        """Start the child, called in its thread. Raises OSError or Fault if it does not start."""

    @abstractmethod
    def _hear(self, line: bytes) -> None:
        """Handle one line of the child. Raises Fault with the mistake in a wrong line."""

    @abstractmethod
    def _tell(self, why: str, ending: str, calls: list[C]) -> None:
        """The child has ended before these calls. `ending` is the end of the sentence that `why` begins."""

    def _give_up(self, overdue: list[int]) -> None:
        """The child did not end these cancelled calls in time."""

    # -- from threads of calls, which a cancellation may strike at any instruction

    @property
    def is_open(self) -> bool:
        return self._running and not self._closing

    def close(self) -> None:
        """End the child when its calls have ended."""
        with self._lock:
            self._closing = True
        self._waker.wake()

    def _start(self) -> OSError | Fault | None:
        """Start the child. Returns why it does not start; None if it does."""
        answer: Start = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(answer,), daemon=True).start()
        return answer.get()

    def _begin(self, call: C, request: dict[str, Any]) -> bool:
        """Returns True if the child takes the call. False: it has ended since the caller looked."""
        return locked(self._lock, partial(self._add_call, call, request))

    def _add_call(self, call: C, request: dict[str, Any]) -> bool:
        if not self.is_open:
            return False
        self._last += 1
        call.id = self._last
        self._calls[call.id] = call
        self._put({"id": call.id} | request)
        return True

    def _put(self, message: dict[str, Any]) -> None:
        if not self._outbox.put(_encode(message) + b"\n"):
            self._waker.wake()

    def _leave(self, call: C) -> None:
        """The call is over for its caller. May be repeated."""
        locked(self._lock, partial(self._remove_call, call))

    def _remove_call(self, call: C) -> None:
        if call.id not in self._calls:
            return
        if not call.ended:
            self._owed[call.id] = time.monotonic() + LET_GO_SECONDS
            self._put({"cancel": call.id})
        if not call.ended or self._closing:
            self._waker.wake()
        del self._calls[call.id]

    # -- the child's thread

    def _run(self, answer: Start) -> None:
        try:
            self._spawn()
        except (OSError, Fault) as error:
            self._leading.stop()
            self._close()
            answer.put(error)
            return
        process = self._child.process
        assert process is not None
        for file in (self._child.stdout, self._errors.file, process, self._waker.file):
            self._look.register(file, select.EPOLLIN)
        self._running = True
        answer.put(None)
        why = "ended"
        try:
            why = self._serve()
        except Fault as fault:
            why = self.BLAME + fault.message
        except Exception as error:  # a bug of ours: it ends this child and its calls, not the host
            why = f"could not be served: {sentence(error)}"
        finally:
            self._end(why)

    def _serve(self) -> str:
        """Sort the child's lines until it is of no more use. Returns why it is not."""
        while not self._broken:
            readable, has_ended = self._wait()
            if readable:
                self._leading.turn()
            if self._is_mute:
                return "ended" if has_ended or self._child.ends_within(_END_SECONDS) else "closed its output"
            if has_ended:
                self._leading.stop()
                self._child.kill()  # nobody reads what other holders of its output write
                for _ in range(_LAST_READS):
                    if not self._read():
                        break
                return "ended"
            with self._lock:
                if self.BACKLOG is not None and len(self._outbox.waiting) > self.BACKLOG:
                    raise Fault("EPROTO", "does not read its requests")
                self._outbox.write()
                now = time.monotonic()
                if overdue := [call for call, due in self._owed.items() if due <= now]:
                    self._closing = True
                    self._give_up(overdue)
                    self._owed.clear()
                    self._leading.nudge()
                if self._closing and not self._calls:
                    return "was closed by its host"
        return self._broken

    def _wait(self) -> tuple[bool, bool]:
        """Wait. Returns two booleans: there is output to read, and the child is gone."""
        process = self._child.process
        assert process is not None
        with self._lock:
            waits = bool(self._outbox.waiting)
            due = min(self._owed.values(), default=None)
        if waits:
            self._look.register(self._child.stdin, select.EPOLLOUT)
        timeout = None if due is None else max(0.0, due - time.monotonic()) + 0.001
        ready = {fd for fd, _ in self._look.poll(timeout)}
        if waits:
            self._look.unregister(self._child.stdin)
        if self._errors.file.fileno() in ready and not self._errors.pass_on():
            self._look.unregister(self._errors.file)
        if self._waker.file.fileno() in ready:
            os.eventfd_read(self._waker.file.fileno())
        return self._child.stdout.fileno() in ready, process.fileno() in ready

    # -- called by the reader: the child's thread, or a call that leads

    def _read_safely(self) -> bool:
        try:
            return self._read()
        except Fault as fault:
            self._broken = self.BLAME + fault.message
        except Exception as error:  # a bug of ours: it ends this child and its calls, not the host
            self._broken = f"could not be served: {sentence(error)}"
        self._waker.wake()
        return False

    def _read(self) -> bool:
        if (data := self._child.stdout.read(CHUNK)) is None:
            return False
        for line in self._lines.ended_by(data):
            self._hear(line)
        if self._lines.held > self._most:
            raise Fault("EPROTO", f"wrote a line of over {self._limit}")
        self._is_mute = not data
        return bool(data)

    def _sort(self, id_: int, line: object, size: int, is_last: bool) -> None:
        """Pass a line to its call. Called with the lock held."""
        call = self._calls.get(id_)
        if call is not None and not call.ended:
            call.ended = is_last
            call.put(line, size)
            return
        # For an ended call. Any amount may come within LET_GO_SECONDS; later amounts are bounded.
        if id_ not in self._owed:
            self._ignored += size
        if is_last:
            self._owed.pop(id_, None)
            if not self._owed:
                self._ignored = 0
        if self._ignored > self._most:
            raise Fault("EPROTO", "keeps sending lines for cancelled calls")

    def _end(self, why: str) -> None:
        self._child.kill()
        self._leading.stop()
        ending = self._errors.end()
        with self._lock:
            self._closing = True
            calls, self._calls = [*self._calls.values()], {}
            self._close()
        if why == "ended":
            why = f"ended with {status_text(self._child.status)}"
        self._tell(why, ending, [call for call in calls if not call.ended])

    def _close(self) -> None:
        self._child.end()
        self._waker.close()
        self._look.close()
