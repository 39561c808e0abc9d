"""Runs a talk over its connection while the caller waits: for `ctx send`, and for `ctx chat` in a pipe.

    exchange = Exchange(talk, conversation, show)
    exchange.do(talk.say("hello"))
    exchange.run()                    until nothing runs any more

Rules: a signal is a byte in a pipe, so that it never tears a frame apart: the first Ctrl-C cancels, the
second leaves. If no person can be asked for approval, the call is denied, and a line says what to do. Input
from a pipe is one message, up to its end. So is input that is typed while the output is no terminal. A
terminal without cursor control is read line by line. It takes orders, and questions appear on stderr. Closing
the terminal denies a call, and so does Ctrl-C. A lost connection is opened again for the next message.
This file must never know escape sequences.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from cortexfs.chat import commands
from cortexfs.chat.calls import Show
from cortexfs.chat.commands import ChatPlace, TypedCommand, TypedText
from cortexfs.chat.forms import AskedForm, Filled
from cortexfs.chat.printing import Printer, tolerant
from cortexfs.chat.state import EDIT, Deed, Leave, Talk, answer
from cortexfs.client import Conversation, Failed
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.frames import MAX_LINE, AnyFrame, Approval
from cortexfs.core.safe_text import one_line
from cortexfs.core.talk.requests import Decision, Input

MOST = MAX_LINE + 1  # characters of a message that are read: a longer message could not be sent
UNASKED = (
    "denied, as there is no terminal to ask on; run ctx chat on a terminal, or allow it with "
    "--approve {} of ctx ask or ctx send"
)
UNFILLED = "declined, as there is no terminal to ask on; run ctx chat or ctx ask on a terminal"
ASKING = "y (yes), n (no) or a (always): "


class Interrupts:
    """Counts presses of Ctrl-C. The descriptor also becomes readable after other signals, such as those of a
    progress line; they are no answer to a question."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._count = 0

    def fileno(self) -> int:
        return self._reader

    @property
    def are_there(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._count += os.read(self._reader, 64).count(signal.SIGINT)
        return self._count > 0

    def take(self) -> int:
        count = self._count if self.are_there else 0
        self._count = 0
        return count


def _typed(prompt: str, pressed: Interrupts) -> str | None:
    print(prompt, end="", file=sys.stderr, flush=True)
    while not pressed.are_there:
        ready, _, _ = select.select([sys.stdin, pressed], [], [])
        if sys.stdin in ready and not pressed.are_there:
            if line := sys.stdin.readline():
                return line
            break
    print(file=sys.stderr)  # end the line of the prompt
    return None


def _decided(pressed: Interrupts) -> Decision:
    """Returns the answer of the person at the terminal. Closing the terminal denies, and so does Ctrl-C."""
    while True:
        if (line := _typed(ASKING, pressed)) is None:
            return "deny"
        try:
            reply = answer(line)
            if reply != EDIT:
                return reply
            print("calls are edited in ctx chat, unless TERM is dumb; answer y, n or a", file=sys.stderr)
        except Fault as fault:
            print(fault.message, file=sys.stderr)


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
        approved: Sequence[str] = (),
        is_asked: bool = False,
    ) -> None:
        """`approved` are the names, and patterns, of tools whose calls are allowed. With `is_asked`, a person
        at the terminal decides about other calls, and fills in forms of tools."""
        self._talk = talk
        self._conversation = conversation
        self._show = show
        self._heard = heard
        self._approved = approved
        self._is_asked = is_asked

    def do(self, deeds: Iterable[Deed]) -> None:
        for deed in deeds:
            if isinstance(deed, Show):
                self._show(deed)
            elif isinstance(deed, Leave):
                raise PersonLeft(deed.status)
            else:
                self._conversation.request(deed)

    def run(self, is_over: Callable[[], bool] | None = None) -> None:
        """Run until `is_over`, or until nothing runs any more. Raises Failed if the connection is lost."""
        is_over = is_over or (lambda: not self._talk.busy)
        try:
            with interrupts() as pressed:
                poll = select.poll()
                poll.register(pressed, select.POLLIN)
                poll.register(self._conversation, select.POLLIN)
                while not is_over():
                    if not (heard := self._conversation.waiting()):
                        poll.poll()
                    self._take(heard, pressed)
        except Failed:
            self._show(Show("end"))  # the error message begins a new line
            raise

    def _take(self, heard: list[AnyFrame], pressed: Interrupts) -> None:
        for frame in heard:
            self._heard(frame)
            self.do(self._talk.hear(frame))
        # Decide the open questions of our runs. Questions of other people's runs are theirs to decide.
        for approval in [each for each in self._talk.questions.values() if self._talk.is_ours(each)]:
            decision = self.decision(approval, pressed)
            if decision is None:
                self._show(Show("question", UNASKED.format(one_line(approval.name))))
            self.do(self._talk.decide(decision or "deny", call=approval.call))
        while (form := self._talk.forms.first) and self._talk.is_ours(form.question):
            self.do(self._filled(form, pressed))
        for _ in range(pressed.take()):
            self.do(self._talk.interrupt())

    def decision(self, approval: Approval, pressed: Interrupts) -> Decision | None:
        """Returns the decision about a call, or None if no person can be asked."""
        if any(fnmatchcase(approval.name, each) for each in self._approved):
            return "allow_once"
        if not self._is_asked:
            return None
        while (decision := _decided(pressed)) != "deny" and (unseen := self._talk.unseen(approval.call)):
            for each in unseen:
                self._show(each)
        return decision

    def _filled(self, form: AskedForm, pressed: Interrupts) -> Filled:
        """Returns what to do next about the first open form."""
        if not self._is_asked:
            return [Show("question", UNFILLED), *self._talk.forms.decline()]
        if (line := _typed(form.prompt, pressed)) is None:
            return self._talk.forms.decline()
        try:
            return self._talk.forms.take(line)
        except Fault as fault:
            return [Show("error", fault.message)]

    def cancel(self) -> None:
        """Cancel all that runs: its results are not wanted any more."""
        self.do(deed for deed in self._talk.interrupt() if not isinstance(deed, Show))


