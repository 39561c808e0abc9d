"""A chat's side of a conversation, without wire and screen: what frames and keys lead to.

    talk.say(text)  talk.hear(frame)  talk.interrupt()  talk.decide(decision)  talk.back()

each return what is to be done now: requests to write, things to show, an end.

Rules: an event is shown once, whatever the connection went through: `back` asks for what came after the
last one, and says again only messages that were not begun, under their own ids. What the person typed is
on the screen already; the words of everybody else in the session are shown. An answer's text is passed
on raw, as only who prints it knows for whom; all other text is escaped here.
This file must never know sockets, terminals or time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from cortexfs.core import frames, requests
from cortexfs.core.errors import Fault, exit_status
from cortexfs.core.frames import AnyFrame
from cortexfs.core.plain import escaped, one_line
from cortexfs.core.requests import Cancel, Decision, Input, Resume, Scope, Send

BRIEF = 200  # characters of what a tool is called with, or gave
LONG = 1000  # and where somebody is to decide about it
RESUME = "resume"  # the id of our resume requests; those of messages are given

Kind: TypeAlias = Literal["answer", "end", "other", "note", "error", "question"]
ANSWERS: dict[str, Decision] = {
    "y": "allow_once",
    "yes": "allow_once",
    "n": "deny",
    "no": "deny",
    "a": "allow_session",
    "always": "allow_session",
}


class Show(NamedTuple):
    """Something for the screen. `answer` is a piece of text that goes on, until `end`."""

    kind: Kind
    text: str = ""


class Leave(NamedTuple):
    status: int


Deed: TypeAlias = requests.AnyRequest | Show | Leave


class _Run:
    """What is known of a run that is not over."""

    def __init__(self, request: str | None = None) -> None:
        self.request = request
        self.streamed = 0  # characters that came as deltas, and that a message will repeat
        self.complained = False


class Talk:
    def __init__(
        self, object_: str, session: str, scope: Scope, new_id: Callable[[], str], cwd: str | None = None
    ) -> None:
        self.object, self.session, self.scope = object_, session, scope
        self.last: str | None = None
        self.status = 0  # how the last run of ours ended, as an exit status
        self.doing = ""
        self.questions: dict[str, frames.Approval] = {}
        self.cancelling = False
        self._warned = False
        self._new_id = new_id
        self._cwd = cwd
        self._sent: dict[str, Send] = {}  # ours, not known to have begun
        self._runs: dict[str, _Run] = {}
        self._ours: set[str] = set()
        self._shown: set[str] = set()
        self._cancelled: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self._sent or self._runs)

    @property
    def waiting(self) -> int:
        """How many messages wait until another one is answered."""
        return len(self._sent) if self._runs else 0

    @property
    def question(self) -> frames.Approval | None:
        return next(iter(self.questions.values()), None)

    # What the person does.

    def say(self, said: Input, id_: str | None = None, is_shown: bool = True) -> list[Deed]:
        """Say something. What is not shown already is when its turn comes."""
        self._warned = False
        id_, cwd = id_ or self._new_id(), self._cwd
        send = Send(id=id_, session=self.session, scope=self.scope, cwd=cwd, input=said)
        self._sent[id_], self._cwd = send, None
        self._ours.add(id_)
        if is_shown:
            self._shown.add(id_)
        return [send]

    def interrupt(self) -> list[Deed]:
        """Ctrl-C: the first one cancels, the second one leaves."""
        if self.cancelling or (self._warned and not self.busy):
            return [Leave(exit_status("ECANCELED"))]
        if self.busy:
            self.cancelling = True
            self._cancelled |= {*self._runs, *self._sent}
            cancels: list[Deed] = [Cancel(id=id_) for id_ in (*self._runs, *self._sent)]
            return [Show("note", "cancelling; Ctrl-C again leaves"), *cancels]
        self._warned = True
        return [Show("note", "Ctrl-C again leaves, and so does Ctrl-D")]

    def decide(self, decision: Decision) -> list[Deed]:
        """What is decided about the question that stands first."""
        call, asked = next(iter(self.questions.items()))
        del self.questions[call]
        told = {"allow_once": "allowed", "allow_session": "allowed for this session", "deny": "denied"}
        approve = requests.Approve(run=asked.run or "", call=call, decision=decision)
        return [Show("note", f"{told[decision]}: {one_line(asked.name)}"), approve, *self._ask()]

    def back(self) -> list[Deed]:
        """Connected (again): what to ask for."""
        resume = Resume(id=RESUME, session=self.session, scope=self.scope, after=self.last)
        asked: list[Deed] = [resume, *self._sent.values()]
        if self.cancelling:  # and nobody may have heard it
            asked += [Cancel(id=id_) for id_ in (*self._runs, *self._sent)]
        return asked

    def lost(self) -> list[Deed]:
        """The connection is gone. A temp session went with it, and its runs will not say that they ended."""
        if self.scope != "temp":
            return []
        busy = self.busy
        self._sent.clear()
        self._runs.clear()
        self.questions.clear()
        self.last, self.cancelling, self.doing = None, False, ""
        self.status = exit_status("EHOSTDOWN") if busy else self.status
        return [Show("end"), Show("error", "the temp session went with its connection and begins anew")]

    # What is heard.

    def recall(self, past: list[AnyFrame]) -> list[Deed]:
        """What was said before we came, without how it was said; the last of it is where we go on."""
        over = {frame.run for frame in past if isinstance(frame, frames.Done)}
        deeds: list[Deed] = []
        for frame in past:
            if frame.run not in over or isinstance(frame, _RECALLED):
                deeds += self.hear(frame)
            else:
                self.last = frame.id
        return deeds

    def hear(self, frame: AnyFrame) -> list[Deed]:
        if frame.run is None:
            return self._answered(frame) if isinstance(frame, frames.Error) else []
        if frame.id is not None:
            if self.last is not None and int(frame.id) <= int(self.last):
                return []
            self.last = frame.id
        run = self._runs.get(frame.run)
        if run is None:
            run = self._runs[frame.run] = _Run()
        heard = _HEARD.get(type(frame))
        if not isinstance(frame, frames.Delta | frames.Message):
            run.streamed = 0
        return heard(self, run, frame) if heard else []

    def _answered(self, frame: frames.Error) -> list[Deed]:
        """An error that answers a request of ours."""
        if frame.request == RESUME and frame.code == "EINVAL" and self.last is not None:
            self.last = None
            return [
                Show("note", "the session was shortened or begun anew; from its start:"),
                *self.back()[:1],
            ]
        if frame.request in self._cancelled and frame.code in ("EALREADY", "ENOENT"):
            self._sent.pop(frame.request or "", None)
            self._settle()
            return []  # it ended by itself, and its done is here or on its way
        if self._sent.pop(frame.request or "", None):
            self.status = exit_status(frame.code)
            self._settle()
        return [self._complaint(frame.code, frame.message)]

    def _start(self, run: _Run, frame: frames.Start) -> list[Deed]:
        run.request = frame.request
        self._sent.pop(frame.request or "", None)
        return []

    def _delta(self, run: _Run, frame: frames.Delta) -> list[Deed]:
        run.streamed += len(frame.text)
        self.doing = "answering"
        return [] if self.cancelling else [Show("answer", frame.text)]

    def _message(self, run: _Run, frame: frames.Message) -> list[Deed]:
        text = "".join(part.text for part in frame.content)
        if frame.role == "user":
            return [] if run.request in self._shown else [Show("other", escaped(text))]
        if run.streamed:  # a long text comes in several messages
            run.streamed = max(0, run.streamed - len(text))
            return [] if run.streamed else [Show("end")]
        return [Show("answer", text), Show("end")]

    def _thought(self, run: _Run, frame: frames.ReasoningDelta) -> list[Deed]:
        self.doing = "thinking"
        return []

    def _called(self, run: _Run, frame: frames.ToolCall) -> list[Deed]:
        self.doing = one_line(frame.name)
        return [Show("end"), Show("note", f"→ {one_line(frame.name)} {_shown(frame.input, BRIEF)}".rstrip())]

    def _resulted(self, run: _Run, frame: frames.ToolResult) -> list[Deed]:
        self.questions.pop(frame.call, None)
        self.doing = ""
        failed = "failed: " if frame.is_error else ""
        return [
            Show("end"),
            Show("note", f"← {one_line(frame.name)} {failed}{_shown(frame.output, BRIEF)}".rstrip()),
        ]

    def _progress(self, run: _Run, frame: frames.Progress) -> list[Deed]:
        return [Show("end"), Show("note", f"· {one_line(frame.message)}")]

    def _media(self, run: _Run, frame: frames.Media) -> list[Deed]:
        fields = frame.attachment if isinstance(frame.attachment, dict) else {}
        text = f"[{fields.get('media_type', 'media')}] {fields.get('url', '')}"
        return [Show("end"), Show("note", one_line(text))]

    def _approval(self, run: _Run, frame: frames.Approval) -> list[Deed]:
        self.questions[frame.call] = frame
        return [Show("end"), *(self._ask() if len(self.questions) == 1 else [])]

    def _ask(self) -> list[Deed]:
        if (asked := self.question) is None:
            return []
        effects = f" ({one_line(', '.join(asked.effects))})" if asked.effects else ""
        reason = f": {one_line(asked.reason)}" if asked.reason else ""
        called = f"{one_line(asked.name)} {_shown(asked.input, LONG)}".rstrip()
        return [Show("question", f"may it call {called}{effects}{reason}?")]

    def _error(self, run: _Run, frame: frames.Error) -> list[Deed]:
        run.complained = True
        return [Show("end"), self._complaint(frame.code, frame.message)]

    def _done(self, run: _Run, frame: frames.Done) -> list[Deed]:
        assert frame.run is not None
        del self._runs[frame.run]
        self.questions = {call: asked for call, asked in self.questions.items() if asked.run != frame.run}
        if run.request in self._ours:
            self._ours.discard(run.request)
            self._shown.discard(run.request)
            self.status = exit_status(_code(frame)) if frame.status != "ok" else 0
        self.doing = ""
        self._settle()
        said: list[Deed] = [Show("end")]
        if frame.status == "cancelled":
            said.append(Show("note", "cancelled"))
        elif frame.status == "error" and not run.complained:
            said.append(self._complaint(_code(frame), "the run failed"))
        return said

    def _settle(self) -> None:
        self.cancelling = self.cancelling and self.busy

    def _complaint(self, code: str, message: str) -> Show:
        return Show("error", one_line(f"{self.object}: {code}: {message}"))


_RECALLED = (frames.Start, frames.Message, frames.Error, frames.Done)
_HEARD: dict[type, Callable[[Talk, _Run, Any], list[Deed]]] = {
    frames.Start: Talk._start,
    frames.Delta: Talk._delta,
    frames.Message: Talk._message,
    frames.ReasoningDelta: Talk._thought,
    frames.ToolCall: Talk._called,
    frames.ToolResult: Talk._resulted,
    frames.Progress: Talk._progress,
    frames.Media: Talk._media,
    frames.Approval: Talk._approval,
    frames.Error: Talk._error,
    frames.Done: Talk._done,
}


def answer(text: str) -> Decision:
    """What is answered to a question; a Fault where it is neither y, n nor always."""
    if (decision := ANSWERS.get(text.strip().lower())) is None:
        raise Fault("EINVAL", "answer y (once), n or always; Ctrl-C cancels the run")
    return decision


def _code(done: frames.Done) -> str:
    return done.code or ("ECANCELED" if done.status == "cancelled" else "EIO")


def _shown(value: Any, most: int) -> str:
    """A tool's input or output as one line, which says how much of it is not shown."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    more = len(text) - most
    return one_line(text[:most]) + (f" … and {more:,} characters more" if more > 0 else "")
