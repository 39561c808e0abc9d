"""Calls as a person sees them in a chat, and how questions about them are asked, answered and settled."""

from __future__ import annotations

import msgspec
import pytest

from cortexfs.chat import state
from cortexfs.chat.calls import Show, Surroundings
from cortexfs.chat.state import Talk
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.talk import approvals, refusals
from cortexfs.core.talk.requests import Approve, Verdict
from tests.core import chat_pair
from tests.core.chat_pair import Chat, decision, run_of
from tests.core.conversation_pair import World

world, chat = chat_pair.world, chat_pair.chat


def test_what_tools_do_is_shown(world: World, chat: Chat) -> None:
    # issue: "the terminal session shows tool calls"
    chat.do(chat.talk.say("hello"))
    world.emit(
        run_of(world),
        frames.Delta(text="let me see"),
        frames.ToolCall(call="c", name="fs.read", input={"path": "x\x1b[2J"}),
        frames.ToolResult(call="c", name="fs.read", output="a\nb\x1b" + "c" * 300, is_error=False),
        frames.ToolResult(call="d", name="fs.read", output="no such file", is_error=True),
        frames.Progress(message="half\nway"),
        frames.Progress(message=refusals.CUT),
        frames.Observer(content="not for people"),
        frames.ReasoningDelta(text="hm"),
    )
    chat.read()
    kinds = [show.kind for show in chat.shown]
    results = ["end", "result", "result", "end", "failed"]
    assert kinds == ["answer", "end", "call", *results, "end", "progress", "end", "failed"]
    shown = [show.text for show in chat.shown if show.kind not in ("answer", "end")]
    assert shown[:2] == ['fs.read path="x\\u001b[2J"', "  a"]
    assert shown[2] == "  b\\x1b" + "c" * 300
    assert shown[3:] == ["  fs.read: no such file", "half way", refusals.CUT]
    assert chat.talk.doing == "thinking"


def test_a_result_apart_from_its_call_is_named(world: World, chat: Chat) -> None:
    # issue: "parallel tool calls run side by side"
    chat.do(chat.talk.say("go"))
    for call in "ab":
        world.emit(run_of(world), frames.ToolCall(call=call, name=f"t.{call}", input={}))
    for call in "ba":
        world.emit(
            run_of(world), frames.ToolResult(call=call, name=f"t.{call}", output=call.upper(), is_error=False)
        )
    chat.read()
    assert [show.text for show in chat.shown if show.text] == ["t.a", "t.b", "  B", "t.a:", "  A"]


def test_approvals_are_asked_one_after_the_other(world: World, chat: Chat) -> None:
    # abi.md 5.7
    chat.do(chat.talk.say("go"))
    run = run_of(world)
    for call in ("c1", "c2"):
        world.emit(
            run,
            frames.Approval(call=call, name="fs.write", input={"path": call}, effects=["write"], reason="it"),
        )
    chat.read()
    assert chat.text.count("?") == 1 + chat.text.count("?Allow")
    assert "<It.>?Allow fs.write on c1?" in chat.text
    chat.do(chat.talk.decide(decision("y")))
    assert "<It.>?Allow fs.write on c2?" in chat.text
    chat.do(chat.talk.decide(decision("NO ")))
    assert [(decided.call, decided.decision) for decided in world.decisions] == [
        ("c1", "allow_once"),
        ("c2", "deny"),
    ]
    assert chat.talk.question is None


def test_a_question_says_how_much_of_a_call_it_does_not_show(chat: Chat) -> None:
    # the person who decides must know that there is more
    asked = frames.Approval(
        id="1", run="r", call="c", name="sh", input="x" * 5000, effects=[], reason="because"
    )
    chat.do(chat.talk.hear(asked))
    assert "xxx ... and 4,006 characters more" in chat.text


