"""A daemon does not use files that other users may write, reports them, and uses them again once mended.

tests/shell/daemon/test_believed.py tests every file and every way. This file tests daemons of root and of a
user. The quotes are from the issue that asked for it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from cortexfs.config import choose
from cortexfs.daemon import deciding
from tests.mounted.agents import agent, call, ctx, results, run, say, script, working
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.test_user_daemon import USER, as_user, home
from tests.waiting import until

__all__ = ["ctx", "home"]  # fixtures

PROVIDER = 'base_url = "http://127.0.0.1:9"\nformat = "openai.chat"\nmodels = ["m"]\nlisted = false\n'


def reloaded(ctx: Ctx) -> dict[str, list[str]]:
    """Reload the daemon, and return its status."""
    before = int(ctx.status["reloads"])
    os.kill(ctx.pid, signal.SIGHUP)
    until(lambda: int(ctx.status["reloads"]) > before)
    return told(ctx)


def told(ctx: Ctx) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in ctx.ctx("status").stdout.splitlines():
        key, _, value = line.partition(": ")
        found.setdefault(key, []).append(value)
    return found


def refused(path: Path) -> str:
    mend = f"check its content, then: chmod go-w {path}"
    return f"{path} is not used: users other than its owner may write it; {mend}"


def doctor(ctx: Ctx) -> str:
    return ctx.ctx("doctor", "--root", str(ctx.root), check=False).stdout


def test_a_policy_that_others_may_write_allows_agents_nothing(ctx: Ctx) -> None:
    # "policy.toml that cannot be believed allows agents nothing (as one that is damaged does today)"
    policy = ctx.config / "policy.toml"
    policy.write_text("allow = ['*']\n")
    task = script(call("fs.read", path="README.md"), say("well"))
    with agent(ctx, "careful", "fs.read") as path:
        for mode, owner in ((0o664, 0), (0o644, NOBODY)):
            policy.chmod(mode)
            os.chown(policy, owner, owner)
            answer = run(ctx, path, task, cwd=ctx.work)
            assert "hello world" not in answer.output
            assert f"{policy} is not used" in answer.message, answer
            assert any(f"{policy} is not used" in line for line in told(ctx)["not used"])
            assert f"{policy} is not used" in doctor(ctx)
            policy.chmod(0o644)
            os.chown(policy, 0, 0)
            with working(ctx, path, task, session=f"mended{owner}") as client:
                assert not results(client.until("done", status="ok"))[0]["is_error"]
            assert "not used" not in told(ctx)
        policy.write_text("allow")
        answer = run(ctx, path, task, cwd=ctx.work)
        assert answer.code == "EACCES", answer  # abi.md 4.23: its arguments are not wrong
    policy.unlink()


def test_a_provider_and_a_server_that_others_may_write_are_broken(ctx: Ctx) -> None:
    # "a provider's file is a broken provider with that reason, an mcp file a broken server"
    files = {"provider": ctx.config / "providers" / "far.toml", "mcp": ctx.config / "mcp" / "near.toml"}
    for path, text in zip(files.values(), (PROVIDER, 'command = "/bin/false"\n'), strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o666)
    facts = reloaded(ctx)
    assert facts["broken provider"] == [f"far: {refused(files['provider'])}"]
    assert facts["broken plugin"] == [f"mcp:near: {refused(files['mcp'])}"]
    assert not (ctx.root / "model" / "far").exists()
    assert all(refused(path) in doctor(ctx) for path in files.values())
    files["provider"].chmod(0o644)
    files["mcp"].unlink()
    assert "broken provider" not in reloaded(ctx)
    assert (ctx.root / "model" / "far" / "m").exists()
    files["provider"].unlink()


def test_a_reload_keeps_what_it_had(fresh: Ctx) -> None:
    # "a reload keeps what it had"; "doctor, reload and status say which, and the chmod that mends it"
    choices, policy = fresh.config / "plugins.json", fresh.config / "policy.toml"
    tools = sorted(os.listdir(fresh.root / "tool"))
    choices.write_text('{"faulty": false}\n')
    choices.chmod(0o664)
    assert reloaded(fresh)["reload refused"] == [refused(choices)]
    assert sorted(os.listdir(fresh.root / "tool")) == tools
    done = fresh.ctx("plugin", "enable", "faulty", check=False)
    assert (done.returncode, refused(choices) in done.stderr) == (13, True), done
    choices.chmod(0o644)
    policy.write_text("")
    policy.chmod(0o666)
    done = fresh.ctx("plugin", "disable", "faulty")
    assert f"the change is in effect at {fresh.root}, but {refused(policy)}" in done.stdout + done.stderr
    assert "reload refused" not in told(fresh)
    assert sorted(os.listdir(fresh.root / "tool")) != tools
    # A command whose own files are sound reports the files that hold the reload up.
    choices.chmod(0o664)
    done = fresh.ctx("agent", "new", "late", "--model", "debug/echo", check=False)
    assert f"refused the change and works as before: {refused(choices)}" in done.stdout + done.stderr


def keeps_the_mount_away(ctx: Ctx, path: Path, mode: int) -> None:
    """Check that this mode of the file refuses the mount, and that a mended file does not."""
    path.chmod(mode)
    done = ctx.ctx("mount", str(ctx.root), check=False)
    assert done.returncode == 13, done
    assert refused(path) in done.stderr
    path.chmod(0o644)
    ctx.mount()


@pytest.mark.parametrize("name", ["config.toml", "plugins.json"])
def test_a_mount_with_settings_of_others_is_refused(fresh: Ctx, name: str) -> None:
    # "config.toml refuses the mount with the sentence"
    fresh.umount()
    path = fresh.config / name
    keeps_the_mount_away(fresh, path, 0o664)


def test_a_control_that_others_may_write_refuses_the_mount(fresh: Ctx) -> None:
    # Without this policy, more would be allowed than with it.
    Path(f"{fresh.tool('fs.read')}.d/policy").write_text("allow a_t tool:fs.read execute\n")
    fresh.umount()
    path = fresh.state / "tree" / "tool" / "fs.read.d" / "policy"
    keeps_the_mount_away(fresh, path, 0o666)


def test_what_a_daemon_writes_is_believed_whatever_the_umask(python: Path) -> None:
    with mounted(python) as ctx:
        ctx.umount()
        done = ctx.run([str(python), "-I", "-m", "cortexfs.cli.main", "mount", str(ctx.root)], umask=0)
        assert done.returncode == 0, done
        Path(f"{ctx.tool('fs.read')}.d/policy").write_text("allow a_t tool:fs.read execute\n")
        (ctx.root / "home" / "0" / "agent").mkdir(exist_ok=True)
        (ctx.root / "home" / "0" / "agent" / "mine").touch()
        (ctx.root / "home" / "0" / "agent" / "mine.d" / "tools").write_text("fs.read\n")
        choose(ctx.config, "faulty", False)
        assert deciding.every(ctx.config, ctx.state) == []
        written = [path for path in (ctx.state / "tree").rglob("*") if path.is_file()]
        assert {path.name for path in written} == {"policy", "tools"}


def test_a_daemon_of_a_users_own(home: Path, python: Path) -> None:
    # "user umasks of 002 with a private group: ... refuse, with the mend (that is the rule)"
    config = home / ".config" / "cortexfs"
    done = as_user(
        home,
        python,
        f"""
        user: umask 002; $CTX mount ctx && $CTX umount ctx
        user: umask 002; echo "[limits]" > {config}/config.toml; $CTX mount ctx
        user: chmod go-w {config}/config.toml; chmod 777 {config}; $CTX mount ctx
        other: cd {config} && rm config.toml && echo "[limits]" > config.toml
        user: chmod 755 {config}; $CTX mount ctx
        user: $CTX doctor --root ctx
        user: rm -f {config}/config.toml; $CTX mount ctx && $CTX umount ctx
        """,
    )
    parts = [part.strip() for part in done.stdout.split("-> ")]
    statuses = [int(part.split()[0]) for part in parts[1:]]
    assert statuses == [0, 13, 13, 0, 13, 69, 0], done.stdout
    assert refused(config / "config.toml") in parts[1]
    assert f"chmod go-w {config}" in parts[2]
    strangers = "config.toml is not used: it belongs to uid 1; check its content, then: chown -h"
    assert f"{strangers} {USER} {config}/config.toml" in parts[4]
    assert strangers in parts[5]
