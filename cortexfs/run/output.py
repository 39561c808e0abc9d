"""The output of a run for its runner: frames as JSONL, or text for people (abi.md 4.18).

Both voices have the same methods, each of which returns bytes to send, as messages of core/wire.py. The
runner's last words, which it prints when the daemon vanishes, are sent ahead. Messages of tools and names of
files are escaped for terminals. A tool's output is not, as that of cat is not.
This file must never know of sockets, hosts or policy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from cortexfs.core import frames, lines, wire
from cortexfs.core.names import CLASSES
from cortexfs.core.registry import Object
from cortexfs.core.safe_text import prose
from cortexfs.core.talk import approvals, refusals
from cortexfs.plugins.described import COMMAND_CLASS

_header = wire.HEADER.pack  # wire.message without the call, as each run sends several

VANISHED = "the CortexFS daemon went away during the call; start it again with: ctx mount"


class Voice(ABC):
    """The common part of both voices: the object and the run that speak."""

    def __init__(self, object_: str, class_: str = "tool") -> None:
        self.object = object_
        self.class_ = class_
        self.run: str | None = None
        self.is_piped = False  # standard input is a pipe, and standard error a terminal
        self.is_watched = False  # both outputs are shown on a terminal

    def waiting(self, seconds: float) -> bytes:
        """Returns a remark for a person that the run still goes on, after so many seconds. The next output
        replaces it."""
        return b""

    def unread(self) -> bytes:
        """Returns a remark that standard input was not read, if the user may have meant it to be."""
        line = f"{self.object}: standard input is a pipe and was not read; to have it read, add -\n"
        return wire.message(wire.STDERR, line.encode()) if self.is_piped else b""

    @abstractmethod
    def start(self) -> bytes: ...

    @abstractmethod
    def say(self, frame: frames.Frame) -> bytes:
        """Returns a frame between start and end."""

    @abstractmethod
    def end(self, status: frames.Status, code: str | None = None, message: str = "") -> bytes:
        """Returns the last frame; with a message, an error frame before it."""


class JsonlVoice(Voice):
    """Frames, one line each."""

    def start(self) -> bytes:
        lost = self._lines("error", "EHOSTDOWN", VANISHED)
        words = _header(wire.LAST_WORDS, wire.U32.size + len(lost)) + wire.U32.pack(len(lost)) + lost
        return words + self.say(frames.Start(run=self.run, **{self.class_: self.object}))

    def say(self, frame: frames.Frame) -> bytes:
        line = frames.encode_lines([frame])
        if len(line) > frames.MAX_LINE:
            return printed(wire.STDOUT, lines.encode(frame))
        return _header(wire.STDOUT, len(line)) + line

    def end(self, status: frames.Status, code: str | None = None, message: str = "") -> bytes:
        lines = self._lines(status, code, message)
        return _header(wire.STDOUT, len(lines)) + lines

    def _lines(self, status: frames.Status, code: str | None, message: str) -> bytes:
        done = frames.Done(run=self.run, status=status, code=code)
        if not message or code is None:
            return frames.encode_lines([done])
        return frames.encode_lines([frames.Error(run=self.run, code=code, message=message), done])


class TextVoice(Voice):
    """The output as it is. Other frames for people become lines on standard error.

    Notes of observers are not shown (abi.md 10.12), except the reason for the denial of a call that needed an
    approval. A message repeats its deltas, so it is shown only if there were none.
    """

    def __init__(self, object_: str, terminal_out: bool, terminal_err: bool, class_: str = "tool") -> None:
        super().__init__(object_, class_)
        self._terminal_out = terminal_out
        self._terminal_err = terminal_err
        self._mid_line = False
        self._spoken = False  # in deltas, since the last message
        self._is_waited_for = True  # only progress, or nothing, was shown yet
        self._wait = ""  # the remark that is on the terminal now
        self.is_watched = terminal_out and terminal_err

    def waiting(self, seconds: float) -> bytes:
        if not self._is_waited_for:
            return b""
        self._wait = f"{self.object}: waiting ({seconds:.0f} s); Ctrl-C ends it"
        return wire.message(wire.STDERR, f"\r{self._wait}".encode())

    def _taken_back(self) -> bytes:
        """Returns the bytes that wipe the remark, as output follows."""
        wait, self._wait = self._wait, ""
        return wire.message(wire.STDERR, f"\r{' ' * len(wait)}\r".encode()) if wait else b""

    def start(self) -> bytes:
        line = self._complaint("EHOSTDOWN", VANISHED)
        return wire.message(wire.LAST_WORDS, wire.U32.pack(0) + line)

    def say(self, frame: frames.Frame) -> bytes:
        if messages := self._messages(frame):
            self._is_waited_for = isinstance(frame, frames.Progress)
            return self._taken_back() + messages
        return b""

    def _messages(self, frame: frames.Frame) -> bytes:
        match frame:
            case frames.Delta():
                self._spoken = True
                return self._output(frame.text)
            case frames.Message():
                is_spoken, self._spoken = self._spoken, False
                return b"" if is_spoken else self._output("".join(part.text for part in frame.content))
            case frames.Progress() if self._terminal_err or frame.message in refusals.EARLY:
                return self._note(frame.message)
            case frames.Media():
                fields = frame.attachment if isinstance(frame.attachment, dict) else {}
                text = f"[{fields.get('media_type', 'media')}] {fields.get('url', '')}".replace("\n", " ")
                line = "\n" * self._mid_line  # to a file, too: it is a line of its own
                self._mid_line = False
                return wire.message(wire.STDOUT, f"{line}{prose(text)}\n".encode())
            case frames.Observer() if (approval := approvals.read(frame)) and approval.decision == "deny":
                return self._note(f"{approval.name}: {approval.reason}")
            case frames.Observer() if denial := refusals.denied_to_helper(frame):
                return self._note(denial)
            case frames.ToolResult() if frame.is_error:
                return self._note(f"{frame.name}: {refusals.sentence(frame)}")
        return b""

    def end(self, status: frames.Status, code: str | None = None, message: str = "") -> bytes:
        out = self._taken_back() + self._begin_line()  # a prompt must not stick to the last line
        if message and code:
            out += wire.message(wire.STDERR, self._complaint(code, message))
        return out

    def _begin_line(self) -> bytes:
        is_broken, self._mid_line = self._mid_line and self._terminal_out, False
        return wire.message(wire.STDOUT, b"\n") if is_broken else b""

    def _output(self, text: str) -> bytes:
        self._mid_line = not text.endswith("\n")
        return printed(wire.STDOUT, text.encode())

    def _complaint(self, code: str, message: str) -> bytes:
        return f"{self.object}: {code}: {prose(message.rstrip())}\n".encode()

    def _note(self, text: str) -> bytes:
        return self._begin_line() + wire.message(
            wire.STDERR, f"{self.object}: {prose(text.rstrip())}\n".encode()
        )


def printed(kind: int, data: bytes) -> bytes:
    """Returns bytes as messages for the runner, each of a size that it takes."""
    if len(data) <= wire.MAX_TEXT:
        return wire.message(kind, data)
    parts = (data[start : start + wire.MAX_TEXT] for start in range(0, len(data), wire.MAX_TEXT))
    return b"".join(wire.message(kind, part) for part in parts)


def voice_of(object_: Object | None, flags: int, environ: dict[bytes, bytes]) -> Voice:
    """Returns the voice of a run: text on a terminal, else JSONL, unless CTX_OUTPUT decides (abi.md 4.18)."""
    name, class_ = (object_.name, object_.class_) if object_ else ("ctx", "tool")
    errors = class_ == COMMAND_CLASS or bool(flags & wire.TTY_STDERR)  # a command reports in a pipe, too
    class_ = class_ if class_ in CLASSES else "tool"
    terminal = bool(flags & wire.TTY_STDOUT)
    chosen = environ.get(b"CTX_OUTPUT", b"")
    is_text = chosen == b"text" or (terminal and chosen != b"jsonl")
    voice = TextVoice(name, terminal, errors, class_) if is_text else JsonlVoice(name, class_)
    voice.is_piped = bool(flags & wire.PIPE_STDIN) and class_ != COMMAND_CLASS
    return voice
