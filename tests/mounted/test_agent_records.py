"""`ctx agent` with a running mount: the change is in effect at the mount when the command ends."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from cortexfs.agents import defaults
from cortexfs.core.tree.controls import CONTROLS
from tests.mounted.ctx_mount import Ctx, mounted


def control(ctx: Ctx, agent: str, name: str) -> str:
    return (ctx.root / "agent" / f"{agent}.d" / name).read_text()


def write(ctx: Ctx, agent: str, name: str, text: str, **options: Any) -> int:
    """Write a control by a shell, and return its exit status, which shows if the write succeeded."""
    file = ctx.root / "agent" / f"{agent}.d" / name
    done = ctx.run(["sh", "-c", f"echo '{text}' > {file}"], **options)
    return int(done.returncode)


def test_base_is_there_after_set_up(ctx: Ctx) -> None:
    # "`agent/base` exists after set-up with read-only tools"
    kinds = {
        name: stat.S_IFMT((ctx.root / "agent" / name).lstat().st_mode)
        for name in ("base", "base.d", "base.sock")
    }
    assert kinds == {"base": stat.S_IFREG, "base.d": stat.S_IFDIR, "base.sock": stat.S_IFSOCK}
    here = {row.name for row in CONTROLS["agent"]} - {"cap", "origin"}  # controls of agents of other machines
    assert set(os.listdir(ctx.root / "agent/base.d")) == here
    assert control(ctx, "base", "tools").split() == list(defaults.BASE_TOOLS)
    tools = os.listdir(ctx.root / "tool")
    assert set(defaults.BASE_TOOLS) <= set(tools)
    for name in defaults.BASE_TOOLS:
        explained = ctx.ctx("policy", "explain", "agent/base", f"tool/{name}")
        assert explained.returncode == 0
    assert ctx.ctx("policy", "explain", "agent/base", "model/main").returncode == 0
    assert ctx.ctx("policy", "explain", "agent/base", "tool/shell.exec", check=False).returncode == 13
    found = json.loads(ctx.ctx("policy", "lint", "--json").stdout)
    assert [one for one in found if "base" in one["subject"]] == []


def test_an_agent_comes_is_set_up_and_goes(fresh: Ctx) -> None:
    # "A running mount follows what these commands change, without a restart"
    ctx = fresh  # a shared mount's log leaves out refusals after the first twenty
    made = ctx.ctx("agent", "new", "coder", "--model", "debug/echo", "--tools", "fs.*", "--json")
    assert f"made agent/coder; the change is in effect at {ctx.root}" in made.stderr
    fits = sorted(
        name for name in os.listdir(ctx.root / "tool") if name.startswith("fs.") and name[-2:] != ".d"
    )
    assert control(ctx, "coder", "tools").split() == fits == json.loads(made.stdout)["tools"]
    assert (ctx.root / "agent/coder.sock").is_socket()
    assert write(ctx, "coder", "tools", "text.*") == 0
    assert control(ctx, "coder", "tools") == "text.word_count\n"
    assert write(ctx, "coder", "tools", "zz.*") != 0
    assert write(ctx, "coder", "mount", "/a\t/b\trw\t-") != 0
    assert control(ctx, "coder", "tools") == "text.word_count\n"
    assert "no tool fits 'zz.*'" in (ctx.state / "daemon.log").read_text()
    (row,) = [one for one in json.loads(ctx.ctx("agent", "list", "--json").stdout) if one["name"] == "coder"]
    assert (row["model"], row["tools"], row["status"]) == ("debug/echo", ["text.word_count"], "ready")

    ctx.ctx("agent", "rm", "coder", "--yes")
    assert [name for name in os.listdir(ctx.root / "agent") if name.startswith("coder")] == []
    ctx.ctx("agent", "new", "coder", "--tools", "fs.read")
    assert control(ctx, "coder", "tools") == "fs.read\n"  # not the tools of the removed agent
    ctx.ctx("agent", "rm", "coder", "--yes")


def test_what_is_there_stays_what_it_is(ctx: Ctx) -> None:
    assert ctx.ctx("agent", "new", "base", check=False).returncode == 1
    done = ctx.ctx("agent", "rm", "base", "--yes", check=False)
    assert (done.returncode, "built in" in done.stderr) == (13, True)
    assert ctx.ctx("agent", "rm", "nobody", "--yes", check=False).returncode == 1


def test_agents_and_what_was_written_into_them_survive(python: Path) -> None:
    # abi.md 3.17
    with mounted(python) as mount:
        for name in ("kept", "gone", "damaged"):
            mount.ctx("agent", "new", name, "--tools", "fs.read")
            assert write(mount, name, "approval", "ask") == 0
        assert write(mount, "base", "approval", "ask") == 0
        mount.umount()
        record = mount.state / "agents/damaged.json"
        whole = record.read_bytes()
        record.write_bytes(whole[:20])
        mount.ctx("agent", "rm", "gone", "--yes")
        mount.ctx("agent", "new", "gone")
        mount.mount()
        values = {name: control(mount, name, "approval") for name in ("kept", "gone", "base")}
        assert values == {"kept": "ask\n", "gone": "auto\n", "base": "ask\n"}
        assert "damaged.json cannot be read" in mount.status["broken agent"]
        assert control(mount, "damaged", "status").startswith("broken: ")
        answer = mount.run([str(mount.root / "agent/damaged"), "hello"])
        assert answer.returncode == 69, answer

        record.write_bytes(whole)
        mount.ctx("agent", "new", "another")  # the command tells the daemon
        assert control(mount, "damaged", "status") == "ready\n"
        assert control(mount, "damaged", "approval") == "ask\n"
