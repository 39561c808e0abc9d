"""The commands of docs/tools.md, run as a reader of the page would run them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


def sh(ctx: Ctx, text: str, home: Path) -> str:
    """Run a block of the page, on a mount at another place than /ctx."""
    own = {"HOME": str(home), "CTX_STATE": "/nowhere", "CTX_CONFIG": "/nowhere", "CTX_OUTPUT": "text"}
    path = f"{ctx.python.parent}:{ctx.environ['PATH']}"
    text = text.replace("/ctx/", f"{ctx.root}/")
    done = ctx.run(["sh", "-ec", text], uid=NOBODY, env=own | {"PATH": path})
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_the_page(ctx: Ctx) -> None:
    home = ctx.work / "home"
    (home / ".local/bin").mkdir(parents=True)
    for folder in (home, home / ".local", home / ".local/bin"):
        os.chown(folder, NOBODY, NOBODY)
    first, by_hand = BLOCKS
    assert sh(ctx, first, home) == "hello --loud Ann 1\n"
    assert "usage: greet" in sh(ctx, "/ctx/home/$(id -u)/tool/greet --help", home)
    sh(ctx, "ctx tool rm greet", home)
    *made, removed = by_hand.strip().splitlines()
    sh(ctx, "\n".join(made), home)
    status = "cat /ctx/home/$(id -u)/tool/greet.d/status"
    until(lambda: sh(ctx, status, home), lambda said: said == "ready\n")
    assert sh(ctx, "ctx run greet Ann", home) == "hello Ann 1\n"
    sh(ctx, removed, home)
    assert sh(ctx, "ls /ctx/home/$(id -u)/tool; ls $HOME/.local/bin", home) == "greet\n"
