"""`ctx chat` as a person uses it, by keys and a screen, in a real terminal on a real mount."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx, mounted, wait_gone
from tests.mounted.screen import PROMPT, Screen, screen
from tests.waiting import until

READY = "/help says what you can do"
COLOUR = re.compile(r"\x1b\[[0-9;]*[34]\d")


@pytest.fixture(scope="module")
def chats(python: Path) -> Iterator[Ctx]:
    """A mount for the chats of this file."""
    with mounted(python) as mount:
        yield mount


@pytest.fixture
def shown(chats: Ctx) -> Iterator[Screen]:
    with screen(environ(chats), chats.work) as shown:
        yield shown


def environ(ctx: Ctx, **more: str) -> dict[str, str]:
    path = f"{ctx.python.parent}:{ctx.environ['PATH']}"
    return {**ctx.environ, "PATH": path, "HOME": str(ctx.base), **more}


def chat(shown: Screen, object_: str = "debug/echo", *words: str, before: str = "") -> None:
    shown.type(" ".join([*before.split(), "ctx", "chat", object_, *words]))
    shown.wait(READY)
    shown.wait_last(">")


def leave(shown: Screen, status: int = 0) -> None:
    shown.keys("C-d")
    shown.wait_last(PROMPT.strip())
    was(shown, status)


def was(shown: Screen, status: int) -> None:
    shown.type("echo status=$?.")
    shown.wait(f"status={status}.")


def script(*steps: object) -> str:
    return json.dumps(steps, separators=(",", ":"))


def test_what_is_said_is_answered(shown: Screen) -> None:
    # issue: "an interactive client with line editing, history, multi-line input, streaming output"
    chat(shown, "debug/echo", "--session", "said")
    shown.type("hello *you*")
    shown.wait("> hello *you*\nhello you\n")
    shown.wait_last(">")
    shown.keys("Up")
    shown.wait_last("> hello *you*")
    shown.keys("C-a", "C-k")
    shown.wait_last(">")
    leave(shown)


def test_markdown_is_drawn_as_it_comes(shown: Screen) -> None:
    # issue: "streaming output, Markdown rendered on a terminal, spinner while waiting"
    chat(shown, "debug/script", "--session", "drawn")
    steps = ({"delta": "# Title\n\nSome *words*\n\n- one\n"}, {"delta": "- two"}, {"hang": True})
    shown.type(script(*steps))
    shown.wait("Title\n\nSome words\n\n • one\n • two\n")
    shown.wait("Ctrl-C cancels)")
    assert COLOUR.search(shown.coloured)
    shown.keys("C-c")
    shown.wait("cancelled")
    shown.wait_gone("Ctrl-C cancels)")
    assert shown.text.count(" • two") == 1
    leave(shown)


def test_ctrl_c_cancels_and_a_second_one_leaves(shown: Screen, chats: Ctx) -> None:
    # issue: "Ctrl-C cancels the run and a second one leaves"
    chat(shown, "debug/script", "--session", "twice")
    shown.type(script({"delta": "part"}, {"hang": True}))
    shown.wait("\npart\n")
    shown.keys("C-c")
    shown.wait("cancelling; Ctrl-C again leaves")
    shown.wait("cancelled")
    shown.wait_last(">")
    shown.type(script({"delta": "again"}))
    shown.wait("\nagain\n")
    shown.keys("h", "i", "C-c")
    shown.wait_last(">")
    shown.keys("C-c")
    shown.wait("Ctrl-C again leaves, and so does Ctrl-D")
    shown.keys("C-c")
    shown.wait_last(PROMPT.strip())
    was(shown, 130)
    events = chats.ctx("resume", "debug/script", "--session", "twice").stdout
    assert '"status":"cancelled"' in events


def test_typing_goes_on_while_something_runs(shown: Screen) -> None:
    # chat.md: "what you send while something runs waits, and is shown when its turn comes"
    chat(shown, "debug/script", "--session", "ahead")
    shown.type(script({"delta": "first"}, {"sleep": 0.5}, {"delta": " end"}))
    shown.wait("\nfirst\n")
    shown.type(script({"delta": "second"}))
    shown.wait("1 more to send")
    shown.wait("\nfirst end\n\n> [")
    shown.wait("\nsecond\n")
    shown.wait_last(">")
    leave(shown)


def test_leaving_lets_a_run_go_on_and_the_next_chat_shows_it(shown: Screen) -> None:
    # abi.md 5.24
    chat(shown, "debug/script", "--session", "goes-on")
    shown.type(script({"delta": "begun"}, {"sleep": 1}, {"delta": " and ended"}))
    shown.wait("\nbegun\n")
    shown.keys("C-d")
    shown.wait("the run goes on; see: ctx chat debug/script --session goes-on")
    shown.type("clear")
    chat(shown, "debug/script", "--session", "goes-on")
    shown.wait("\nbegun and ended\n")
    assert shown.text.count("\nbegun and ended\n") == 1
    leave(shown)


def test_orders(shown: Screen) -> None:
    # issue: "/help /new /sessions /resume /quit"
    chat(shown, "debug/echo", "--session", "first")
    shown.type("said in the first")
    shown.wait("\nsaid in the first")
    shown.type("/help")
    shown.wait("begin another session")
    shown.wait("Alt-Enter")
    shown.type("/nwe")
    shown.wait("there is no /nwe; did you mean /new?")
    shown.wait("there are /help, /new, /sessions, /resume,\n/model, /system, /attach, /save, /pin, /quit.")
    shown.type("/new second")
    shown.wait("debug/echo, session second")
    shown.type("said in the second")
    shown.wait("\nsaid in the second")
    shown.type("/sessions")
    shown.wait("* second")
    shown.wait("  first")
    shown.keys("C-l")
    shown.type("/resume nowhere")
    shown.wait("there is no session 'nowhere'")
    shown.type("/resume")
    shown.wait("debug/echo, session first")
    shown.wait("> said in the first\nsaid in the first")
    shown.type("/quit")
    shown.wait_last(PROMPT.strip())
    was(shown, 0)


def test_the_greeting_says_whose_the_session_is(shown: Screen) -> None:
    # chat.md: "a temp session is kept nowhere and ends with the chat"
    chat(shown, "debug/echo", "--scope", "temp")
    shown.wait("debug/echo, temp session default, kept nowhere; /help")
    leave(shown)
    chat(shown, "debug/echo", "--scope", "shared", "--session", "ours")
    shown.wait("debug/echo, shared session ours; /help")
    leave(shown)


def test_several_lines_are_one_message(shown: Screen, chats: Ctx) -> None:
    # chat.md: "Alt-Enter, or a backslash before Enter | begins a new line"
    chat(shown, "debug/echo", "--session", "lines")
    shown.keys("a", "M-Enter", "b", "\\", "Enter", "c", "Enter")
    shown.wait("> a\n> b\n> c\na\nb\nc\n")
    leave(shown)
    assert said(chats, "lines") == ["a\nb\nc"]


def test_a_paste_of_ten_thousand_lines_is_one_message(shown: Screen, chats: Ctx) -> None:
    # issue: "paste of 10,000 lines"
    chat(shown, "debug/echo", "--session", "pasted")
    text = "\n".join(f"pasted line {number}" for number in range(10_000))
    shown.paste(text)
    shown.wait("pasted line 9999")
    shown.keys("Enter")
    until(lambda: shown.past, lambda past: "and 9,988 lines more" in past)
    until(lambda: shown.past, lambda past: past.count("pasted line 9999") == 1)
    shown.wait_last(">")
    leave(shown)
    assert said(chats, "pasted") == [text]


def test_a_message_is_written_in_an_editor(chats: Ctx) -> None:
    # chat.md: "writes the message in `$EDITOR`, from where it comes back to be sent"
    with screen(environ(chats, EDITOR="sed -i s/old/new/"), chats.work) as shown:
        chat(shown, "debug/echo", "--session", "written")
        shown.keys("o", "l", "d", "C-x", "C-e")
        shown.wait_last("> new")
        shown.keys("Enter")
        shown.wait("> new\nnew\n")
        shown.keys("a", "n", "d", "C-o")  # accepts the line, as in bash
        shown.wait("> and\nand\n")
        leave(shown)
    assert said(chats, "written") == ["new", "and"]


def test_what_is_too_long_is_refused_with_a_sentence(shown: Screen) -> None:
    # chat.md: "over 1 MiB it is refused"
    chat(shown, "debug/echo", "--session", "long")
    shown.paste("x" * ((1 << 20) + 1))
    shown.wait("a message has at most 1 MiB; put the pasted text into a file")
    shown.wait_last(">")
    leave(shown)


def test_a_window_that_changes_its_size(shown: Screen) -> None:
    # issue: "resize"
    chat(shown, "debug/script", "--session", "sized")
    words = " ".join(f"word{number}" for number in range(30))
    shown.type(script({"delta": f"{words}\n\n- item"}, {"hang": True}))
    shown.wait(" • item\n")
    for width, height in ((40, 12), (120, 40), (20, 6), (80, 24)):
        shown.resize(width, height)
        shown.wait("• item")
        shown.wait_last(">")
    shown.keys("C-c")
    shown.wait("cancelled")
    shown.type(script({"delta": "after"}))
    shown.wait("\nafter\n")
    leave(shown)


def test_no_control_character_of_an_answer_reaches_the_terminal(shown: Screen) -> None:
    # chat.md: "control characters of answers are written out (`\\x1b`)"
    chat(shown, "debug/script", "--session", "controls")
    wild = "a\x1b[2Jb \x1b]0;owned\x07 &#27;[2J \x9b2J"
    steps = ({"delta": wild}, {"progress": wild}, {"error": {"code": "EIO", "message": wild}})
    shown.type(json.dumps(steps))
    shown.wait("debug/script: EIO: a\\x1b[2Jb \\x1b]0;owned\\x07")
    assert shown.text.count("\\x1b[2J") == 3
    assert READY in shown.text
    leave(shown)


def test_a_question_is_answered_and_what_was_being_typed_comes_back(shown: Screen) -> None:
    # chat.md: "what you were typing when the question came is back when the run has ended"
    chat(shown, "debug/script", "--session", "asked")
    asks = {
        "approval": {"name": "fs.write", "input": {"path": "x"}, "effects": ["write"], "reason": "it must"}
    }
    shown.type(script({"sleep": 0.5}, asks, {"delta": " decided"}))
    shown.wait("Ctrl-C cancels)")
    shown.keys("f", "l")
    shown.wait("It must.\nAllow fs.write on x?")
    shown.keys("y", "Enter")
    shown.wait("answer y (yes, this once), n (no), a (always in this session)")
    shown.wait_last("[y]es [n]o [a]lways [e]dit:")
    shown.type("always")
    shown.wait("allowed for this session: fs.write")
    shown.wait("allow_session decided")
    shown.wait_last("> fly")
    shown.keys("C-c")
    leave(shown)


def test_no_colour_where_none_is_wanted(shown: Screen) -> None:
    # issue: "no colour when NO_COLOR"
    chat(shown, "debug/script", "--session", "pale", before="NO_COLOR=1")
    shown.type(script({"delta": "# Title\n\n`code`"}, {"error": {"code": "EIO", "message": "broken"}}))
    shown.wait("EIO: broken")
    assert not COLOUR.search(shown.coloured.replace("\x1b[39m\x1b[49m", ""))
    assert "Title\n\ncode\n" in shown.text
    leave(shown)


@pytest.mark.parametrize("python_", ["", "PYTHONUTF8=0"])
def test_a_locale_without_utf8(shown: Screen, python_: str) -> None:
    # chat.md: "What the locale cannot show is replaced by `?`"
    chat(shown, "debug/echo", "--scope", "temp", before=f"LC_ALL=C {python_}")
    shown.type("ü - \u2713\n")
    shown.wait("? - ?\n? - ?" if python_ else "ü - \u2713\nü - \u2713")
    shown.keys("C-d")
    shown.wait_last(PROMPT.strip())
    assert "Traceback" not in shown.past
    was(shown, 0)


def test_a_terminal_that_can_do_nothing(shown: Screen) -> None:
    # chat.md: "With `TERM=dumb` the chat reads and prints plain lines"
    shown.type("TERM=dumb ctx chat debug/echo --session dumb")
    shown.wait(READY)
    shown.wait_last(">")
    shown.type("two\\")
    shown.type("lines \x1b")
    shown.wait("two\nlines \\x1b\n")
    shown.type("/sessions")
    shown.wait("* dumb")
    shown.type("/nwe")
    shown.wait("did you mean /new?")
    shown.type("/quit")
    shown.wait_last(PROMPT.strip())
    was(shown, 0)


def test_one_end_of_input_is_enough(shown: Screen) -> None:
    # chat.md: "what is read up to its end is one message, and the answer is printed as text"
    shown.type("ctx chat debug/echo --session piped | tr a-z A-Z")
    shown.type("typed")
    shown.keys("C-d")
    shown.wait("\nTYPED\n")
    shown.wait_last(PROMPT.strip())


def test_exec_without_arguments_opens_the_chat(shown: Screen, chats: Ctx) -> None:
    # abi.md 4.6
    shown.type("clear; $CTX_ROOT/model/debug/echo")
    shown.wait(READY)
    shown.type("from exec")
    shown.wait("> from exec\nfrom exec\n")
    leave(shown)
    assert "from exec" in said(chats, "default")


def test_an_agent_without_arguments_opens_the_chat(shown: Screen) -> None:
    # abi.md 4.6
    shown.type("clear; $CTX_ROOT/agent/base")
    shown.wait(READY)
    leave(shown)


def test_a_kill_leaves_the_terminal_as_it_was(shown: Screen, chats: Ctx) -> None:
    chat(shown, "debug/echo", "--session", "killed")
    shown.type("hello")
    shown.wait("> hello\nhello\n")
    pane = int(shown._run("display-message", "-p", "#{pane_pid}"))
    for child in Path(f"/proc/{pane}/task/{pane}/children").read_text().split():
        os.kill(int(child), signal.SIGTERM)
    shown.wait_last(PROMPT.strip())
    was(shown, 143)


def test_the_daemon_may_be_killed_and_started_again(python: Path) -> None:
    # issue: "reconnect and resume after a daemon restart"
    with mounted(python) as ctx, screen(environ(ctx), ctx.work) as shown:
        chat(shown, "debug/script")
        shown.type(script({"delta": "one "}, {"hang": True}))
        shown.wait("\none\n")
        pid = ctx.pid
        os.kill(pid, signal.SIGKILL)
        assert wait_gone(pid)
        shown.wait("the connection is lost; trying again")
        shown.type(script({"delta": "said meanwhile"}))
        ctx.mount()
        shown.wait("reconnected")
        shown.wait("debug/script: EIO: ")
        shown.wait("\nsaid meanwhile\n")
        shown.wait_last(">")
        assert shown.text.count("\none\n") == 1
        assert shown.text.count("\nsaid meanwhile\n") == 1
        leave(shown)
        assert len(said(ctx, "default", "debug/script")) == 2


def test_the_history_is_its_users_alone(chats: Ctx) -> None:
    # chat.md: "it is kept in `chat_history` in your state directory, which nobody else may read"
    with screen(environ(chats), chats.work) as shown:
        chat(shown, "debug/echo", "--session", "remembered")
        shown.type("remember me")
        shown.wait("> remember me\nremember me\n")
        leave(shown)
    path = chats.state / "chat_history"
    assert "remember me" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def said(ctx: Ctx, session: str, object_: str = "debug/echo") -> list[str]:
    """Returns the messages that the person sent in a session."""
    shown = json.loads(ctx.ctx("session", "show", object_, session, "--json").stdout)
    users = [message for message in shown["messages"] if message["role"] == "user"]
    return ["".join(part["text"] for part in message["content"]) for message in users]
