"""Calls of objects on a real terminal, which shows a person what the call waits for (abi.md 4.52, 4.53)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.screen import Screen, screen
from tests.mounted.scripts import placed

WAITS = " s); Ctrl-C ends it"


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


@pytest.fixture
def shown(ctx: Ctx) -> Iterator[Screen]:
    environ = ctx.environ | {"PATH": f"{ctx.python.parent}:{ctx.environ['PATH']}"}
    with screen(environ, ctx.work, (100, 24)) as one:
        one.type(f"cd {ctx.root}")
        yield one


def test_a_model_that_takes_long(shown: Screen) -> None:
    # abi.md 4.53
    shown.type("""model/debug/script '[{"sleep":3},{"delta":"at"},{"delta":" last"}]'""")
    shown.wait("debug/script: waiting (")
    shown.wait("at last")
    assert WAITS not in shown.text


def test_a_tool_that_takes_long(ctx: Ctx, shown: Screen) -> None:
    begun = ctx.work / "begun"
    text = f"#!/bin/sh\n# tool: Wait.\nwhile [ ! -e {begun} ]; do sleep 0.02; done\nexit 3\n"
    ctx.ctx("tool", "add", str(placed(ctx, "late.sh", text, uid=0)))
    shown.type("tool/late")  # the tool has no parameters, so it runs without arguments
    shown.wait("late: waiting (")
    shown.wait_gone("waiting (1 s)")  # the shown time goes on
    shown.wait(WAITS)
    begun.touch()
    shown.wait("late: EIO: the script ended with exit status: 3")
    assert WAITS not in shown.text


def test_a_run_that_tells_how_far_it_is(shown: Screen) -> None:
    # abi.md 4.53
    shown.type("""ctx run debug/script '[{"progress":"half of it"},{"hang":true}]'""")
    shown.wait("debug/script: half of it\ndebug/script: waiting (")
    shown.keys("C-c")
    shown.wait_gone(WAITS)
    assert "debug/script: half of it" in shown.text


def test_a_pipe_that_nobody_reads(ctx: Ctx, shown: Screen) -> None:
    # abi.md 4.52
    told = "echo: standard input is a pipe and was not read; to have it read, add -"
    shown.type("echo piped | model/debug/echo hello; echo done.")
    shown.wait(f"hello\ndebug/{told}")
    shown.type("clear; echo piped | model/debug/echo hello -; echo piped | model/debug/echo; echo end.")
    shown.wait("hello\n\npiped\npiped\nend.")
    shown.type(
        "clear; true | tool/text.word_count a b </dev/null; echo a | tool/text.word_count -; echo end."
    )
    shown.wait("end.\n")
    assert "not read" not in shown.text


def test_the_form_of_the_output(ctx: Ctx, shown: Screen) -> None:
    # abi.md 8.18
    shown.type("ctx run --jsonl model/debug/echo hello | cat; ctx run --text debug/echo hello | wc -c")
    shown.wait('"status":"ok"}\n5')