@pytest.mark.parametrize("is_near", [True, False])
def test_nothing_is_allowed_before_it_was_shown_whole(world: World, chat: Chat, is_near: bool) -> None:
    # issue: "What was cut is shown before it can be approved"
    chat.do(chat.talk.say("go"))
    given = {"cmd": "\n".join([*(f"line {number}" for number in range(900)), "y" * 500 + "; rm -rf /"])}
    world.emit(run_of(world), frames.ToolCall(call="c", name="shell.exec", input=given))
    if not is_near:
        world.emit(run_of(world), frames.Progress(message="working"))
    world.emit(
        run_of(world), frames.Approval(call="c", name="shell.exec", input=given, effects=[], reason="")
    )
    chat.read()
    pages = 0
    while unseen := chat.talk.unseen():
        assert "; rm -rf /" not in chat.text
        assert unseen[-1].kind == "question"
        chat.do([*unseen])
        pages += 1
    assert pages == 2
    text = chat.text
    assert all(f"line {number}" in text for number in range(900))
    assert "; rm -rf /" in text
    chat.do(chat.talk.decide("allow_once"))
    assert [each.decision for each in world.decisions] == ["allow_once"]


def test_a_question_that_stands_behind_anothers_is_shown_before_it_is_allowed(chat: Chat) -> None:
    for number, call in enumerate("ab", 1):
        asked = frames.Approval(
            id=str(number), run="r", call=call, name=f"t.{call}", input={}, effects=[], reason=""
        )
        chat.do(chat.talk.hear(asked))
    assert "t.b" not in chat.text
    assert [each.text for each in chat.talk.unseen("b")] == ["Allow t.b?"]
    assert not chat.talk.unseen("b")


def test_a_question_goes_with_its_run_and_with_its_result(world: World, chat: Chat) -> None:
    chat.do(chat.talk.say("go"))
    for call in ("c1", "c2"):
        asked = frames.Approval(call=call, name="t", input={}, effects=[], reason="")
        world.emit(run_of(world), asked)
    world.emit(run_of(world), frames.ToolResult(call="c1", name="t", output="", is_error=False))
    chat.read()
    assert chat.talk.question
    assert chat.talk.question.call == "c2"
    assert chat.text.count("?Allow t?") == 2  # the second question is asked next
    chat.do(chat.talk.interrupt())
    assert chat.talk.question is None
    assert [(each.call, each.decision) for each in world.decisions] == [("c2", "deny")]


def test_an_interrupt_denies_nothing_that_is_another_users(world: World) -> None:
    # protocol.md: "In a shared session anybody may cancel ..., and only who sent a message decides"
    chat = Chat(world, scope="shared")
    chat.do(
        chat.talk.hear(frames.Approval(id="1", run="r", call="c", name="t", input={}, effects=[], reason=""))
    )
    assert not [deed for deed in chat.talk.interrupt() if isinstance(deed, Approve)]


def test_an_edited_call_is_allowed_once(world: World, chat: Chat) -> None:
    # issue: "[e]dit"
    chat.do(chat.talk.say("go"))
    for call in ("c1", "c2"):
        world.emit(
            run_of(world),
            frames.Approval(call=call, name="t", input={"path": "x"}, effects=[], reason=""),
        )
    chat.read()
    assert state.answer("e") == state.answer(" Edit") == state.EDIT
    with pytest.raises(Fault, match="over 256 KiB"):
        chat.talk.decide("allow_once", {"path": "x" * (256 << 10)})
    chat.do(chat.talk.decide("allow_once", {"path": "y"}))
    assert "<allowed, as you changed it: t>" in chat.text
    chat.do(chat.talk.decide("allow_once", {"path": "x"}))  # the same input as before counts as no edit
    assert [(each.call, each.input) for each in world.decisions] == [("c1", {"path": "y"}), ("c2", None)]