@contextlib.contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Count presses of Ctrl-C while this lasts, in place of their usual effect."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handler = signal.signal(signal.SIGINT, lambda number, where: None)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield Interrupts(reader)
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGINT, handler)
        os.close(reader)
        os.close(writer)


class PipedInput:
    def __init__(self, place: ChatPlace, session: str, cwd: str | None) -> None:
        self._place = place
        self._printer = Printer(sys.stdout, sys.stderr)
        tolerant(sys.stdin, "surrogateescape")
        self._is_person = sys.stdin.isatty() and sys.stdout.isatty()
        self._conversation: Conversation | None = None
        self._talk: Talk
        self._enter(session, cwd)

    def run(self) -> int:
        """Run until the end of the input, or until the person leaves. Returns an exit status."""
        try:
            if not self._is_person:  # one message, although a person could type more after Ctrl-D
                if (text := sys.stdin.read(MOST)).strip():
                    self._say(commands.fit(text.rstrip("\r\n")))
                return self._talk.status
            while (text := self._typed()) is not None:
                try:
                    self._take(commands.meaning(text))
                except Fault as fault:
                    self._printer.show(Show("error", fault.message))
            return EXIT_OK
        except PersonLeft as departure:
            return departure.status
        finally:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._conversation:
            self._conversation.close()
            self._conversation = None

    def _enter(self, session: str, cwd: str | None = None) -> None:
        self._talk, past = self._place.enter(session, cwd)
        self._hang_up()
        if self._is_person:
            self._printer.show(Show("note", self._place.greeting))
            for deed in past:
                if isinstance(deed, Show):
                    self._printer.show(deed)

    def _typed(self) -> str | None:
        """Returns the next message, or None at the end of the input."""
        lines, prompt = "", "> "
        while True:
            print(prompt, end="", flush=True)
            if not (line := sys.stdin.readline()):
                print()  # end the line of the prompt
                return lines or None
            line = line.removesuffix("\n")
            if not commands.goes_on(line):
                return lines + line
            lines, prompt = f"{lines}{line[:-1]}\n", "  "

    def _take(self, entry: TypedText | TypedCommand | None) -> None:
        if isinstance(entry, TypedText):
            self._say(self._place.along.with_text(entry.text))
        elif entry and entry.name == "/quit":
            raise PersonLeft(EXIT_OK)
        elif entry:
            outcome = commands.carry_out(self._place, entry)
            for line in outcome.lines:
                self._printer.show(Show("note", line))
            if outcome.session:
                self._enter(outcome.session)
            if outcome.message:
                self._say(outcome.message)

    def _say(self, input_: Input) -> None:
        deeds: list[Deed] = []
        if self._conversation is None:
            self._conversation = self._place.connect()
            deeds = self._talk.back()
        is_asked = self._is_person and sys.stderr.isatty()
        exchange = Exchange(self._talk, self._conversation, self._printer.show, is_asked=is_asked)
        try:
            exchange.do([*deeds, *self._talk.say(input_)])
            exchange.run()
        except Fault:
            self._hang_up()
            raise
