"""Dry runs by agents: a model asks for one in its input, a program of its shell by --dry-run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted import placed as places
from tests.mounted import plugins
from tests.mounted.agents import agent, call, results, run, say, script, working
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.talking import Frame
from tests.mounted.test_esm import plugin as esm


def install(ctx: Ctx) -> None:
    for name, support in {"wants": "required_before_execute", "offers": "supported"}.items():
        ctx.ctx("plugin", "install", str(plugins.dry(ctx.base / "plugins", name, support)))


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    """A mount with a tool that requires a dry run, and tools that offer one."""
    with mounted(python) as mount:
        install(mount)
        yield mount


@pytest.fixture(scope="module")
def own(ctx: Ctx, python: Path) -> Iterator[Ctx]:
    with places.own_mount(python) as mount:
        install(mount)
        yield mount


placed = places.placed


@pytest.fixture
def unasked(placed: Ctx) -> Iterator[Ctx]:
    (placed.config / "policy.toml").write_text('mode = "open"\n')
    yield placed
    (placed.config / "policy.toml").unlink()


def told(frames: list[Frame]) -> list[tuple[str, bool]]:
    return [(frame["output"], frame["is_error"]) for frame in results(frames)]


def test_a_tool_that_wants_a_dry_run_can_be_used_by_an_agent(unasked: Ctx) -> None:
    # docs/policy.md: "refused, for people too, unless the same caller has run it dry before, with the same
    # input ... each dry run is good for one call"
    with agent(unasked, "trying", "wants") as path:
        task = script(
            [call("wants", "a", text="x")],
            [call("wants", "b", text="x", dry_run=True)],
            [call("wants", "c", text="y")],
            [call("wants", "d", text="x", dry_run=False)],
            [call("wants", "e", text="x")],
            say("done"),
        )
        frames = run(unasked, path, task).frames
    first, dry, other, real, again = told(frames)
    assert (dry, real) == (("would", False), ("did", False))
    for refused, is_error in (first, other, again):
        assert is_error
        assert "needs a dry run first: call it with the same input and" in refused
        assert "EPERM" in refused


def test_what_is_no_boolean_runs_nothing(unasked: Ctx) -> None:
    with agent(unasked, "unclear", "offers") as path:
        task = script(
            [call("offers", "a", dry_run="true")],
            [call("offers", "b", dry_run=True)],
            say("done"),
        )
        unclear, dry = told(run(unasked, path, task).frames)
    assert unclear[1]
    assert "dry_run: expected boolean" in unclear[0]
    assert dry == ("would", False)


PYTHON = """
from cortexfs.sdk import ToolEffect, ToolRuntime, tool

WRITES = ToolEffect("write_file", dry_run="required_before_execute")

@tool(name="shows", effects=(WRITES,), dry_run_flag=True)
def run(runtime: ToolRuntime) -> str:
    "For tests."
    return "would" if runtime.invocation.dry_run else "did"

plugin = [run]
"""
CALM = "[tools.shows]\ntool_risk = 0.1\nblast_radius = 0.1\nirreversibility = 0.1\n"


@pytest.fixture
def shows(placed: Ctx) -> Iterator[Path]:
    """A plugin whose tool has opted in to dry runs, in a mode where only effects count."""
    folder = plugins.python(placed.base / "shown", "shows")
    (folder / "lib" / "shows_plugin.py").write_text(PYTHON)
    (placed.config / "policy.toml").write_text(CALM)
    yield folder
    (placed.config / "policy.toml").unlink()
    placed.ctx("plugin", "uninstall", "shows", "--purge")


def test_a_dry_run_of_no_trusted_publisher_is_asked_about(placed: Ctx, shows: Path) -> None:
    # abi.md 4.49
    placed.ctx("plugin", "install", str(shows))
    assert placed.call("shows", "--dry-run").output == "would"
    with agent(placed, "doubting", "shows") as path:
        with working(placed, path, script([call("shows", "a", dry_run=True)], say("done"))) as client:
            asked = client.until("approval")[-1]
            assert asked["call"] == "a"
            client.ask("approve", run=asked["run"], call="a", decision="allow_once")
            assert told(client.until("done")) == [("would", False)]
        ((refused, is_error),) = told(run(placed, path, script([call("shows", "a", dry_run=True)])).frames)
        assert is_error
        assert "would" not in refused


def test_a_dry_run_is_not_asked_about_and_the_call_is(placed: Ctx, shows: Path) -> None:
    # docs/policy.md: "A dry run itself is not asked about for the effects that it shows"
    placed.give_away(shows.parent)
    placed.ctx("plugin", "install", "--yes", str(plugins.signed(placed, shows)))
    with agent(placed, "asking", "shows") as path:
        task = script(
            [call("shows", "a")], [call("shows", "b", dry_run=True)], [call("shows", "c")], say("done")
        )
        with working(placed, path, task) as client:
            frames = client.until("approval")
            assert frames[-1]["call"] == "c"
            assert [(frame["call"], frame["is_error"]) for frame in results(frames)] == [
                ("a", True),
                ("b", False),
            ]
            client.ask("approve", run=frames[-1]["run"], call="c", decision="allow_once")
            assert told(client.until("done")) == [("did", False)]


REWRITES = """
export const middlewarePre = ({ toolCall }) =>
  toolCall.toolName === "offers" ? { modifyInput: { text: "other" } } : {};
"""


def test_a_dry_run_that_a_plugin_rewrites_stays_one(unasked: Ctx) -> None:
    # core/arguments/dryrun.py: "a call that was meant to be a dry run must not happen"
    folder = esm(unasked.base / "plugins", "rewriting", {}, REWRITES, capabilities=["middleware:pre"])
    unasked.ctx("plugin", "install", str(folder))
    with agent(unasked, "rewritten", "offers") as path:
        task = script([call("offers", "a", text="x", dry_run=True)], [call("offers", "b")], say("done"))
        assert told(run(unasked, path, task).frames) == [("would", False), ("did", False)]
    dry = unasked.call("offers", "--dry-run")
    assert dry.output == "would"
    assert "middleware" in [frame.get("source") for frame in dry.frames]
    unasked.ctx("plugin", "uninstall", "rewriting", "--purge")


def test_a_program_of_an_agent_is_held_to_the_same(unasked: Ctx) -> None:
    tool = unasked.tool("wants")
    shell = f"{tool} text=x; {tool} --dry-run text=x; {tool} text=x; {tool} text=x"
    with agent(unasked, "shelling", "wants", "shell.exec") as path:
        task = script([call("shell.exec", cmd=shell)], say("done"))
        *_, (said, _) = told(run(unasked, path, task).frames)
    found = re.findall(r"EPERM|would|did", said)
    assert [word for word, _ in itertools.groupby(found)] == ["EPERM", "would", "did", "EPERM"], said
