"""The chat's input line: its keys, its history and its completion.

Rules: Enter sends, whatever was pasted; only Alt-Enter or a backslash begins a new line. The functions in
`Deeds` define the effects of keys. The history is one JSON string a line, in a small file that only its user
can read. Several chats append to one file, so each line is written at once and whole. A chat that opens a
file that is too long keeps only its newer half. If the history cannot be kept, the chat goes on without it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_done, is_searching
from prompt_toolkit.history import History as PromptHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from cortexfs.chat.commands import ORDERS, goes_on
from cortexfs.core.frames import MAX_LINE

MAX_ENTRIES = 1000
MAX_ENTRY = 16 << 10  # bytes; nobody searches the history for a longer text, such as a pasted log
MAX_FILE = 1 << 20


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
        if goes_on(line) and not buffer.document.current_line_after_cursor:
            buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
        else:
            deeds.enter(buffer)

    @keys.add("escape", "enter", filter=typing)
    def _newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-x", "c-e", filter=typing)
    def _edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()  # the text comes back to the input line, and is not sent yet

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
            deeds.refuse("a message has at most 1 MiB; put the pasted text into a file and name the file")
        else:
            event.current_buffer.insert_text(text)

    return keys


class History(PromptHistory):
    def __init__(self, path: Path | None) -> None:
        """Without a path, the history remembers nothing."""
        super().__init__()
        self._path = path or Path(os.devnull, "nowhere")

    def load_history_strings(self) -> Iterable[str]:
        """Returns the entries, newest first."""
        try:
            with open(self._path, "rb", opener=_private) as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - MAX_FILE))
                data = file.read(MAX_FILE)
        except OSError:
            return []
        entries = []
        for line in data.split(b"\n"):  # the first may be cut, and other programs may have written lines
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                entries.append(msgspec.json.decode(line, type=str))
        newest = entries[: -MAX_ENTRIES - 1 : -1]
        if size > MAX_FILE or len(entries) > 2 * MAX_ENTRIES:
            with contextlib.suppress(OSError):
                self._shorten(newest)
        return newest

    def store_string(self, string: str) -> None:
        # A terminal with another encoding may have sent bytes that are not UTF-8.
        text = string.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        line = msgspec.json.encode(text) + b"\n"
        if len(line) > MAX_ENTRY:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path, "ab", buffering=0, opener=_private) as file:
                file.write(line)

    def _shorten(self, newest: list[str]) -> None:
        lines: list[bytes] = []
        room = MAX_FILE // 2
        for entry in newest:
            line = msgspec.json.encode(entry) + b"\n"
            if (room := room - len(line)) < 0:
                break
            lines.append(line)
        aside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with open(aside, "wb", opener=_private) as file:
            file.writelines(reversed(lines))
        os.replace(aside, self._path)


def _private(path: str, flags: int) -> int:
    """Open a file that only its user can read. Do not wait if there is a pipe in its place."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)


class Orders(Completer):
    """Completes orders, the names of sessions after /resume, and the names of files."""

    def __init__(self, sessions: Callable[[], list[str]]) -> None:
        self._sessions = sessions

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text_before_cursor
        order, space, start = text.partition(" ")
        if not order.startswith("/") or "\n" in text:
            return
        if space and order in ("/attach", "/save"):
            yield from PathCompleter(expanduser=True).get_completions(Document(start), complete_event)
            return
        known = list(ORDERS) if not space else self._sessions() if order == "/resume" else []
        start = start if space else order
        for word in known:
            if word.startswith(start):
                yield Completion(word, -len(start))
