"""A tool's question as a person sees it in a chat, and the part of his answer that is sent."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cortexfs.chat.calls import Show
from cortexfs.chat.state import Talk
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.talk import approvals
from cortexfs.core.talk.requests import Respond, Verdict
from tests.core import chat_pair
from tests.core.chat_pair import Chat, run_of
from tests.core.conversation_pair import World
from tests.tables import each_of

world, chat = chat_pair.world, chat_pair.chat
SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "title": "Your \x1b[2Jname"},
        "zone": {"type": "string", "enum": ["a", "b"], "default": "b"},
    },
}


def question(number: int = 1, **fields: Any) -> frames.Question:
    said = {"message": "Who\nare you?", "schema": SCHEMA} | fields
    return frames.Question(call="c", question=f"c.q{number}", name="who.asks", **said)


def asked(world: World, chat: Chat, *questions: frames.Question) -> str:
    chat.do(chat.talk.say("go"))
    run = run_of(world)
    world.emit(run, *questions)
    chat.read()
    return run


def test_a_form_is_filled_in_and_shown_before_it_is_sent(world: World, chat: Chat) -> None:
    # mcp.md: "send nothing that was not shown and confirmed"
    run = asked(world, chat, question())
    form = chat.talk.forms.first
    assert form
    assert chat.text.endswith("?who.asks asks: Who are you?")
    assert form.prompt == "Your \\x1b[2Jname: "
    with pytest.raises(Fault, match="name needs an answer"):
        chat.talk.forms.take(" ")
    chat.do([*chat.talk.forms.take("ann")])
    assert form.prompt == "zone [b]: "
    assert chat.text.endswith("<  1 a><  2 b>")
    chat.do([*chat.talk.forms.take("")])
    assert chat.text.endswith("(  name: ann)(  zone: b)?Send this to who.asks?")
    with pytest.raises(Fault, match="answer y"):
        chat.talk.forms.take("sure")
    assert not world.answers
    chat.do([*chat.talk.forms.take("Y")])
    assert world.answers == [Respond(run=run, question="c.q1", content={"name": "ann", "zone": "b"})]
    assert chat.talk.forms.first is None


def test_what_is_not_confirmed_is_not_sent(world: World, chat: Chat) -> None:
    run = asked(world, chat, question(), question(2))
    for line in ("ann", "a", "n"):
        chat.do([*chat.talk.forms.take(line)])
    assert world.answers == [Respond(run=run, question="c.q1")]
    assert chat.text.count("who.asks asks") == 2  # the next question is shown
    chat.do([*chat.talk.forms.decline()])
    assert world.answers[-1] == Respond(run=run, question="c.q2")


def test_an_address_is_shown_and_never_opened(world: World, chat: Chat) -> None:
    run = asked(world, chat, question(schema=None, url="https://example.org/\x1bx"))
    assert chat.text.endswith("(  https://example.org/\\x1bx)?Will you open it?")
    chat.do([*chat.talk.forms.take("yes")])
    assert world.answers == [Respond(run=run, question="c.q1", content={})]


@each_of(
    ("fields", "why"),
    [
        ({"schema": {"properties": {"x": {"type": "object"}}}}, "has the unknown type object"),
        ({"schema": {"properties": {"x": 5}}}, "is not an object"),
        ({"schema": []}, "neither a form nor an address"),
        ({"schema": None}, "neither a form nor an address"),
        ({"schema": None, "url": "file:///etc/passwd"}, "neither a form nor an address"),
        ({"schema": {"properties": {f"f{n}": {"type": "string"} for n in range(101)}}}, "over 100 fields"),
    ],
)
def test_what_is_no_form_is_declined(fields: dict[str, Any], why: str) -> None:
    world = World()
    chat = Chat(world)
    run = asked(world, chat, question(**fields))
    assert world.answers == [Respond(run=run, question="c.q1")]
    assert why in chat.text
    assert chat.talk.forms.first is None


def test_one_that_was_settled_elsewhere_goes(world: World, chat: Chat) -> None:
    # protocol.md: "says that it is settled, and not what was answered"
    run = asked(world, chat, question())
    told = approvals.answer_told(question(), Verdict("allow_once", {"name": "secret"}, "uid 1000 answered"))
    assert "secret" not in told.content
    world.emit(run, told)
    chat.read()
    assert chat.talk.forms.first is None
    world.emit(run, question(2))
    chat.read()
    assert chat.talk.forms.first
    world.finish(run)
    chat.read()
    assert chat.talk.forms.first is None


def test_a_question_of_the_past_is_asked_where_it_is_still_open() -> None:
    late = Talk("debug/echo", "s", "private", lambda: "m")
    told = approvals.answer_told(question(), Verdict("allow_once", {}, "uid 1000 answered"))
    bad = question(4, schema=[])
    past: list[frames.AnyFrame] = [frames.Start(agent="a"), question(), bad, told, question(2), question(3)]
    past.append(approvals.answer_told(bad, Verdict("deny", None, "it is no form")))
    deeds = late.recall([replace(frame, id=str(n), run="r") for n, frame in enumerate(past, 1)])
    assert [deed.text for deed in deeds if isinstance(deed, Show)] == ["who.asks asks: Who are you?"]
    assert not [deed for deed in deeds if isinstance(deed, Respond)]
    assert late.forms.first
    assert late.forms.first.question.question == "c.q2"
    ended = [*past, frames.Done(status="ok")]
    over = Talk("debug/echo", "s", "private", lambda: "m")
    over.recall([replace(frame, id=str(n), run="r") for n, frame in enumerate(ended, 1)])
    assert over.forms.first is None


def test_bytes_that_are_no_text_are_replaced(world: World, chat: Chat) -> None:
    asked(world, chat, question(schema={"properties": {"name": {"type": "string"}}}))
    chat.talk.forms.take("M\udce4x")
    (_, sent) = chat.talk.forms.take("y")
    assert isinstance(sent, Respond)
    assert sent.content == {"name": "M\ufffdx"}