def test_what_is_decided_elsewhere_is_told(world: World, chat: Chat) -> None:
    # issue: "nobody connected, EOF or timeout: deny"
    chat.do(chat.talk.say("go"))
    questions = [
        frames.Approval(call=call, name=f"t.{call}", input={}, effects=[], reason="") for call in "abc"
    ]
    world.emit(run_of(world), *questions)
    chat.read()
    timed_out = Verdict("deny", None, "no answer came within 600 s")
    world.emit(run_of(world), approvals.decided(questions[0], timed_out))
    world.emit(run_of(world), approvals.decided(questions[2], approvals.by(7, "allow_once", None)))
    chat.read()
    assert "<denied: t.a (no answer came within 600 s)>?Allow t.b?" in chat.text
    assert "<allowed: t.c (uid 7 allowed it once)>" in chat.text
    assert list(chat.talk.questions) == ["b"]
    chat.do(chat.talk.decide("deny"))
    before = chat.text
    world.emit(run_of(world), approvals.decided(questions[1], approvals.by(1000, "deny", None)))
    chat.read()
    assert chat.text == before  # the person who decided is not told of it
    refused = frames.Approval(call="d", name="t.d", input={}, effects=[], reason="")
    world.emit(run_of(world), approvals.decided(refused, Verdict("deny", None, "the policy says so")))
    chat.read()
    assert chat.text.endswith("|<denied: t.d (the policy says so)>")


def test_a_change_is_shown_once_for_a_call_and_its_question(world: World) -> None:
    # issue: "diffs of writes and approvals as they happen"
    chat = Chat(world)
    chat.talk = Talk("debug/echo", "s", "private", lambda: "m", sight=Surroundings(lambda path: b"old\n"))
    chat.do(chat.talk.say("go"))
    given = {"path": "f", "content": "new\n"}
    for call in "ab":
        world.emit(run_of(world), frames.ToolCall(call=call, name="fs.write", input=given))
    for call in "ba":
        asked = frames.Approval(call=call, name="fs.write", input=given, effects=[], reason="")
        world.emit(run_of(world), asked)
    chat.read()
    assert [show.kind for show in chat.shown].count("added") == 2
    assert chat.shown[-1] == Show("end")
    chat.do(chat.talk.decide("deny"))
    assert [show.kind for show in chat.shown].count("added") == 3  # again, far below its call
    assert chat.shown[-1] == Show("question", "Allow fs.write on f?")


def test_questions_of_the_past_are_asked_when_they_are_still_open() -> None:
    read: list[str] = []

    def reading(path: str) -> bytes:
        read.append(path)
        return b""

    late = Talk("debug/echo", "s", "private", lambda: "m", sight=Surroundings(reading))
    given = {"path": "f", "content": "x"}
    past: list[frames.AnyFrame] = [frames.Start(id="1", run="r", agent="a")]
    for number, call in enumerate("abc", 2):
        past.append(frames.ToolCall(id=str(2 * number), run="r", call=call, name="fs.write", input=given))
        asked = frames.Approval(call=call, name="fs.write", input=given, effects=[], reason="")
        past.append(msgspec.structs.replace(asked, id=str(2 * number + 1), run="r"))
    gave = frames.ToolResult(id="20", run="r", call="a", name="fs.write", output="", is_error=False)
    deeds = late.recall([*past, gave])
    assert [deed.text for deed in deeds if isinstance(deed, Show) and deed.kind == "question"] == [
        "Allow fs.write on f?"
    ]
    assert late.question
    assert late.question.call == "b"
    assert read == ["f"]  # only for the open question: the files of settled calls have changed since


def test_an_always_is_for_the_session(world: World, chat: Chat) -> None:
    chat.do(chat.talk.say("go"))
    world.emit(run_of(world), frames.Approval(call="c", name="t", input={}, effects=[], reason=""))
    chat.read()
    deeds = chat.talk.decide(decision("a"))
    assert any(isinstance(deed, Approve) and deed.decision == "allow_session" for deed in deeds)
