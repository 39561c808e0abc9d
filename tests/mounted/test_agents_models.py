"""A plugin's model that an agent asks is as confined as the agent's tools. Quotes are from docs/agents.md."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent, run, write
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted

MODEL = "fixture/peeking"


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, ["modeller"]) as mount:
        (mount.work / "file").write_text("in the directory")
        (mount.base / "secret").write_text("not shown")
        yield mount


@pytest.fixture(scope="module")
def peeks(ctx: Ctx) -> Iterator[str]:
    with agent(ctx, "peeks", "fs.read", model=MODEL) as path:
        yield path


def said(ctx: Ctx, path: str, task: str, uid: int | None = None) -> str:
    answer = run(ctx, path, task, cwd=ctx.work, uid=uid)
    assert answer.status == 0, answer.message
    return answer.output


@pytest.mark.parametrize("uid", [None, NOBODY])
def test_it_opens_what_the_agents_tools_may_open(ctx: Ctx, peeks: str, uid: int | None) -> None:
    # "A model of a plugin that an agent asks is confined as its tools are"
    assert said(ctx, peeks, f"read {ctx.work}/file", uid) == "in the directory"
    assert said(ctx, peeks, f"read {ctx.base}/secret", uid) == "EACCES"
    assert said(ctx, peeks, f"write {ctx.work}/file", uid) == "EROFS"  # no tool of the agent writes
    alone = Answer(ctx.run([str(ctx.root / "model" / MODEL), f"read {ctx.base}/secret"], text=False, uid=uid))
    assert alone.output == "not shown"  # a user's own call runs as that user


def test_it_has_a_network_where_the_policy_says_so(ctx: Ctx, peeks: str) -> None:
    # "To ask a server it needs the line `allow TYPE network:default connect`"
    with socket.create_server(("127.0.0.1", 0)) as server:
        task = f"connect {server.getsockname()[1]}"
        assert said(ctx, peeks, task) == "EACCES"
        policy = (ctx.root / f"{peeks}.d/policy").read_text()
        write(ctx, peeks, "policy", f"{policy}allow peeks_t network:default connect\n")
        assert said(ctx, peeks, task) == "None"
        write(ctx, peeks, "policy", policy)


def test_what_it_runs_is_the_agent(ctx: Ctx, peeks: str) -> None:
    # "What runs in a call is the agent still": the policy decides about the objects that its model runs
    tool = f"{ctx.root}/tool/text.word_count"
    denied = said(ctx, peeks, f"run {tool} 'a b' 2>&1")
    assert "allow peeks_t tool:text.word_count execute" in denied
    allowed = said(ctx, peeks, f"run CTX_OUTPUT=jsonl {ctx.root}/tool/fs.read path={ctx.work}/file")
    assert json.loads(allowed.splitlines()[-1])["status"] == "ok"


def test_a_mount_table_counts_for_it_too(ctx: Ctx) -> None:
    with agent(ctx, "narrow", "", model=MODEL) as path:
        write(ctx, path, "mount", f"{ctx.base}/secret\t{ctx.base}/secret\tro\t-\n")
        assert said(ctx, path, f"read {ctx.base}/secret") == "not shown"
        assert said(ctx, path, f"read {ctx.work}/file") == "EACCES"
