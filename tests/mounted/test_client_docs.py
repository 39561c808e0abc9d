"""The examples of docs/client.md and docs/protocol.md work by copy and paste, on a real mount."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx

DOCS = Path(__file__).parents[2] / "docs"
CLIENT = re.findall(
    r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```)?", (DOCS / "client.md").read_text(), re.S | re.M
)
PLAIN = dict(re.findall(r"^```(sh|python|js)\n(.*?)^```", (DOCS / "protocol.md").read_text(), re.S | re.M))


@pytest.mark.parametrize(("example", "shown"), CLIENT)
def test_the_examples_of_the_client(ctx: Ctx, example: str, shown: str) -> None:
    done = ctx.run([str(ctx.python), "-W", "error", "-c", example])
    assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")


def test_there_are_examples() -> None:
    assert len(CLIENT) == 6
    assert PLAIN.keys() == {"sh", "python", "js"}


def at(ctx: Ctx, example: str) -> str:
    """Returns the example with this test's mount in the place of /ctx."""
    assert "/ctx/" in example
    return example.replace("/ctx/", f"{ctx.root}/")


def test_socat_and_nc(ctx: Ctx) -> None:
    # abi.md 5.1
    assert shutil.which("nc"), "netcat-openbsd is one of the Makefile's TEST_PACKAGES"
    by_socat, by_nc = at(ctx, PLAIN["sh"]).strip().splitlines()
    said = [json.loads(line) for line in ctx.run(["sh", "-c", by_socat]).stdout.splitlines()]
    assert "".join(frame["text"] for frame in said if frame["type"] == "delta") == "hello there"
    assert said[-1]["type"] == "done"
    assert ctx.run(["sh", "-c", by_nc]).stdout == '{"type":"pong"}\n'


@pytest.mark.parametrize(
    ("language", "program"), [("python", ["python3", "-I", "-c"]), ("js", ["node", "-e"])]
)
def test_ten_lines_without_a_library_of_ours(ctx: Ctx, language: str, program: list[str]) -> None:
    # issue 3: "examples with socat and in ten lines of Python and Node that are run by tests"
    assert shutil.which(program[0]), "nodejs is one of the Makefile's TEST_PACKAGES"
    example = PLAIN[language]
    assert len(example.splitlines()) <= 10
    done = ctx.run([*program, at(ctx, example)])
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello there", "")
