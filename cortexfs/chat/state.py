"""A chat's side of a conversation, without connection and screen: the effects of frames and keys.

    talk.say(text)  talk.hear(frame)  talk.interrupt()  talk.decide(decision, input)  talk.back()

each return what is to be done now: requests to write, things to show, an end.

Rules: an event is shown once, even if the connection was lost: `back` asks for the events after the last one.
It sends again, under their own ids, only messages that were not begun. The person's own messages are on the
screen already; those of others in the session are shown. An answer's text is passed on unescaped, as only its
printer knows the reader. All other text is escaped here.
This file must never know sockets, terminals or time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from cortexfs.chat import calls
from cortexfs.chat.calls import Show, Surroundings
from cortexfs.chat.forms import OpenForms
from cortexfs.client.results import failure
from cortexfs.core import frames
from cortexfs.core.errors import Fault, exit_status
from cortexfs.core.frames import AnyFrame
from cortexfs.core.safe_text import escaped, one_line
from cortexfs.core.talk import approvals, refusals, requests
from cortexfs.core.talk.requests import Cancel, Decision, Input, Resume, Scope, Send

RESUME = "resume"  # the id of our resume requests; messages get theirs from `new_id`

EDIT: Final = "edit"
Reply: TypeAlias = Decision | Literal["edit"]
ANSWERS: dict[str, Reply] = {
    "y": "allow_once", "yes": "allow_once", "n": "deny", "no": "deny",
    "a": "allow_session", "always": "allow_session", "e": EDIT, "edit": EDIT,
}  # fmt: skip
TOLD: dict[Decision, str] = {
    "allow_once": "allowed",
    "allow_session": "allowed for this session",
    "deny": "denied",
}


class Leave(NamedTuple):
    status: int


Deed: TypeAlias = requests.AnyRequest | Show | Leave


class _Run:
    """The facts about a run that is not over."""

    def __init__(self) -> None:
        self.request: str | None = None
        self.streamed = 0  # characters that came as deltas; a message will repeat them
        self.complained = False


class Talk:
    """A conversation as the chat shows it.

    Its attributes are what was shown, asked, sent and decided so far: each of them affects how the next frame
    is shown.
    """

    def __init__(
        self,
        object_: str,
        session: str,
        scope: Scope,
        new_id: Callable[[], str],
        cwd: str | None = None,
        sight: Surroundings | None = None,
    ) -> None:
        self.object, self.session, self.scope = object_, session, scope
        self.last: str | None = None
        self.status = 0  # how the last run of ours ended, as an exit status
        self.doing = ""
        self.questions: dict[str, frames.Approval] = {}
        self.forms = OpenForms()
        self.cancelling = False
        self.interrupted = False  # True from the first cancel on, whatever its effect
        self._sight = sight or Surroundings()
        self._warned = False
        self._is_past = False  # the frames are from before we came
        self._latest: tuple[str, Any] | None = None  # the call shown last, if nothing was shown since
        self._cut: list[Show] = []  # the lines of that call that did not fit
        self._rest: dict[str, list[Show]] = {}  # by call: the lines of its question that were not seen yet
        self._decided: set[str] = set()  # calls about which we decided
        self._new_id = new_id
        self._cwd = cwd
        self._sent: dict[str, Send] = {}  # our messages, not known to have begun
        self._runs: defaultdict[str, _Run] = defaultdict(_Run)
        self._own_requests: set[str] = set()
        self._shown_requests: set[str] = set()
        self._cancelled: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self._sent or self._runs)

    @property
    def waiting(self) -> int:
        """Returns the number of messages that wait until another one is answered."""
        return len(self._sent) if self._runs else 0

    @property
    def question(self) -> frames.Approval | None:
        return next(iter(self.questions.values()), None)

    # The person's actions.

    def say(self, input_: Input, id_: str | None = None, is_shown: bool = True) -> list[Deed]:
        """Send a message. If it is not shown already, it is shown when its run begins."""
        self._warned = False
        id_, cwd = id_ or self._new_id(), self._cwd
        send = Send(id=id_, session=self.session, scope=self.scope, cwd=cwd, input=input_)
        self._sent[id_], self._cwd = send, None
        self._own_requests.add(id_)
        if is_shown:
            self._shown_requests.add(id_)
        return [send]

    def interrupt(self) -> list[Deed]:
        """Ctrl-C: the first one cancels, the second one leaves."""
        if self.cancelling or (self._warned and not self.busy):
            return [Leave(exit_status("ECANCELED"))]
        if self.busy:
            denials: list[Deed] = [*self._denials()]
            self.cancelling = self.interrupted = True
            self._cancelled |= {*self._runs, *self._sent}
            cancels: list[Deed] = [Cancel(id=id_) for id_ in (*self._runs, *self._sent)]
            return [Show("note", "cancelling; Ctrl-C again leaves"), *denials, *cancels]
        self._warned = True
        return [Show("note", "Ctrl-C again leaves, and so does Ctrl-D")]

    def is_ours(self, question: frames.Approval | frames.Question) -> bool:
        """Returns True if one of our messages led to the question."""
        return (run := self._runs.get(question.run or "")) is not None and run.request in self._own_requests

    def decide(
        self, decision: Decision, input: dict[str, Any] | None = None, call: str | None = None
    ) -> list[Deed]:
        """Decide the question about `call`, by default the first one. `input` replaces the model's input."""
        call = next(iter(self.questions)) if call is None else call
        approval = self.questions[call]
        if input == approval.input:
            input = None
        if input is not None:
            requests.check_edited(input, decision)
        self._decided.add(call)
        approve = requests.Approve(run=approval.run or "", call=call, decision=decision, input=input)
        changed = ", as you changed it" if input is not None else ""
        note = Show("note", f"{TOLD[decision]}{changed}: {one_line(approval.name)}")
        return [note, approve, *self._settled(call)]

    def unseen(self, call: str | None = None) -> list[Show]:
        """Returns the page that the person must see before this call, or the first, may be allowed: the next
        part of the cut text and the question again. Returns nothing if all was seen."""
        approval = self.questions[next(iter(self.questions)) if call is None else call]
        if (rest := self._rest.get(approval.call)) is None:
            return self._put(approval)
        if not rest:
            return []
        shows, self._rest[approval.call] = calls.page(approval.name, rest)
        return shows

    def _denials(self) -> list[requests.Approve]:
        """Returns denials to send before a cancel, so that no question of the run stays open. In a shared
        session the questions may be another person's, so there are none."""
        own = self.questions if self.scope != "shared" else {}
        self._decided |= own.keys()
        return [
            requests.Approve(run=each.run or "", call=call, decision="deny") for call, each in own.items()
        ]

    def back(self) -> list[Deed]:
        """Returns the requests to send on a new connection."""
        resume = Resume(id=RESUME, session=self.session, scope=self.scope, after=self.last)
        deeds: list[Deed] = [resume, *self._sent.values()]
        if self.cancelling:  # the daemon may not have received it
            deeds += [Cancel(id=id_) for id_ in (*self._runs, *self._sent)]
        return deeds

    def lost(self) -> list[Deed]:
        """The connection is lost. A temp session ends with it, and its runs will not report their end."""
        if self.scope != "temp":
            return []
        busy = self.busy
        self._sent.clear()
        self._runs.clear()
        self.questions.clear()
        self.forms.over()
        self.last, self.cancelling, self.doing = None, False, ""
        self.status = exit_status("EHOSTDOWN") if busy else self.status
        return [Show("end"), Show("error", "the temp session ended with its connection; a new one begins")]

    # Received frames.

    def recall(self, past: list[AnyFrame]) -> list[Deed]:
        """Show the past, without deltas and tool calls of finished runs. The chat goes on after its end."""
        over = {frame.run for frame in past if isinstance(frame, frames.Done)}
        deeds: list[Deed] = []
        self._is_past = True
        for frame in past:
            if frame.run not in over or isinstance(frame, _RECALLED):
                deeds += self.hear(frame)
            else:
                self.last = frame.id
        self._is_past, self._latest = False, None
        return [*deeds, *self._ask(), *self.forms.recall(frame for frame in past if frame.run not in over)]

    def hear(self, frame: AnyFrame) -> list[Deed]:
        if frame.run is None:
            return self._answered(frame) if isinstance(frame, frames.Error) else []
        if frame.id is not None:
            if self.last is not None and int(frame.id) <= int(self.last):
                return []
            self.last = frame.id
        run, heard = self._runs[frame.run], _HEARD.get(type(frame))
        if isinstance(frame, frames.ToolCall | frames.ToolResult):  # the text after it is another answer
            run.streamed = 0
        if not isinstance(frame, _ABOUT_CALLS):
            self._latest = None
        return heard(self, run, frame) if heard else []

    def _answered(self, frame: frames.Error) -> list[Deed]:
        """Handle an error that answers one of our requests."""
        if frame.request == RESUME and frame.code == "EINVAL" and self.last is not None:
            self.last = None
            return [
                Show("note", "the session was shortened or begun anew; from its start:"),
                *self.back()[:1],
            ]
        if frame.request in self._cancelled and frame.code in ("EALREADY", "ENOENT"):
            self._sent.pop(frame.request or "", None)
            self._settle()
            return []  # the run ended by itself, and its Done frame is here or on its way
        if refused := self._sent.pop(frame.request or "", None):
            self.status = exit_status(frame.code)
            self._cwd = self._cwd or refused.cwd  # the session does not work in that directory yet
            self._settle()
        return [self._complaint(frame.code, frame.message)]

    def _start(self, run: _Run, frame: frames.Start | frames.Error) -> list[Deed]:
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
            return [] if run.request in self._shown_requests else [Show("other", escaped(text))]
        if run.streamed:  # a long text comes in several messages
            run.streamed = max(0, run.streamed - len(text))
            return [] if run.streamed else [Show("end")]
        return [Show("answer", text), Show("end")]

    def _thought(self, run: _Run, frame: frames.ReasoningDelta) -> list[Deed]:
        self.doing = "thinking"
        return []

    def _called(self, run: _Run, frame: frames.ToolCall) -> list[Deed]:
        self.doing = one_line(frame.name)
        self._latest = frame.call, frame.input
        if self._is_past:  # the files may have changed since
            return [Show("end"), Show("call", calls.line(frame.name, frame.input, calls.BRIEF))]
        shows, self._cut = calls.called(frame.name, frame.input, self._sight)
        return [Show("end"), *(calls.below(shows) if frame.parent else shows)]

    def _resulted(self, run: _Run, frame: frames.ToolResult) -> list[Deed]:
        self.doing = ""
        is_apart = self._latest is None or self._latest[0] != frame.call
        self._latest = frame.call, None
        return [Show("end"), *calls.resulted(frame, is_apart), *self._settled(frame.call)]

    def _settled(self, call: str) -> list[Deed]:
        """Remove a question that is settled. If it was the first, ask the next one."""
        was_asked = self.question is not None and self.question.call == call
        self.questions.pop(call, None)
        self._rest.pop(call, None)
        return self._ask() if was_asked else []

    def _observed(self, run: _Run, frame: frames.Observer) -> list[Deed]:
        """Notes are for programs, except for denied calls of helpers, and decisions made elsewhere."""
        if answer := approvals.read_answer(frame):
            return [*self.forms.settle(answer.question)]
        if denied := refusals.denied_to_helper(frame):
            return [Show("end"), Show("failed", one_line(denied))]
        approval = approvals.read(frame)
        if approval is None or approval.call in self._decided:
            return []
        was_asked, rest = approval.call in self.questions, self._settled(approval.call)
        if approval.decision != "deny" and not was_asked:
            return rest
        self._latest = None
        message = f"{TOLD[approval.decision]}: {one_line(approval.name)} ({one_line(approval.reason)})"
        return [Show("end"), Show("note", message), *rest]

    def _progress(self, run: _Run, frame: frames.Progress) -> list[Deed]:
        is_early = frame.message in refusals.EARLY
        return [Show("end"), Show("failed" if is_early else "progress", one_line(frame.message))]

    def _media(self, run: _Run, frame: frames.Media) -> list[Deed]:
        fields = frame.attachment if isinstance(frame.attachment, dict) else {}
        text = f"[{fields.get('media_type', 'media')}] {fields.get('url', '')}"
        return [Show("end"), Show("note", one_line(text))]

    def _approval(self, run: _Run, frame: frames.Approval) -> list[Deed]:
        self._decided.discard(frame.call)
        self._rest.pop(frame.call, None)
        self.questions[frame.call] = frame
        return [Show("end"), *(self._ask() if len(self.questions) == 1 else [])]

    def _question(self, run: _Run, frame: frames.Question) -> list[Deed]:
        return [] if self._is_past else [Show("end"), *self.forms.hear(frame)]

    def _ask(self) -> list[Deed]:
        """Returns the first question below its call. The call is left out if it is the last thing shown."""
        approval = self.question
        return [] if approval is None or self._is_past else [*self._put(approval)]

    def _put(self, approval: frames.Approval) -> list[Show]:
        latest, self._latest = self._latest, (approval.call, approval.input)
        shown_call = calls.question_of(approval, self._sight, self._cut if latest == self._latest else None)
        self._cut = self._rest[approval.call] = shown_call.rest
        return shown_call.shows

    def _error(self, run: _Run, frame: frames.Error) -> list[Deed]:
        if frame.request in self._sent:  # its session could not be written, so it has no Start
            self._start(run, frame)
        run.complained = True
        return [Show("end"), self._complaint(frame.code, frame.message)]

    def _done(self, run: _Run, frame: frames.Done) -> list[Deed]:
        assert frame.run is not None
        failed = failure(frame)
        del self._runs[frame.run]
        self.forms.over(frame.run)
        self.questions = {call: each for call, each in self.questions.items() if each.run != frame.run}
        self._rest = {call: rest for call, rest in self._rest.items() if call in self.questions}
        if run.request in self._own_requests:
            self._own_requests.discard(run.request)
            self._shown_requests.discard(run.request)
            self.status = exit_status(failed.code) if failed else 0
        self.doing = ""
        self._decided.clear()
        self._settle()
        deeds: list[Deed] = [Show("end")]
        if frame.status == "cancelled":
            deeds.append(Show("note", "cancelled"))
        elif failed and not run.complained:
            deeds.append(self._complaint(failed.code, failed.message))
        return deeds

    def _settle(self) -> None:
        self.cancelling = self.cancelling and self.busy

    def _complaint(self, code: str, message: str) -> Show:
        return Show("error", one_line(f"{self.object}: {code}: {message}"))


_ABOUT_CALLS = (
    frames.ToolCall, frames.ToolResult, frames.Approval, frames.Observer, frames.Usage, frames.ReasoningDelta
)  # fmt: skip
_RECALLED = (frames.Start, frames.Message, frames.Error, frames.Done)
_HEARD: dict[type, Callable[[Talk, _Run, Any], list[Deed]]] = {
    frames.Start: Talk._start,
    frames.Delta: Talk._delta,
    frames.Message: Talk._message,
    frames.ReasoningDelta: Talk._thought,
    frames.ToolCall: Talk._called,
    frames.ToolResult: Talk._resulted,
    frames.Progress: Talk._progress,
    frames.Observer: Talk._observed,
    frames.Media: Talk._media,
    frames.Approval: Talk._approval,
    frames.Question: Talk._question,
    frames.Error: Talk._error,
    frames.Done: Talk._done,
}


def answer(text: str) -> Reply:
    """Returns the answer that the text means. Raises a Fault if it means none."""
    if (reply := ANSWERS.get(text.strip().lower())) is None:
        raise Fault("EINVAL", "answer y (yes, this once), n (no), a (always in this session) or e (edit it)")
    return reply
