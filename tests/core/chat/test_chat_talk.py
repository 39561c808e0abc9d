"""A chat's side of a conversation, against the sans-IO server, and frames as they appear on the screen."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.chat import state
from cortexfs.chat.calls import Show
from cortexfs.chat.state import Deed, Leave, Talk
from cortexfs.core import frames
from cortexfs.core.errors import Fault, exit_status
from cortexfs.core.talk import approvals
from cortexfs.core.talk.requests import Cancel, Resume, Send, SessionKey, Verdict
from tests.core import chat_pair
from tests.core.chat_pair import Chat, run_of
from tests.core.conversation_pair import World
from tests.tables import each_of

world, chat = chat_pair.world, chat_pair.chat


def test_an_answer_is_streamed_and_not_repeated(world: World, chat: Chat) -> None:
    # abi.md 5.13
    world.echo = True
    chat.do(chat.talk.say("hello you"))
    assert chat.text == "helloyou||"
    assert not chat.talk.busy
    assert chat.talk.status == 0


def test_an_answer_without_deltas_is_shown_whole(world: World, chat: Chat) -> None:
    chat.do(chat.talk.say("hello"))
    assert chat.talk.busy
    world.emit(
        run_of(world), frames.Message(role="assistant", content=[frames.Text("all"), frames.Text("!")])
    )
    world.finish(run_of(world))
    chat.read()
    assert chat.text == "all!||"


def test_a_long_text_in_several_messages_is_not_repeated(world: World, chat: Chat) -> None:
    # abi.md 5.23
    chat.do(chat.talk.say("hello"))
    halves = [frames.Message(role="assistant", content=[frames.Text(half)]) for half in ("abc", "def")]
    world.emit(run_of(world), frames.Delta(text="abcd"), frames.Delta(text="ef"), *halves)
    world.emit(run_of(world), frames.Message(role="assistant", content=[frames.Text("another")]))
    chat.read()
    assert chat.text == "abcdef|another|"


def test_a_failure_is_one_line(world: World, chat: Chat) -> None:
    # abi.md 4.21
    chat.do(chat.talk.say("hello"))
    world.finish(run_of(world), Fault("EHOSTDOWN", "no answer\nfrom\x1b it"))
    chat.read()
    assert chat.text == "|!debug/echo: EHOSTDOWN: no answer from\\x1b it!|"
    assert chat.talk.status == 69


def test_a_run_that_could_not_be_written_is_over(chat: Chat) -> None:
    # abi.md 5.12: on a full disk there is no start, and the error has the id of the message
    chat.talk.say("hello")
    chat.hear([frames.Error(run="r1", request="m1", code="ENOSPC", message="make room")])
    chat.hear([frames.Done(run="r1", status="error", code="ENOSPC")])
    assert chat.text == "|!debug/echo: ENOSPC: make room!|"
    assert not chat.talk.busy
    assert chat.talk.status == exit_status("ENOSPC")


def test_a_refused_message_is_no_run(chat: Chat) -> None:
    chat.do([Send(id="m9", session="../x", input="hello")])
    assert "!debug/echo: EINVAL: " in chat.text
    chat.talk.say("hello")
    chat.do(chat.talk.hear(frames.Error(request="m1", code="EAGAIN", message="too many wait")))
    assert not chat.talk.busy
    assert chat.talk.status == 1


def test_a_directory_goes_with_the_first_message_that_is_taken() -> None:
    talk = Talk("coder", "default", "private", iter(("m1", "m2", "m3")).__next__, "/work")
    assert talk.say("one") == [Send(id="m1", cwd="/work", input="one")]
    talk.hear(frames.Error(request="m1", code="ENOENT", message="cwd: there is no /work"))
    # The next message names the directory again, so that no run begins in another one.
    assert talk.say("two") == [Send(id="m2", cwd="/work", input="two")]
    assert talk.say("three") == [Send(id="m3", input="three")]


def test_the_first_interrupt_cancels_and_the_second_leaves(world: World, chat: Chat) -> None:
    # issue: "Ctrl-C cancels the run and a second one leaves"
    chat.do(chat.talk.say("hello"))
    chat.shown.clear()
    world.emit(run_of(world), frames.Delta(text="par"))
    chat.read()
    chat.do(chat.talk.interrupt())
    assert chat.text == "par<cancelling; Ctrl-C again leaves>|<cancelled>"
    assert chat.left is None
    assert chat.talk.status == 130
    chat.talk.say("again")
    assert not any(isinstance(deed, Leave) for deed in chat.talk.interrupt())
    assert chat.talk.interrupt() == [Leave(130)]


def test_a_message_that_waits_is_cancelled_too(world: World, chat: Chat) -> None:
    # protocol.md: "a message that waits has no `start` yet"
    chat.do(chat.talk.say("one"))
    chat.do(chat.talk.say("two"))
    chat.do(chat.talk.interrupt())
    assert not chat.talk.busy
    assert [asked.id for asked in chat.asked if isinstance(asked, Cancel)][1:] == ["m2"]


def test_a_cancel_that_nobody_heard_is_said_again(world: World, chat: Chat) -> None:
    chat.do(chat.talk.say("one"))
    chat.talk.interrupt()  # the connection is lost at this moment
    run = run_of(world)
    chat.connect()
    assert [asked.id for asked in chat.asked if isinstance(asked, Cancel)] == [run]
    assert not chat.talk.busy


def test_what_waits_is_shown_when_its_turn_comes(world: World, chat: Chat) -> None:
    # commands.md: "what you send while something runs waits, and is shown when its turn comes"
    chat.do(chat.talk.say("one"))
    chat.do(chat.talk.say("two", is_shown=False))
    assert chat.talk.waiting == 1
    world.emit(run_of(world), frames.Delta(text="1"))
    world.finish(run_of(world))
    chat.read()
    assert chat.text == "1|>two<"
    assert chat.talk.waiting == 0


def test_a_cancel_that_comes_too_late_is_no_news(world: World, chat: Chat) -> None:
    chat.do(chat.talk.say("one"))
    world.finish(run_of(world))
    chat.do(chat.talk.interrupt())
    chat.read()
    assert "!" not in chat.text
    assert not chat.talk.cancelling


def test_an_interrupt_at_rest_warns_and_then_leaves(chat: Chat) -> None:
    chat.do(chat.talk.interrupt())
    assert chat.left is None
    assert "Ctrl-C again leaves" in chat.text
    chat.do(chat.talk.interrupt())
    assert chat.left == 130


def test_typing_takes_the_warning_back(world: World, chat: Chat) -> None:
    world.echo = True
    chat.talk.interrupt()
    chat.do(chat.talk.say("hello"))
    chat.do(chat.talk.interrupt())
    assert chat.left is None


@pytest.mark.parametrize("dies_after", range(8))
def test_nothing_is_shown_twice_or_lost_when_the_daemon_restarts(world: World, dies_after: int) -> None:
    # issue: "reconnect and resume after a daemon restart"
    chat = Chat(world)
    steps: list[Callable[[], None]] = [
        lambda: chat.do(chat.talk.say("one")),
        lambda: world.emit(run_of(world), frames.Delta(text="1")),
        lambda: world.emit(run_of(world), frames.Delta(text="2")),
        chat.read,
        lambda: world.finish(run_of(world)),
        chat.read,
        lambda: chat.do(chat.talk.say("two")),
        lambda: world.emit(run_of(world), frames.Delta(text="3")),
    ]
    for step in steps[: dies_after + 1]:
        step()
    world.restart()
    assert chat.talk.lost() == []
    chat.connect()
    events = [frames.decode(event.line) for event in world.logs[SessionKey("private", 1000, "s")]]
    said = [frame.text for frame in events if isinstance(frame, frames.Delta)]
    assert [show.text for show in chat.shown if show.kind == "answer"] == said
    ends = [frame for frame in events if isinstance(frame, frames.Done)]
    assert len(ends) == 1 + (dies_after >= 6)
    assert not chat.talk.busy


def test_a_message_that_was_not_begun_is_said_again_under_its_id(world: World, chat: Chat) -> None:
    # abi.md 5.14
    chat.talk.say("one")  # written, and lost with the daemon
    world.restart()
    world.echo = True
    chat.connect()
    assert chat.text == "one||"
    sent = [asked for asked in chat.asked if isinstance(asked, Send)]
    assert [send.id for send in sent] == ["m1"]
    world.restart()
    chat.connect()
    assert chat.text == "one||"


def test_what_others_say_is_shown(world: World, chat: Chat) -> None:
    # abi.md 5.18
    world.echo = True
    world.connect().ask(Send(id="m1x", session="s", input="from\x1b elsewhere"))
    chat.read()
    assert chat.text == ">from\\x1b elsewhere<from\x1belsewhere||"


def test_a_session_that_was_removed_begins_anew(world: World, chat: Chat) -> None:
    # abi.md 5.19
    world.echo = True
    chat.do(chat.talk.say("one"))
    world.restart()
    world.logs.clear()
    world.sessions.clear()
    chat.connect()
    assert "begun anew" in chat.text
    chat.do(chat.talk.say("two"))
    assert chat.text.endswith("two||")


def test_a_temp_session_ends_with_its_connection(world: World) -> None:
    # abi.md 5.24
    chat = Chat(world, scope="temp")
    chat.do(chat.talk.say("one"))
    world.restart()
    chat.do(chat.talk.lost())
    assert not chat.talk.busy
    assert "temp session" in chat.text
    world.echo = True
    chat.connect()
    chat.do(chat.talk.say("two"))
    assert chat.text.endswith("two||")


@each_of("text", ["", "yess", "fly", "y n"])
def test_only_an_answer_is_one(text: str) -> None:
    # words that a person was typing as the question came must not count as a yes
    with pytest.raises(Fault):
        state.answer(text)
    assert state.answer("always") == "allow_session"


def test_what_was_said_before_is_recalled_without_its_deltas(world: World) -> None:
    world.echo = True
    first = Chat(world)
    first.do(first.talk.say("one two"))
    world.echo = False
    first.do(first.talk.say("three"))
    world.emit(run_of(world), frames.Delta(text="thr"))
    past = [frames.decode(event.line) for event in world.logs[SessionKey("private", 1000, "s")]]
    later = Chat.__new__(Chat)
    later.world, later.shown, later.asked = world, [], []
    later.talk = Talk("debug/echo", "s", "private", lambda: "other")
    later.do(later.talk.recall(past))
    assert later.text == ">one two<one two||>three<thr"
    assert later.talk.busy
    later.connect()
    resume = later.asked[0]
    assert isinstance(resume, Resume)
    assert resume.after == past[-1].id
    world.emit(run_of(world), frames.Delta(text="ee"))
    later.read()
    assert later.text.endswith(">three<three")


WILD = st.text(st.sampled_from("ab\x1b[2J\x07\r\n\u202e\x9b"), max_size=8)
FRAMES = st.one_of(
    st.builds(frames.Start, request=st.sampled_from(["m1", "other", None])),
    st.builds(frames.Delta, text=WILD),
    st.builds(
        frames.Message,
        role=st.sampled_from(["user", "assistant", "system"]),
        content=st.lists(st.builds(frames.Text, WILD), max_size=2),
    ),
    st.builds(frames.ReasoningDelta, text=WILD),
    st.builds(frames.ToolCall, call=WILD, name=WILD, input=WILD),
    st.builds(frames.ToolResult, call=WILD, name=WILD, output=WILD, is_error=st.booleans()),
    st.builds(frames.Progress, message=WILD),
    st.builds(frames.Observer, content=WILD),
    st.builds(
        approvals.decided,
        st.builds(frames.Approval, call=WILD, name=WILD, input=WILD, effects=st.just([]), reason=WILD),
        st.builds(Verdict, st.sampled_from(["allow_once", "deny"]), st.none(), WILD),
    ),
    st.builds(
        frames.ToolCall,
        call=WILD,
        name=st.sampled_from(["fs.write", "fs.replace", "shell.exec"]),
        input=st.fixed_dictionaries(
            {}, optional={key: WILD for key in ("path", "content", "old", "new", "diff", "cmd")}
        ),
    ),
    st.builds(frames.Media, attachment=st.one_of(WILD, st.dictionaries(st.just("url"), WILD))),
    st.builds(frames.Usage, input_tokens=st.integers(), output_tokens=st.integers()),
    st.builds(
        frames.Approval, call=WILD, name=WILD, input=WILD, effects=st.lists(WILD, max_size=2), reason=WILD
    ),
    st.builds(frames.Error, code=WILD, message=WILD),
    st.builds(
        frames.Done, status=st.sampled_from(["ok", "error", "cancelled"]), code=st.one_of(st.none(), WILD)
    ),
)


@given(st.lists(st.tuples(FRAMES, st.sampled_from(["r1", "r2"])), max_size=30), st.integers(0, 30))
def test_whatever_comes_is_shown_safely(heard: list[tuple[frames.AnyFrame, str]], interrupted: int) -> None:
    # the module: "All other text is escaped here."
    chat = Talk("debug/echo", "s", "private", lambda: "m1")
    chat.say("hello")
    deeds: list[Deed] = []
    for number, (frame, run) in enumerate(heard, 1):
        deeds += chat.hear(msgspec.structs.replace(frame, id=str(number), run=run))
        if number == interrupted:
            deeds += chat.interrupt()
        if number % 7 == 0 and chat.question:
            deeds += chat.decide("deny")
    deeds += chat.back()
    for deed in deeds:
        if isinstance(deed, Show) and deed.kind != "answer":
            assert not re.search("[\x1b\x07\r\u202e\x9b]", deed.text)
            assert deed.kind == "other" or "\n" not in deed.text
