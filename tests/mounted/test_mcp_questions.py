"""Questions of an MCP server in a call of an agent: a person answers them, in a chat and in `ctx ask`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from tests.mounted import mcp_places
from tests.mounted.agents import agent, call, say, script
from tests.mounted.ctx_mount import Ctx
from tests.mounted.screen import PROMPT, Screen, screen
from tests.mounted.test_chat import chat, environ, leave

place = mcp_places.place
TOOL = "conf.test_elicitation"
ASKS = script(call(TOOL, "c", message="Who are you?"), say("thanks"))
USERNAME, EMAIL = "username (may be empty):", "email (may be empty):"


@pytest.fixture(scope="module")
def clerk(place: Ctx) -> Iterator[str]:
    with agent(place, "clerk", "conf.*") as path:
        yield path


@pytest.fixture
def shown(place: Ctx) -> Iterator[Screen]:
    with screen(environ(place), place.work, (100, 30)) as shown:
        yield shown


def begun(shown: Screen, clerk: str, session: str) -> None:
    chat(shown, clerk, "--session", session)
    shown.type(ASKS)
    shown.wait_last("[y]es [n]o [a]lways [e]dit:")
    shown.type("y")
    shown.wait(f"{TOOL} asks: Who are you?")
    shown.wait_last(USERNAME)


def test_a_form_is_filled_in_in_a_chat(shown: Screen, place: Ctx, clerk: str) -> None:
    # issue: "elicitation (asked in ctx chat and ctx ask on a terminal)"
    begun(shown, clerk, "form")
    shown.type("ann")
    shown.wait_last(EMAIL)
    shown.type("a@example.org")
    shown.wait(f"  username: ann\n  email: a@example.org\nSend this to {TOOL}?")
    shown.wait_last("y (yes) or n (no):")
    shown.type("perhaps")
    shown.wait("answer y (yes) or n (no)")
    shown.type("y")
    shown.wait('action=accept, content={"username": "ann", "email": "a@example.org"}')
    shown.wait_last(">")
    leave(shown)
    past = place.ctx("resume", clerk, "--session", "form").stdout
    assert '\\"answered\\":true' in past
    assert past.count("a@example.org") == 1  # in the result of the tool


def test_ctrl_c_declines(shown: Screen, clerk: str) -> None:
    # chat.md: "Ctrl-C declines"
    begun(shown, clerk, "declined")
    shown.type("ann")
    shown.wait_last(EMAIL)
    shown.keys("C-c")
    shown.wait("action=decline, content=null")
    shown.wait("thanks")
    shown.wait_last(">")
    leave(shown)


def test_what_was_being_typed_is_no_answer(shown: Screen, clerk: str) -> None:
    chat(shown, clerk, "--session", "typing")
    shown.type(ASKS)
    shown.wait_last("[y]es [n]o [a]lways [e]dit:")
    shown.keys("y", "Enter", *"my secret")
    shown.wait(f"{USERNAME} my secret")
    shown.keys("Enter")
    shown.wait("what you were typing is kept; now answer the tool")
    shown.wait_last(USERNAME)
    shown.keys("C-c")
    shown.wait("action=decline")
    shown.wait_last("> my secret")
    shown.keys("C-u")
    leave(shown)


def test_one_question_asks_too(shown: Screen, clerk: str) -> None:
    # issue: "ctx ask on a terminal"
    shown.type(f"ctx ask -m {clerk} --approve {TOOL} {shlex.quote(ASKS)}")
    shown.wait_last(USERNAME)
    shown.type("bob")
    shown.wait_last(EMAIL)
    shown.type("")
    shown.wait(f"  username: bob\nSend this to {TOOL}?")
    shown.type("y")
    shown.wait('content={"username": "bob"}')
    shown.wait("thanks")
    shown.wait_last(PROMPT.strip())


def test_where_nobody_is_it_is_declined(place: Ctx, clerk: str) -> None:
    # mcp.md: "Nobody there, or no terminal: it is declined"
    done = place.ctx("ask", "-m", clerk, "--approve", TOOL, ASKS)
    assert done.stdout == "thanks\n"
    assert "declined, as there is no terminal to ask on" in done.stderr

    frames = place.ctx("send", clerk, "--approve", TOOL, ASKS).stdout
    assert "action=decline, content=null" in frames
    assert '\\"answered\\":false' in frames


def test_a_run_without_a_person_is_told_where_there_is_one(place: Ctx) -> None:
    # issue: "elsewhere refused with a sentence"
    done = place.call(TOOL, '{"message": "x"}')
    where = "ctx chat and ctx ask with an agent, or ctx mcp call conf, on a terminal"
    assert (done.code, done.message) == (
        "EIO",
        f"this run of the tool cannot ask a person; to answer its questions, use {where}",
    )
