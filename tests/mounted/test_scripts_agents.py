"""Agents and scripts that are tools: a script that an agent may write is no tool (abi.md 12.14, 12.15)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import call, results, say, script, working
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.scripts import GREET, as_user, called, placed
from tests.mounted.talking import Frame
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")

HOME = f"home/{NOBODY}/tool"


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


@pytest.fixture
def greet(ctx: Ctx) -> Iterator[Path]:
    path = placed(ctx)
    assert as_user(ctx, "tool", "add", path)[0] == 0
    yield path
    as_user(ctx, "tool", "rm", "greet")


@contextlib.contextmanager
def agent(ctx: Ctx, *tools: str) -> Iterator[str]:
    words = ("--model", "debug/script", "--tools", ",".join(tools))
    status, said = as_user(ctx, "agent", "new", "coder", *words)
    assert status == 0, said
    try:
        yield f"home/{NOBODY}/agent/coder"
    finally:
        as_user(ctx, "agent", "rm", "coder", "--yes")


def work(ctx: Ctx, path: str, task: str, cwd: Path, asks: int) -> list[Frame]:
    """Run an agent that needs so many approvals, and approve each call; returns the frames."""
    seen: list[Frame] = []
    with working(ctx, path, task, NOBODY, cwd=str(cwd), scope="temp") as client:
        for _ in range(asks):
            seen += client.until("approval")
            client.ask("approve", run=seen[-1]["run"], call=seen[-1]["call"], decision="allow_once")
        return seen + client.until("done")


def elsewhere(ctx: Ctx) -> Path:
    path = ctx.work / "elsewhere"
    path.mkdir(exist_ok=True)
    os.chown(path, NOBODY, NOBODY)
    return path


def test_an_agent_has_its_users_own(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.15: "sees the file of a script of its user's that it calls"
    with agent(ctx, "greet", "fs.read") as path:
        task = script(call("greet", who="bob"), call("fs.read", path=str(greet)), say("x"))
        seen = work(ctx, path, task, elsewhere(ctx), 1)
    asked = [frame for frame in seen if frame["type"] == "approval"]
    assert [(frame["name"], frame["effects"]) for frame in asked] == [("greet", ["run_process script"])]
    first, second = results(seen)
    assert (first["output"], first["is_error"]) == (f"bob, says {NOBODY} in {elsewhere(ctx)}\n", False)
    assert second["is_error"]  # another tool sees the file no better than before
    assert called(ctx, "greet", "bob")[0] == 0


def test_a_pattern_means_ones_own_too(ctx: Ctx, greet: Path) -> None:
    with agent(ctx, "gr*") as path:
        assert (ctx.root / f"{path}.d/tools").read_text() == "greet\n"
        (ctx.root / f"{path}.d/tools").write_text("text.*\ngree*\n")
        assert (ctx.root / f"{path}.d/tools").read_text() == "text.word_count\ngreet\n"


def test_one_that_is_not_named_is_not_there(ctx: Ctx, greet: Path) -> None:
    with agent(ctx, "fs.read") as path:
        (told,) = results(work(ctx, path, script(call("greet", who="bob"), say("x")), elsewhere(ctx), 0))
    assert told["is_error"]


def test_one_that_it_may_write_is_nobodys(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.14
    evil = GREET.replace("says", "was written by an agent, says")
    with agent(ctx, "greet", "fs.write") as path:
        task = script(
            call("greet", who="bob"),
            call("fs.write", path="greet.sh", content=evil),
            say("x"),
        )
        first, second = results(work(ctx, path, task, greet.parent, 1))
        assert not second["is_error"], second
    assert first["is_error"]
    assert "was written by an agent" in greet.read_text()
    status, said = called(ctx, "greet", "bob")
    assert (status, f"could write {greet}; look at it, then: ctx tool add {greet}" in said) == (69, True), (
        said
    )
    ctx.umount()
    ctx.mount()
    assert called(ctx, "greet", "bob")[0] == 69
    # The user has checked the script.
    assert as_user(ctx, "tool", "add", greet)[0] == 0
    assert "was written by an agent" in called(ctx, "greet", "bob")[1]


@pytest.mark.parametrize("by", ["directory", "table", "file"])
def test_no_link_leads_around_that(ctx: Ctx, greet: Path, by: str) -> None:
    # abi.md 12.14: "all links followed"
    link = elsewhere(ctx) / f"link-{by}"
    link.symlink_to(greet if by == "file" else greet.parent)
    with agent(ctx, "fs.write") as path:
        if by != "directory":
            (ctx.root / f"{path}.d/mount").write_text(f"{link}\t{link}\trw\t-\n/usr\t/usr\tro\t-\n")
        work(ctx, path, script(say("x")), link if by == "directory" else elsewhere(ctx), 0)
    assert called(ctx, "greet", "bob")[0] == 69


def test_while_it_may_write_it_nobody_adds_it(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.14: "also when the control is written while such a call goes on"
    with agent(ctx, "shell.exec") as path:
        task = script(
            call("shell.exec", cmd="touch begun; while [ -e begun ]; do sleep 0.05; done"), say("x")
        )
        begun = greet.parent / "begun"
        with working(ctx, path, task, NOBODY, cwd=str(greet.parent), scope="temp") as client:
            asked = client.until("approval")[-1]
            client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
            until(begun.exists)
            status, said = as_user(ctx, "tool", "add", greet)
            assert (status, "could write" in said) == (1, True), said
            assert called(ctx, "greet", "bob")[0] == 69
            begun.unlink()
            client.until("done")
    assert called(ctx, "greet", "bob")[0] == 69


def test_what_its_tools_left_behind_ends_before_a_script_is_a_tool_again(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.14: "what such runs have left at rest has ended"
    plugin = ctx.base / "late"
    plugin.mkdir()
    (plugin / "manifest.toml").write_text(
        """\
