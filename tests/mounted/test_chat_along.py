"""`/model`, `/system`, `/attach` and `/save` in a chat, typed as a person would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted import test_chat
from tests.mounted.acting import acting
from tests.mounted.ctx_mount import Ctx
from tests.mounted.screen import Screen
from tests.mounted.test_chat import chat, leave, script
from tests.shell.provider_server import Provider
from tests.shell.provider_server import chat as answer

chats, shown = test_chat.chats, test_chat.shown


@pytest.fixture
def notes(chats: Ctx) -> Iterator[Path]:
    path = chats.work / "notes.txt"
    path.write_text("seven words\n")
    yield path
    path.unlink()


def test_a_file_goes_along_once_and_all_is_saved(shown: Screen, chats: Ctx, notes: Path) -> None:
    # issue: "`/attach`, `/save`"
    chat(shown, "debug/echo", "--session", "along")
    shown.type("/attach missing.txt")
    shown.wait("missing.txt cannot be attached")
    shown.type("/attach notes.txt")
    shown.wait("attached to your next message: notes.txt")
    shown.type("read this")
    shown.wait("seven words")
    shown.type("and this alone")
    shown.wait("\nand this alone")
    shown.type("/attach")
    shown.wait("attached to your next message: nothing; /attach FILE")
    shown.type("/save said.md")
    shown.wait("saved 4 messages in")
    saved = (chats.work / "said.md").read_text()
    assert saved.startswith("## You\n\nread this")
    assert saved.count("seven words") == 2
    assert saved.endswith("## debug/echo\n\nand this alone\n\n")
    shown.type("/save said.md")
    shown.wait("said.md cannot be written: File exists")
    leave(shown)


def test_another_model_answers_in_a_session_of_its_own(shown: Screen) -> None:
    # issue: "`/model`"
    chat(shown, "debug/echo", "--session", "first")
    shown.type("/model debug/nothing")
    shown.wait("there is no object 'debug/nothing'")
    shown.type("/model fs.read")
    shown.wait("tools hold no conversations")
    shown.type("/model debug/script")
    shown.wait("debug/script, session ")
    shown.type(script({"delta": "by "}, {"delta": "script"}))
    shown.wait("\nby script")
    leave(shown)


def test_a_model_is_told_what_to_be(shown: Screen, chats: Ctx) -> None:
    # issue: "`/system`"
    with acting(Provider([answer("aye")])) as server:
        words = ("--base-url", server.base_url, "--format", "openai.chat", "--model", "m", "--tools")
        chats.ctx("provider", "add", "told", *words)
        chat(shown, "told/m")
        shown.type("/system You are a pirate.")
        shown.wait("system prompt: You are a pirate.")
        shown.type("hello")
        shown.wait("\naye")
        shown.type("/system -")
        shown.wait("no system prompt is set")
        shown.type("again")
        shown.wait("> again\naye")
        leave(shown)
        asked = [request.body["messages"] for request in server.requests if request.method == "POST"]
        system = [[one["content"] for one in messages if one["role"] == "system"] for messages in asked]
        assert system == [["You are a pirate."], []]
        chats.ctx("provider", "remove", "told")


def test_an_agent_is_its_files(shown: Screen) -> None:
    chat(shown, "agent/base")
    shown.type("/model debug/echo")
    shown.wait("base is an agent, whose model is the file model in its .d/")
    shown.type("/system You are a pirate.")
    shown.wait("base is an agent, whose system prompt is system.md in its .d/")
    leave(shown)
