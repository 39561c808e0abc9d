"""docs/ask.md, "Coming from llm": each of our commands in the table has the effect of its row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.mounted.acting import acting
from tests.mounted.ctx_mount import Ctx, mounted
from tests.places import PROJECT
from tests.shell.cli.ask.test_ask_attach import PNG
from tests.shell.provider_server import Move, Provider, Request, chat, status

ROWS = re.compile(r"^\| ([^|]+) \| (.+?) \| (.+) \|$", re.MULTILINE)
LISTED = {"data": [{"id": "gpt-4.1", "capabilities": ["vision", "tools"]}]}
UP = """#!/bin/sh
# tool: Says it in capitals
# arg text string: What to say
echo "$1" | tr a-z A-Z
"""
FEWEST = 30  # the fewest features in the table
SEEN = {
    "ask": "ss -l",
    "get the first code block": "ss -l\n",
    "see the tokens": "5 tokens in, 2 out",
    "get JSON of a schema": json.dumps({"name": "Rex", "age": 3}),
    "list templates": "in $lang",
    "have a tool of one's own": "up",
    "see what was asked": "what is FUSE",
    "search it": "in French",
    "add up tokens and money": "acme/gpt-4.1",
    "list models": "model/acme/gpt-4.1",
}


class Acme(Provider):
    """A provider whose only model answers with JSON if the request demands it, else with a code block."""

    async def moves(self, request: Request) -> Sequence[Move]:
        if request.method == "GET":
            return status(200, LISTED)
        if "response_format" in request.body:
            return chat('{"name": "Rex", "age": 3}')
        return chat("Here:\n\n```sh\nss -l\n```\n")


@pytest.fixture(scope="module")
def acme() -> Iterator[Acme]:
    with acting(Acme([])) as provider:
        yield provider


@pytest.fixture(scope="module")
def at_work(python: Path, acme: Acme) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        ctx.ctx("provider", "add", "acme", "--base-url", acme.base_url, "--format", "openai.chat")
        ctx.run(["bash", "-c", "echo k-1 | ctx provider secret set acme"])
        (ctx.root / "model" / "main").unlink(missing_ok=True)
        (ctx.root / "model" / "main").symlink_to("acme/gpt-4.1")
        (ctx.work / "notes.txt").write_text("a b c\n")
        (ctx.work / "cat.png").write_bytes(PNG)
        (ctx.work / "key").write_text("k-2")
        (ctx.work / "up").write_text(UP)
        (ctx.work / "up").chmod(0o755)
        yield ctx


def rows() -> dict[str, list[str]]:
    """Returns our commands for each feature."""
    page = (PROJECT / "docs" / "ask.md").read_text().partition("## Coming from llm")[2]
    found = {row[1]: re.findall(r"`([^`]+)`", row[3]) for row in ROWS.finditer(page)}
    return {about: [each.replace("\\|", "|") for each in ours] for about, ours in found.items()}


def test_there_are_thirty_features() -> None:
    ours = {about: commands for about, commands in rows().items() if about != "to" and "---" not in about}
    assert len(ours) >= FEWEST
    assert [about for about, commands in ours.items() if not commands] == ["make embeddings"]


def test_each_command_works(at_work: Ctx, acme: Acme) -> None:
    # in order, as a newcomer would run them: some commands use results of earlier commands
    for about, commands in rows().items():
        for command in commands:
            local = command.replace("http://127.0.0.1:8000/v1", acme.base_url)
            local = local.replace("https://example.com/", acme.base_url + "/models")
            done = at_work.run(["bash", "-c", local])
            assert done.returncode == 0, (command, done)
            assert SEEN.get(about, "") in done.stdout + done.stderr, (command, done)