name = "late"
version = "0.1.0"
description = "Works on."
cortex_version = "1.0.0"
capabilities = { provides = ["tools"] }
[native]
protocol = "jsonl"
[[native.tools]]
name = "late"
description = "Work on."
command = "./late.sh"
input_schema = { type = "object" }
"""
    )
    left = greet.parent / "left"
    text = (
        f'#!/bin/sh\nread line\nsleep 1000 &\necho $! > {left}\necho \'{{"id":1,"output":"done"}}\'\nwait\n'
    )
    (plugin / "late.sh").write_text(text)
    (plugin / "late.sh").chmod(0o755)
    ctx.ctx("plugin", "install", str(plugin))
    try:
        with agent(ctx, "late") as path:
            (told,) = results(work(ctx, path, script(call("late"), say("x")), greet.parent, 1))
            assert (told["is_error"], told["output"]) == (False, "done")
            assert Path(f"/proc/{left.read_text().strip()}").exists()
            assert as_user(ctx, "tool", "add", greet)[0] == 0
            assert not Path(f"/proc/{left.read_text().strip()}").exists()
            assert called(ctx, "greet", "bob")[0] == 0
    finally:
        ctx.ctx("plugin", "uninstall", "late", "--purge")


def test_an_agent_makes_no_tool_of_its_own(ctx: Ctx) -> None:
    # abi.md 12.14: "No agent makes one"
    with agent(ctx, "shell.exec") as path:
        made = ctx.root / HOME / "made"
        cmd = f"touch {made}; printf '/bin/true\\n# tool: x\\n' > {made}.d/script; ctx tool add x; ls {made}"
        (told,) = results(work(ctx, path, script(call("shell.exec", cmd=cmd), say("x")), elsewhere(ctx), 1))
    assert "cannot touch" in told["output"] or "Permission denied" in told["output"]
    assert not made.exists()
