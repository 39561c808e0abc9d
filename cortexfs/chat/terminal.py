"""The chat on a terminal: messages scroll by above a line in which the person can type at any time.

Main path: `_hear` takes frames in, `Talk` returns what to do about them, `_do` does it. `_draw` prints the
lines that can no longer change, and has the rest drawn above the input line.

Rules: nothing but `_draw` prints, so output and input line never mix. Frames that arrive faster than they can
be shown stay in the socket. A lost connection is no end: it is opened again, and nothing is shown twice.
This file must never know the meaning of a frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.output.color_depth import ColorDepth

from cortexfs.chat import calls, commands, waiting
from cortexfs.chat.calls import Kind, Show
from cortexfs.chat.commands import ChatPlace, TypedCommand, TypedText
from cortexfs.chat.forms import AskedForm
from cortexfs.chat.keys import Deeds, History, Orders, bindings
from cortexfs.chat.markdown import MarkdownStream, Style
from cortexfs.chat.printing import marked, styled, uttered
from cortexfs.chat.state import ANSWERS, EDIT, Deed, Leave, answer
from cortexfs.client import Conversation
from cortexfs.core.errors import Fault, exit_status
from cortexfs.core.frames import Approval
from cortexfs.core.talk.requests import Input

TICK = 0.08  # seconds between drawings: fast enough to read along, slow enough to cost nothing
RETRY = 0.5  # seconds between attempts to connect
BELOW = 6  # rows that are left for the input line when an answer is drawn
ASKING = "[y]es [n]o [a]lways [e]dit: "
EDITING = "edit; Enter allows it so, Ctrl-C goes back: "
ENDS = (signal.SIGTERM, signal.SIGHUP)


class Terminal:
    """The screen of a chat.

    Its attributes are the state of the screen and of the input line, which the two tasks of the screen share.
    """

    def __init__(
        self,
        place: ChatPlace,
        session: str,
        cwd: str | None,
        history: History,
        colour: bool,
        reach: Callable[[], None],
    ) -> None:
        self._place = place
        self._reach = reach  # raises a Fault while the mount does not answer
        self._colour = colour
        self._conversation: Conversation | None = None
        self._is_reading = False
        self._returning: asyncio.Task[None] | None = None
        self._lines: list[str] = []  # still to be printed
        self._typing = False  # the person was typing when the first question came
        self._draft: Document | None = None  # the text that was typed then
        self._question: Approval | AskedForm | None = None  # the first question
        self._edited: Approval | None = None  # the call that the person is editing
        self._since = time.monotonic()
        self._prompt = self._new_prompt(history)
        self._output = self._prompt.app.output
        self._style = Style(colour, self._output.encoding())
        self._answer = MarkdownStream(self._style)
        self._drawn = ("", "")  # the text above the input line
        self._parsed: tuple[str, StyleAndTextTuples] = ("", [])
        self._talk, self._past = place.enter(session, cwd)

    def _new_prompt(self, history: History) -> PromptSession[int]:
        deeds = Deeds(self._enter, self._interrupt, lambda: self._leave(0), self._complain)
        prompt: PromptSession[int] = PromptSession(
            message=self._message,
            multiline=True,
            key_bindings=bindings(deeds),
            history=history,
            completer=Orders(lambda: [session.session for session in self._place.sessions()]),
            complete_while_typing=False,
            enable_suspend=True,
            erase_when_done=True,
            prompt_continuation="  ",
            color_depth=None if self._colour else ColorDepth.DEPTH_1_BIT,
        )
        # The library has more keys that accept a line. Without this handler they would end the chat.
        prompt.default_buffer.accept_handler = self._accepted
        return prompt

    async def run(self) -> int:
        """Run until the person leaves. Returns an exit status."""
        self._greet()
        self._connect()
        running, ticking = asyncio.current_task(), asyncio.create_task(self._tick())
        # Else the library would wait for ever for a drawing that failed, for example as the terminal is gone.
        ticking.add_done_callback(lambda task: task.cancelled() or (running and running.cancel()))
        for number in ENDS:
            asyncio.get_running_loop().add_signal_handler(number, self._leave, 128 + number)
        asyncio.get_running_loop().set_exception_handler(self._fail)
        try:
            return await self._prompt.prompt_async(set_exception_handler=False)
        except EOFError:  # the terminal is gone
            return 128 + signal.SIGHUP
        finally:
            if not ticking.cancel():
                ticking.result()  # raises its failure
            self._farewell()

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle a bug: release the terminal, then the guard of the command line reports the bug."""
        problem = context.get("exception")
        if problem and self._prompt.app.is_running and not self._prompt.app.is_done:
            self._prompt.app.exit(exception=problem)

    def _greet(self) -> None:
        self._say("note", self._place.greeting)
        self._do(self._past)

    def _farewell(self) -> None:
        if self._talk.busy and self._conversation and self._talk.scope != "temp":
            again = f"ctx chat {self._place.name} --session {self._talk.session}{self._place.option}"
            self._say("note", f"the run goes on; see: {again}")
        self._disconnect()
        if self._returning:
            self._returning.cancel()
        self._print(self._lines)

    # Connecting.

    def _connect(self) -> None:
        """Open the connection, and ask for the events since the last one."""
        self._conversation = self._place.connect()
        self._listen(True)
        self._do(self._talk.back())

    def _disconnect(self) -> None:
        if self._conversation:
            self._listen(False)
            self._conversation.close()
            self._conversation = None

    def _listen(self, on: bool) -> None:
        if self._conversation and on != self._is_reading:
            loop, descriptor = asyncio.get_running_loop(), self._conversation.fileno()
            if on:
                loop.add_reader(descriptor, self._hear)
            else:
                loop.remove_reader(descriptor)
            self._is_reading = on

    def _lost(self) -> None:
        """The connection is gone: try again until it is there, or the person leaves."""
        if self._conversation:
            self._disconnect()
            self._do(self._talk.lost())
        if self._returning is None:
            self._returning = asyncio.get_running_loop().create_task(self._come_back())

    async def _come_back(self) -> None:
        self._since = time.monotonic()
        while self._conversation is None:
            await asyncio.sleep(RETRY)
            with contextlib.suppress(Fault):
                self._reach()
                self._connect()
        self._say("note", "reconnected")
        self._returning, self._since = None, time.monotonic()

    def _hear(self) -> None:
        if self._conversation is None:
            return
        try:
            for frame in self._conversation.waiting():
                self._do(self._talk.hear(frame))
        except Fault as fault:
            if fault.code == "EPROTO":  # a new connection would report the same
                self._complain(fault.message)
                self._leave(exit_status(fault.code))
            self._lost()
        if self._answer.behind:
            self._listen(False)  # until the received frames are drawn

    # The person's actions.

    def _enter(self, buffer: Buffer) -> None:
        try:
            if self._edited:
                self._allow(buffer)
            elif self._talk.question:
                self._decide(buffer)
            elif self._talk.forms.first:
                self._fill(buffer)
            else:
                self._take(buffer, commands.meaning(buffer.text))
        except Fault as fault:
            self._complain(fault.message)
            if fault.code != "EMSGSIZE":  # a person who pasted too much may shorten it
                buffer.reset(append_to_history=not self._talk.forms.first)

    def _accepted(self, buffer: Buffer) -> bool:
        self._enter(buffer)
        return True  # keep the text that `_enter` left

    def _take(self, buffer: Buffer, entry: TypedText | TypedCommand | None) -> None:
        input_ = self._place.along.with_text(entry.text) if isinstance(entry, TypedText) else ""
        buffer.reset(append_to_history=entry is not None)
        if isinstance(entry, TypedText):
            self._send(entry.text, input_)
        elif entry and entry.name == "/quit":
            self._leave(0)
        elif entry:
            self._lines.append("\n")
            outcome = commands.carry_out(self._place, entry)
            for line in outcome.lines:
                self._say("note", line)
            if outcome.session:
                self._switch(outcome.session)
            if outcome.message:
                self._send(outcome.message, outcome.message)

    def _send(self, text: str, input_: Input) -> None:
        waits = self._talk.busy  # then it is shown when its run begins, and not amid another answer
        if not waits:
            self._utter(text)
            self._since = time.monotonic()
        self._do(self._talk.say(input_, is_shown=not waits))

    def _decide(self, buffer: Buffer) -> None:
        """Answer a question. Text that was being typed when the question came is no answer, and is kept. Any
        later text that is no answer is dropped."""
        was_typing, self._typing = self._typing, False
        try:
            reply = answer(buffer.text)
        except Fault:
            if was_typing and not self._draft:
                self._draft = buffer.document
            raise
        buffer.reset()
        if reply != "deny" and (unseen := self._talk.unseen()):
            self._do(unseen)
        elif reply == EDIT:
            self._edited = self._talk.question
            assert self._edited
            buffer.document = Document(calls.written(self._edited.input))
        else:
            self._do(self._talk.decide(reply))

    def _fill(self, buffer: Buffer) -> None:
        """Answer the form. Text that was being typed when the form came is no answer, and is kept."""
        if self._typing:
            self._typing, self._draft = False, buffer.document
            self._say("note", "what you were typing is kept; now answer the tool")
            return buffer.reset()
        deeds = self._talk.forms.take(buffer.text)
        buffer.reset()
        self._do(deeds)

    def _allow(self, buffer: Buffer) -> None:
        """Allow the call as it was edited. If the text is not valid, it stays, to be edited further."""
        try:
            deeds = self._talk.decide("allow_once", calls.edited(buffer.text))
        except Fault as fault:
            self._complain(fault.message)
        else:
            self._edited = None
            buffer.reset()
            self._do(deeds)

    def _tend(self) -> None:
        """If another question, or none, is now the first, the typed text is no answer to it and is dropped.
        The text that was kept during the questions returns."""
        buffer, question = self._prompt.default_buffer, self._talk.question or self._talk.forms.first
        if question is not self._question:
            if self._edited or buffer.text.strip().lower() in ANSWERS:
                buffer.reset()
            self._question, self._edited, self._typing = question, None, bool(buffer.text)
        if self._draft and not self._talk.busy and not buffer.text:  # else the next question would find it
            buffer.document, self._draft = self._draft, None

    def _interrupt(self, buffer: Buffer) -> None:
        if self._edited or (buffer.text and not self._talk.busy):  # an edit goes back to its question
            self._edited = None
            buffer.reset()
        elif self._talk.forms.first and not self._talk.question:
            buffer.reset()
            self._do(self._talk.forms.decline())
        else:
            self._answer.drop()
            self._do(self._talk.interrupt())

    def _leave(self, status: int) -> None:
        if self._prompt.app.is_running and not self._prompt.app.is_done:
            self._prompt.app.exit(result=status)

    def _switch(self, session: str) -> None:
        talk, past = self._place.enter(session)
        if self._talk.busy and self._talk.scope != "temp":
            self._say("note", f"the run in {self._talk.session} goes on")
        self._do([Show("end")])
        self._disconnect()
        self._talk, self._past = talk, past
        self._greet()
        try:
            self._connect()
        except Fault as fault:
            self._complain(fault.message)
            self._lost()

    # Carry out deeds.

    def _do(self, deeds: Iterable[Deed]) -> None:
        for deed in deeds:
            if isinstance(deed, Show):
                self._show(deed)
            elif isinstance(deed, Leave):
                self._leave(deed.status)
            elif self._conversation:
                try:
                    self._conversation.request(deed)
                except Fault:
                    self._lost()
                # A write also reads the frames that arrive meanwhile, and the loop would not notice them.
                asyncio.get_running_loop().call_soon(self._hear)
        self._tend()

    def _show(self, show: Show) -> None:
        if show.kind == "answer":
            self._answer.add(show.text)
            return
        self._lines.append(self._answer.end(self._room[0]))
        if show.kind == "other":
            self._utter(show.text)
        elif show.kind != "end":
            self._say(show.kind, marked(show, self._style.encoding))

    # The screen.

    def _complain(self, sentence: str) -> None:
        self._say("error", sentence)

    def _utter(self, text: str) -> None:
        self._lines.append("\n")
        for show in uttered(text):
            self._say(*show)

    def _say(self, kind: Kind, text: str) -> None:
        """Add lines of text, to be printed above the part that is still being drawn."""
        self._lines += styled(kind, text, self._colour)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0 if self._answer.behind else TICK)
            await self._draw()

    async def _draw(self) -> None:
        self._lines.append(self._answer.settled(self._room[0]))
        if not self._answer.behind:
            self._listen(True)
        lines, self._lines = self._lines, []
        if any(lines):
            async with in_terminal():
                self._print(lines)
        if (mark := (self._answer.live(*self._room), self._status())) != self._drawn:
            self._drawn = mark
            self._prompt.app.invalidate()

    def _print(self, lines: list[str]) -> None:
        self._output.write_raw("".join(lines))
        self._output.flush()

    @property
    def _room(self) -> tuple[int, int]:
        """Returns the columns and rows for the part of an answer that is not settled."""
        size = self._output.get_size()
        return size.columns, max(1, size.rows - BELOW)

    def _message(self) -> AnyFormattedText:
        """Returns the text above and before the input line."""
        live, status = self._answer.live(*self._room), self._status()
        if live != self._parsed[0]:  # its sequences are parsed again only if they changed
            self._parsed = (live, to_formatted_text(ANSI(live)))
        faint = "ansibrightblack" if self._colour else ""
        form = self._talk.forms.first
        line = EDITING if self._edited else ASKING if self._talk.question else form.prompt if form else "> "
        return [*self._parsed[1], (faint, f"{status}\n" if status else ""), ("", line)]

    def _status(self) -> str:
        return waiting.line(self._talk, self._since, self._returning is not None, self._style.encoding)
