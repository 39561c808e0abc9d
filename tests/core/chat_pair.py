"""A chat's talk, together with the sans-IO server at its other end."""

from __future__ import annotations

import itertools

import pytest

from cortexfs.chat import state
from cortexfs.chat.calls import Show
from cortexfs.chat.state import Deed, Leave, Talk
from cortexfs.core import frames
from cortexfs.core.talk import requests
from cortexfs.core.talk.requests import Decision, SessionKey
from tests.core.conversation_pair import Connection, World


class Chat:
    """A talk on a connection, and the list of all that it showed."""

    def __init__(self, world: World, session: str = "s", scope: requests.Scope = "private") -> None:
        numbers = itertools.count(1)
        self.world = world
        self.talk = Talk("debug/echo", session, scope, lambda: f"m{next(numbers)}")
        self.shown: list[Show] = []
        self.asked: list[requests.AnyRequest] = []
        self.left: int | None = None
        self.connection: Connection
        self.connect()

    def connect(self) -> None:
        self.connection = self.world.connect()
        self.do(self.talk.back())

    def do(self, deeds: list[Deed]) -> None:
        for deed in deeds:
            if isinstance(deed, Show):
                self.shown.append(deed)
            elif isinstance(deed, Leave):
                self.left = deed.status
            else:
                self.asked.append(deed)
                self.hear(self.connection.ask(deed))

    def hear(self, heard: list[frames.AnyFrame]) -> None:
        for frame in heard:
            self.do(self.talk.hear(frame))

    def read(self) -> None:
        self.hear(self.connection.read())

    @property
    def text(self) -> str:
        """The text on the screen: pieces of an answer are joined, all else is marked by its kind."""
        marks = {
            "answer": "{}",
            "end": "|",
            "note": "<{}>",
            "error": "!{}!",
            "other": ">{}<",
            "question": "?{}",
        }
        return "".join(marks.get(show.kind, "({})").format(show.text) for show in self.shown)


def run_of(world: World, session: str = "s") -> str:
    active = world.sessions[SessionKey("private", 1000, session)].active
    assert active
    return active.run


def decision(text: str) -> Decision:
    reply = state.answer(text)
    assert reply != state.EDIT
    return reply


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def chat(world: World) -> Chat:
    return Chat(world)
