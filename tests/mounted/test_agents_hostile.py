"""Acts of people, models, tools and administrators on an agent during its run, and their effects.
Quotes without a source are from docs/agents.md."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted import agents
from tests.mounted.agents import agent, call, results, run, say, script, working
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.talking import talk
from tests.waiting import until


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, ["faulty"]) as mount:
        (mount.work / "README.md").write_text("hello world\n")
        yield mount


coder = agents.coder


def peak(pid: int) -> int:
    """Returns the MiB of memory that a process had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) >> 10


def test_a_model_that_says_too_much(ctx: Ctx, coder: str) -> None:
    # "characters of one answer": the daemon would keep the whole answer, to continue the run with it
    before = peak(ctx.pid)
    answer = run(ctx, coder, script([{"burst": 4000, "size": 64 << 10}], say("on")))
    assert (answer.status, answer.code) == (1, "EFBIG")
    assert "an answer of the agent" in answer.message
    assert peak(ctx.pid) - before < 64  # the answer has 250 MiB


def test_a_tool_whose_plugin_is_disabled_meanwhile(ctx: Ctx) -> None:
    # "Each call ... decided as things are at this moment": the plugin's code runs no more
    calls = [call("show.env"), call("show.env"), call("fs.read", path="README.md"), say("x")]
    with (
        agent(ctx, "plugged", "show.env", "fs.read", approval="ask") as path,
        working(ctx, path, script(*calls), session="plugged") as client,
    ):
        asked = client.until("approval")[-1]
        ctx.ctx("plugin", "disable", "faulty")
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_session")
        frames = client.until("approval")
        client.ask("approve", run=asked["run"], call=frames[-1]["call"], decision="allow_once")
        changed, gone, read = results(frames + client.until("done", status="ok"))
    ctx.ctx("plugin", "enable", "faulty")
    assert (changed["is_error"], gone["is_error"], read["is_error"]) == (True, True, False)
    assert "has changed" in changed["output"]
    assert 'There is no tool "show.env"' in gone["output"]


def test_nobody_else_decides_where_an_agent_works(ctx: Ctx, coder: str) -> None:
    # abi.md 5.22: in a shared session an agent goes by the directory that each user has said there
    theirs = ctx.base / "theirs"
    theirs.mkdir(mode=0o755)
    (theirs / "private").write_text("mine")
    shared = {"session": "both", "scope": "shared"}
    with working(ctx, coder, script(say("x")), uid=NOBODY, cwd=str(theirs), **shared) as client:
        client.until("done", status="ok")
    task = script(call("fs.read", path="private"), say("x"))
    with talk(ctx, f"{coder}.sock") as client:
        for fields, is_error in (({}, True), ({"cwd": str(theirs)}, False), ({}, False)):
            client.send(task, **shared, **fields)
            (told,) = results(client.until("done", status="ok"))
            assert told["is_error"] is is_error, told


@pytest.mark.parametrize("name", [b"\xff\xfe", b"two\nlines\tand \x1b[31m more"])
def test_a_directory_with_an_odd_name(ctx: Ctx, coder: str, name: bytes) -> None:
    # models and hosts get the name of the directory, as text
    odd = os.path.join(os.fsencode(ctx.work), name)
    os.mkdir(odd)
    Path(os.fsdecode(odd), "x").write_text("there")
    answer = run(ctx, coder, script(call("fs.read", path="x"), say("x")), cwd=odd)
    if name.isascii():
        assert results(answer.frames)[0]["output"] == "there"
    else:
        assert (answer.status, answer.code) == (2, "EINVAL")
        assert "UTF-8" in answer.message


RUNS = 50


def wave(ctx: Ctx, path: str) -> None:
    """Run `RUNS` runs at once, most of them of one user, each in its own directory."""
    task = script(*[[call("fs.read", path="f"), call("fs.list", path=".")] for _ in range(2)], say("done"))
    users = [NOBODY if number % 5 else None for number in range(RUNS)]
    with contextlib.ExitStack() as open_:
        clients = [open_.enter_context(talk(ctx, f"{path}.sock", uid)) for uid in users]
        for number, client in enumerate(clients):
            client.send(task, session=f"s{number}", cwd=str(ctx.work / f"d{number}"))
        for client in clients:
            frames = client.until("done", status="ok")
            assert not [frame for frame in results(frames) if frame["is_error"]]


def held(ctx: Ctx) -> tuple[int, int]:
    """Returns the numbers of hosts and of descriptors of the daemon."""
    until(lambda: ctx.status["runs"], lambda runs: runs.startswith("0 active"))  # `done` comes first
    return int(ctx.status["hosts"]), len(os.listdir(f"/proc/{ctx.pid}/fd"))


def test_many_runs_at_once(ctx: Ctx, coder: str) -> None:
    # "All agents that work for you have 32 together": no call fails for want of a host, and no hosts pile up
    for number in range(RUNS):
        (ctx.work / f"d{number}").mkdir()
        (ctx.work / f"d{number}/f").write_text("x")
    wave(ctx, coder)
    hosts, files = held(ctx)
    assert hosts <= 3 * 32  # hosts of two users, and some hosts that have yet to end
    wave(ctx, coder)
    more_hosts, more_files = held(ctx)
    assert more_hosts <= 3 * 32
    assert more_files - files <= 8 + 4 * max(0, more_hosts - hosts)
