"""The keys of the chat's input line, and its history and completion.

Rules: Enter sends, whatever was pasted; only Alt-Enter or a backslash begins a new line. What the keys lead
to is the business of whoever gives the deeds in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_done, is_searching
from prompt_toolkit.history import History as Remembered
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from cortexfs.chat import typed
from cortexfs.chat.history import History
from cortexfs.core.frames import MAX_LINE


class Deeds(NamedTuple):
    enter: Callable[[Buffer], None]
    interrupt: Callable[[Buffer], None]
    leave: Callable[[], None]
    refuse: Callable[[str], None]


def bindings(deeds: Deeds) -> KeyBindings:
    keys = KeyBindings()
    typing = ~is_searching & ~is_done

    @keys.add("enter", filter=typing)
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        line = buffer.document.current_line_before_cursor
        if typed.goes_on(line) and not buffer.document.current_line_after_cursor:
            buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
        else:
            deeds.enter(buffer)

    @keys.add("escape", "enter", filter=typing)
    def _newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-x", "c-e", filter=typing)
    def _edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()  # from where it comes back to be sent, or not

    @keys.add("c-c", filter=typing)
    @keys.add(Keys.SIGINT)
    def _interrupt(event: KeyPressEvent) -> None:
        deeds.interrupt(event.current_buffer)

    @keys.add("c-d", filter=typing)
    def _leave(event: KeyPressEvent) -> None:
        if not event.current_buffer.text:
            deeds.leave()
        else:
            event.current_buffer.delete()

    @keys.add(Keys.BracketedPaste)
    def _paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        if len(text) > MAX_LINE:
            deeds.refuse("a message may have 1 MiB and what you pasted is longer; say where to read it")
        else:
            event.current_buffer.insert_text(text)

    return keys


class HistoryFile(Remembered):
    """The history's file, as the input line wants it."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def load_history_strings(self) -> Iterable[str]:
        return reversed(self._history.load())

    def store_string(self, string: str) -> None:
        self._history.add(string)


class Orders(Completer):
    """Orders, and the names of sessions behind /resume."""

    def __init__(self, sessions: Callable[[], list[str]]) -> None:
        self._sessions = sessions

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        order, space, start = text.partition(" ")
        if not order.startswith("/") or "\n" in text:
            return
        known = list(typed.ORDERS) if not space else self._sessions() if order == "/resume" else []
        start = start if space else order
        for word in known:
            if word.startswith(start):
                yield Completion(word, -len(start))
