"""The questions that a chat answers, and those that it leaves to another client or to a person."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from cortexfs.chat.calls import Show
from cortexfs.chat.exchange import Exchange, Interrupts, interrupts
from cortexfs.chat.state import Talk
from cortexfs.client import Conversation, Failed, new_id
from cortexfs.core import frames
from cortexfs.core.talk import approvals
from cortexfs.core.talk.requests import Decision
from tests.shell.client_server import Served, served

ASKED = frames.Approval(call="c", name="fs.write", input={}, effects=[], reason="")


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Served]:
    """A server whose runs send only the frames that a test makes them send."""
    with served(tmp_path / "slow.sock", echo=False) as server:
        yield server


def test_the_questions_of_others_are_theirs(slow: Served) -> None:
    # protocol.md: "only who sent a message decides for it", so a pipe does not answer it
    talk = Talk("a", "s", "private", new_id)
    with Conversation(slow.path) as person, Conversation(slow.path) as pipe:
        person.send("go", session="s")
        slow.say(slow.until_active(), ASKED)
        exchange = Exchange(talk, pipe, lambda show: None)
        exchange.do(talk.back())
        exchange.run(lambda: bool(talk.questions))
        exchange.do([*talk.say("mine")])
        slow.finish(slow.until_active())
        exchange.run(lambda: not talk.questions)
        assert slow.world.decisions == []


@pytest.mark.parametrize("decision", ["allow_once", None])
def test_what_ours_ask_is_decided(slow: Served, decision: Decision | None) -> None:
    shown: list[Show] = []
    talk = Talk("a", "s", "private", new_id)
    with Conversation(slow.path) as pipe:
        exchange = Exchange(talk, pipe, shown.append, approved=["fs.*"] if decision else [])
        exchange.do([*talk.back(), *talk.say("go")])
        run = slow.until_active()
        slow.say(run, ASKED)
        exchange.run(lambda: any(show.text.endswith("ed: fs.write") for show in shown))
        slow.finish(run)
        exchange.run()
    (told,) = [show.text for show in shown if show.kind == "question" and "denied" in show.text] or [""]
    assert ("with --approve fs.write of ctx" in told) == (decision is None)


def test_a_lost_connection_is_told_on_a_line_of_its_own(slow: Served) -> None:
    shown: list[Show] = []
    talk = Talk("a", "s", "private", new_id)
    with Conversation(slow.path) as pipe:
        exchange = Exchange(talk, pipe, shown.append)
        exchange.do(talk.say("go"))
        slow.say(slow.until_active(), frames.Delta(text="half a "))
        slow.hang_up()
        with pytest.raises(Failed):
            exchange.run()
    assert shown == [Show("answer", "half a "), Show("end")]


def test_what_was_decided_is_not_asked_again(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    # commands.md: "Sent again under the same name it is not said twice: the original run is shown"
    def decide(exchange: Exchange, asked: frames.Approval, pressed: Interrupts) -> Decision:
        raise AssertionError(asked)

    monkeypatch.setattr(Exchange, "decision", decide)
    with Conversation(slow.path) as first, Conversation(slow.path) as again:
        first.send("go", session="s", id="m")
        run = slow.until_active()
        slow.say(run, ASKED, approvals.decided(ASKED, approvals.by(1000, "allow_once", None)))
        slow.finish(run)
        talk = Talk("a", "s", "private", new_id)
        exchange = Exchange(talk, again, lambda show: None)
        exchange.do(talk.say("go", "m"))
        exchange.run()
        assert talk.status == 0


@pytest.mark.parametrize(("pressed", "decision"), [(signal.SIGUSR1, "allow_once"), (signal.SIGINT, "deny")])
def test_only_ctrl_c_answers_for_a_person(
    pressed: signal.Signals, decision: Decision, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The timer of a progress line once denied a call that a person was about to allow.
    reader, writer = os.pipe()
    heard: list[int] = []

    def hear(number: int, where: object) -> None:
        heard.append(number)
        if len(heard) == 3:  # the earlier signals came while the chat waited for a line
            os.kill(os.getpid(), pressed)
        elif len(heard) > 5 and pressed != signal.SIGINT:  # it asks again, below the unseen frames
            os.write(writer, b"y\n")

    before = {number: signal.signal(number, hear) for number in (signal.SIGALRM, signal.SIGUSR1)}
    talk = Talk("a", "s", "private", new_id)
    try:
        with open(reader, encoding="utf-8") as typed, interrupts() as counted:
            monkeypatch.setattr(sys, "stdin", typed)
            talk.questions["c"] = ASKED
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            exchange = Exchange(talk, cast(Conversation, None), lambda show: None, is_asked=True)
            assert exchange.decision(ASKED, counted) == decision
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert counted.take() == (pressed == signal.SIGINT)
            assert counted.take() == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
