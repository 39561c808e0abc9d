"""`/pin` in `ctx chat`: an agent keeps the pinned text, and a model does not get it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.screen import PROMPT, Screen, screen
from tests.mounted.test_chat import chat, environ


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


@pytest.fixture(params=["xterm-256color", "dumb"])
def shown(ctx: Ctx, request: pytest.FixtureRequest) -> Iterator[Screen]:
    with screen(environ(ctx), ctx.work, (100, 30)) as shown:
        shown.type(f"export TERM={request.param}")
        yield shown


def leave(shown: Screen) -> None:
    shown.type("/quit")
    shown.wait_last(PROMPT.strip())


def test_an_agent_keeps_what_is_pinned(ctx: Ctx, shown: Screen) -> None:
    # agents.md: "Say `/pin I write British English` and it is kept, without asking the model"
    with agent(ctx, "minds", "", model="debug/echo") as path:
        chat(shown, path, "--session", "pins")
        shown.type("/pin I write British English")
        shown.wait("Kept in mind")
        shown.type("/pin")
        shown.wait("say what the agent must keep in mind: /pin TEXT")
        leave(shown)
        session = ctx.root / f"home/0/{path}.d/session/pins"
        assert (session / "context/pinned/1.md").read_text().strip() == "I write British English"
        ctx.run(["rm", "-r", str(session)], check=True)


def test_a_model_is_not_told_a_pin(shown: Screen) -> None:
    # chat/commands.py: "An unknown order is never sent to the model"
    chat(shown, "debug/echo", "--scope", "temp")
    shown.type("/pin this")
    shown.wait("only agents keep pins, and debug/echo is a model")
    leave(shown)
