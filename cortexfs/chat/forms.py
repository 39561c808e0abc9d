"""The questions of tools to a person, as forms that are filled in line by line.

    forms.hear(frame)    forms.take(line)    forms.decline()    forms.settle(question)

return the things to do: requests to write, lines to show. The person answers the first open form.

Rules: a form names the tool that asks, and shows its values before they are sent. An address is never opened
here. A question with neither a form nor an address is declined.
This file must never know terminals.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from cortexfs.chat.calls import Show
from cortexfs.core import forms
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame, Observer, Question
from cortexfs.core.safe_text import one_line
from cortexfs.core.talk import approvals
from cortexfs.core.talk.requests import Respond, check_content

MAX_SHOWN = 1000  # characters of a message, and of a value
CONFIRM = "y (yes) or n (no): "
Filled: TypeAlias = list[Show | Respond]


class AskedForm:
    """A question and its answers so far. Raises EINVAL if no person could answer the question."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._fields: list[forms.FormField] = []
        self._values: dict[str, Any] = {}
        if isinstance(question.schema, dict):
            self._fields = forms.fields(question.schema)
        elif not (question.url or "").startswith(("https://", "http://")):
            raise Fault("EINVAL", f"{one_line(question.name)} asks for neither a form nor an address")

    @property
    def prompt(self) -> str:
        return self._fields[0].prompt if self._fields else CONFIRM

    def begun(self) -> list[Show]:
        message = one_line(self.question.message[:MAX_SHOWN])
        return [Show("question", f"{one_line(self.question.name)} asks: {message}"), *self._step()]

    def _step(self) -> list[Show]:
        if self._fields:
            return [Show("note", line) for line in self._fields[0].listing]
        if self.question.url:
            return [Show("code", f"  {one_line(self.question.url)}"), Show("question", "Will you open it?")]
        shows = [
            Show("code", f"  {one_line(name)}: {one_line(str(value))[:MAX_SHOWN]}")
            for name, value in self._values.items()
        ]
        return [*shows, Show("question", f"Send this to {one_line(self.question.name)}?")]

    def take(self, line: str) -> list[Show] | Respond:
        """Returns the next step, or the answer. Raises EINVAL if the line is not valid for the field."""
        if not self._fields:
            return self._confirmed(line)
        field = self._fields[0]
        line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # not always UTF-8
        if (value := field.read(line)) is not None:
            self._values[field.name] = value
        del self._fields[0]
        return self._step()

    def _confirmed(self, line: str) -> Respond:
        if (word := line.strip().lower()) not in ("y", "yes", "n", "no"):
            raise Fault("EINVAL", "answer y (yes) or n (no)")
        if word in ("n", "no"):
            return self.declined
        check_content(self._values)
        return Respond(run=self.question.run or "", question=self.question.question, content=self._values)

    @property
    def declined(self) -> Respond:
        return Respond(run=self.question.run or "", question=self.question.question)


class OpenForms:
    def __init__(self) -> None:
        self._open: dict[str, AskedForm] = {}

    @property
    def first(self) -> AskedForm | None:
        return next(iter(self._open.values()), None)

    def hear(self, question: Question) -> Filled:
        try:
            form = AskedForm(question)
        except Fault as fault:
            declined = Respond(run=question.run or "", question=question.question)
            return [Show("error", f"declined: {fault.message}"), declined]
        self._open[question.question] = form
        return [*form.begun()] if form is self.first else []

    def recall(self, past: Iterable[AnyFrame]) -> Filled:
        """Open the forms of past questions that are not answered yet."""
        questions: dict[str, Question] = {}
        for frame in past:
            if isinstance(frame, Question):
                questions[frame.question] = frame
            elif isinstance(frame, Observer) and (answer := approvals.read_answer(frame)):
                questions.pop(answer.question, None)
        return [deed for question in questions.values() for deed in self.hear(question)]

    def take(self, line: str) -> Filled:
        """Pass a line to the first form: the value of its field, or the final yes or no."""
        assert self.first is not None
        result = self.first.take(line)
        return self._answered(result, "sent") if isinstance(result, Respond) else [*result]

    def decline(self) -> Filled:
        assert self.first is not None
        return self._answered(self.first.declined, "")

    def _answered(self, answer: Respond, how: str) -> Filled:
        note = Show("note", how if answer.content is not None else "declined")
        return [note, answer, *self.settle(answer.question)]

    def settle(self, question: str) -> Filled:
        """Close the form of a question that is settled. If it was the first, show the next one."""
        was_first = self.first is not None and self.first.question.question == question
        self._open.pop(question, None)
        return [*self.first.begun()] if was_first and self.first else []

    def over(self, run: str | None = None) -> None:
        """Close the forms of a run that is over, or all forms if no run is named."""
        rest = {id_: form for id_, form in self._open.items() if run and form.question.run != run}
        self._open = rest
