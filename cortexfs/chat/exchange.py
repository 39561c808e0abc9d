"""A talk over its connection, for whoever does nothing else meanwhile: `ctx send`, and `ctx chat` in a pipe.

    with Exchange(talk, conversation, show) as exchange:
        exchange.do(talk.say("hello"))
        exchange.run()                    until nothing runs any more

Rules: a signal is a byte in a pipe, so that it never tears a frame apart: the first Ctrl-C cancels, the
second leaves. What asks for approval where nobody can be asked is denied, and the person told what to do.
This file must never know who prints.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from cortexfs.chat.calls import Show
from cortexfs.chat.state import Deed, Leave, Talk
from cortexfs.client import Conversation, Failed
from cortexfs.core.frames import AnyFrame, Approval
from cortexfs.core.safe_text import one_line
from cortexfs.core.talk.requests import Decision

UNASKED = "denied, as nobody can be asked here; ctx chat on a terminal asks, ctx send --approve {} allows"

# What is decided about a call; None where nobody can be asked. The descriptor can be read after Ctrl-C.
Decide: TypeAlias = Callable[[Approval, int], Decision | None]


class PersonLeft(Exception):
    """The person leaves before the end."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Exchange:
    def __init__(
        self,
        talk: Talk,
        conversation: Conversation,
        show: Callable[[Show], None],
        *,
        heard: Callable[[AnyFrame], None] = lambda frame: None,
        decide: Decide = lambda asked, pipe: None,
    ) -> None:
        self._talk = talk
        self._conversation = conversation
        self._show = show
        self._heard = heard
        self._decide = decide

    def do(self, deeds: Iterable[Deed]) -> None:
        for deed in deeds:
            if isinstance(deed, Show):
                self._show(deed)
            elif isinstance(deed, Leave):
                raise PersonLeft(deed.status)
            else:
                self._conversation.request(deed)

    def run(self, is_over: Callable[[], bool] | None = None) -> None:
        """Until then, or until nothing runs any more; Failed when the connection is lost."""
        is_over = is_over or (lambda: not self._talk.busy)
        try:
            with interrupts() as pipe:
                self._listen(pipe, is_over)
        except Failed:
            self._show(Show("end"))  # what is said of it begins a line of its own
            raise

    def _listen(self, pipe: int, is_over: Callable[[], bool]) -> None:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        poll.register(self._conversation, select.POLLIN)
        while not is_over():
            if not (heard := self._conversation.waiting()):
                poll.poll()
            for frame in heard:
                self._heard(frame)
                self.do(self._talk.hear(frame))
            self._decide_all(pipe)
            for _ in taken(pipe):
                self.do(self._talk.interrupt())

    def cancel(self) -> None:
        """Nobody wants what runs any more."""
        self.do(deed for deed in self._talk.interrupt() if not isinstance(deed, Show))

    def _decide_all(self, pipe: int) -> None:
        """Answers the questions of our runs that nothing has settled since; the questions of others are
        theirs."""
        for asked in [each for each in self._talk.questions.values() if self._talk.is_ours(each)]:
            decision = self._decide(asked, pipe)
            if decision is None:
                self._show(Show("question", UNASKED.format(one_line(asked.name))))
            self.do(self._talk.decide(decision or "deny", call=asked.call))


@contextlib.contextmanager
def interrupts() -> Iterator[int]:
    """A descriptor that can be read when Ctrl-C was pressed, instead of what would happen then."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handler = signal.signal(signal.SIGINT, lambda number, where: None)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler)
        os.close(reader)
        os.close(writer)


def taken(pipe: int) -> bytes:
    """The interrupts since we looked."""
    try:
        return os.read(pipe, 64)
    except BlockingIOError:
        return b""
