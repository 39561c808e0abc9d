"""The chat without a terminal to draw on: what is read is said, and answers are printed.

Rules: a pipe is one message, up to its end; so is each end that is typed at a terminal whose output goes
elsewhere. A terminal that can do nothing is read line by line, and knows the orders. Nothing is asked
here, and what needs an approval is denied. A connection that was lost is opened again for the next message.
This file must never know escape sequences.
"""

from __future__ import annotations

import sys

from cortexfs.chat import commands, typed
from cortexfs.chat.calls import Show
from cortexfs.chat.commands import ChatPlace
from cortexfs.chat.exchange import Exchange, PersonLeft
from cortexfs.chat.printing import Printer, tolerant
from cortexfs.chat.state import Deed, Talk
from cortexfs.client import Conversation
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.core.frames import MAX_LINE

MOST = MAX_LINE + 1  # characters of a message that are read: more could not be sent


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
        """Until there is no more to read, or a person leaves."""
        try:
            while (text := self._read()) is not None:
                try:
                    self._take(
                        typed.meaning(text)
                        if self._is_person
                        else typed.TypedText(typed.fit(text.rstrip("\r\n")))
                    )
                except Fault as fault:
                    if not self._is_person:
                        raise
                    self._printer.show(Show("error", fault.message))
                if not self._is_person:
                    break  # that was all, though who types it could go on after its end
        except PersonLeft as left:
            return left.status
        finally:
            if self._conversation:
                self._conversation.close()
        return EXIT_OK if self._is_person else self._talk.status

    def _enter(self, session: str, cwd: str | None = None) -> None:
        self._talk, past = self._place.enter(session, cwd)
        if self._conversation:
            self._conversation.close()
            self._conversation = None
        if self._is_person:
            self._printer.show(Show("note", self._place.greeting))
            for deed in past:
                if isinstance(deed, Show):
                    self._printer.show(deed)

    # Reading.

    def _read(self) -> str | None:
        """The next message; None when there is no more."""
        if self._is_person:
            return self._typed()
        text = sys.stdin.read(MOST)
        return text if text.strip() else None

    def _typed(self) -> str | None:
        lines = [self._line("> ")]
        while lines[-1] is not None and typed.goes_on(lines[-1]):
            lines[-1:] = [lines[-1][:-1], self._line("  ")]
        said = [line for line in lines if line is not None]
        return "\n".join(said) if said else None

    def _line(self, prompt: str) -> str | None:
        print(prompt, end="", flush=True)
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None

    # Talking.

    def _take(self, meant: typed.TypedText | typed.TypedCommand | None) -> None:
        if isinstance(meant, typed.TypedText):
            self._say(meant.text)
        elif meant and meant.name == "/quit":
            raise PersonLeft(EXIT_OK)
        elif meant:
            outcome = commands.carry_out(self._place, meant)
            for line in outcome.lines:
                self._printer.show(Show("note", line))
            if outcome.session:
                self._enter(outcome.session)
            if outcome.message:
                self._say(outcome.message)

    def _say(self, text: str) -> None:
        deeds: list[Deed] = []
        if self._conversation is None:
            self._conversation = self._place.connect()
            deeds = self._talk.back()
        exchange = Exchange(self._talk, self._conversation, self._printer.show)
        try:
            exchange.do([*deeds, *self._talk.say(text)])
            exchange.run()
        except Fault:
            self._conversation.close()
            self._conversation = None
            raise
