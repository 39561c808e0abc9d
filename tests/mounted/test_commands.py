"""`ctx` on a real mount: abi.md 8, as far as it is implemented."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, alive, mounted, wait_gone
from tests.waiting import PATIENCE


def test_status_in_text_and_json(ctx: Ctx) -> None:
    # abi.md 1.2
    text = ctx.ctx("status").stdout
    for key in (
        "version",
        "uptime",
        "pid",
        "mount",
        "state",
        "configuration",
        "tools",
        "models",
        "agents",
        "runs",
        "hosts",
        "last error",
    ):
        assert f"\n{key}: " in f"\n{text}", key
    assert json.loads(ctx.ctx("status", "--json").stdout)["mount"] == str(ctx.root)


def test_doctor_finds_nothing_wrong(ctx: Ctx) -> None:
    # In its own namespace, which has only this mount, as other mounts of the machine may be of dead daemons.
    script = f"""
        awk '/ fuse.cortexfs / && $2 != "{ctx.root}" {{ print $2 }}' /proc/mounts | xargs -rn 1 umount -l
        exec {ctx.python} -I -m cortexfs.cli.main doctor
    """
    done = ctx.run(["unshare", "-m", "--propagation", "private", "sh", "-c", script], check=False)
    assert "fail" not in done.stdout, done.stdout
    assert done.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="asks as somebody else, which only root can")
def test_doctor_says_which_control_was_refused_and_why(ctx: Ctx) -> None:
    # issue: "a refused control names its reason in `ctx doctor` and daemon.log"
    with pytest.raises(OSError, match="Invalid argument"):
        (ctx.root / "agent/base.d/policy").write_text("nonsense\n")
    told = "agent/base.d/policy stays as it is: line 1: 'nonsense' is not of the form"
    assert told in ctx.ctx("doctor", check=False).stdout
    assert told in (ctx.state / "daemon.log").read_text()


def test_doctor_finds_nothing_wrong_for_a_user_of_roots_mount(ctx: Ctx) -> None:
    doctor = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "doctor"]
    done = ctx.run(doctor, uid=NOBODY, env={"CTX_STATE": str(ctx.base / "theirs")})
    assert (" fail " in done.stdout, done.returncode) == (False, 0), done.stdout


def test_ls_and_run(ctx: Ctx) -> None:
    assert "fs.read" in ctx.ctx("ls").stdout
    names = {row["object"] for row in json.loads(ctx.ctx("ls", "tool", "--json").stdout)}
    assert {
        "tool/fs.read",
        "tool/fs.write",
        "tool/shell.exec",
        "tool/text.word_count",
        "tool/show.who",
    } <= names
    done = ctx.run([str(ctx.python), "-I", "-m", "cortexfs.cli.main", "run", "text.word_count", "a b"])
    assert '"2 words"' in done.stdout
    missing = ctx.ctx("run", "text.word_cont", "x", check=False)
    assert missing.returncode == 1
    assert "text.word_count" in missing.stderr


def test_mounting_twice_is_no_error(ctx: Ctx) -> None:
    done = ctx.ctx("mount", str(ctx.root))
    assert "already" in done.stdout + done.stderr


def test_two_daemons_do_not_share_a_state(ctx: Ctx) -> None:
    other = ctx.base / "second"
    done = ctx.ctx("mount", str(other), check=False)
    assert done.returncode != 0
    assert str(ctx.pid) in done.stderr
    assert not os.path.ismount(other)


def test_a_root_with_a_path_of_200_characters(python: Path) -> None:
    # issue: "mounts with paths of 200 characters"
    with mounted(python) as ctx:
        deep = ctx.base / ("d" * 90) / ("e" * 90)
        deep.mkdir(parents=True)
        ctx.umount()
        ctx.root = deep / "mount-point-of-a-long-path"
        assert len(str(ctx.root)) > 200
        ctx.mount()
        assert ctx.call("text.word_count", "a b c").output == "3 words"


def test_umount_is_quick_and_complete(python: Path) -> None:
    # abi.md 8.10
    for way in ("umount", "TERM", "INT"):
        with mounted(python) as ctx:
            pid = ctx.pid
            if way == "umount":
                ctx.ctx("umount", str(ctx.root))
                assert not alive(pid)
            else:
                subprocess.run(["kill", f"-{way}", str(pid)], check=True)
                assert wait_gone(pid)
            assert not os.path.ismount(ctx.root)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_mount_in_the_foreground(python: Path, number: signal.Signals) -> None:
    # abi.md 8.6, 8.10
    with mounted(python) as ctx:
        ctx.umount()
        words = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "mount", str(ctx.root), "--foreground"]
        daemon = subprocess.Popen(words, env=ctx.environ, stderr=subprocess.PIPE, text=True)
        try:
            assert daemon.stderr is not None
            assert f"mounted at {ctx.root}" in daemon.stderr.readline()  # "and the log goes to stderr"
            assert ctx.call("text.word_count", "a b").output == "2 words"
            assert ctx.pid == daemon.pid  # docs/commands.md: "there is no second process"
            daemon.send_signal(number)
            daemon.wait(PATIENCE)
        finally:
            daemon.kill()
            daemon.communicate()
        assert (daemon.returncode, os.path.ismount(ctx.root)) == (0, False)


def test_state_survives_a_restart(python: Path) -> None:
    # abi.md 3.17
    with mounted(python) as ctx:
        policy = ctx.root / "tool" / "fs.read.d" / "policy"
        policy.write_text("allow coder_t tool:fs.read execute\n")
        alias = ctx.root / "home" / str(os.getuid()) / "tool" / "r"
        alias.symlink_to(ctx.tool("fs.read"))
        ctx.umount()
        ctx.mount()
        assert policy.read_text() == "allow coder_t tool:fs.read execute\n"
        assert os.readlink(alias) == ctx.tool("fs.read")
        assert ctx.call("text.word_count", "x").status == 0
        log = ctx.root / "tool" / "text.word_count.d" / "log"
        assert len(log.read_text().splitlines()) == 1


def test_restart_keeps_the_directories_of_the_daemon(python: Path) -> None:
    # abi.md 8.6, 10.4; the daemon that runs knows them, the shell that asks need not
    with mounted(python) as ctx:
        before, state = ctx.pid, ctx.environ.pop("CTX_STATE")
        ctx.environ["XDG_STATE_HOME"] = str(ctx.base / "elsewhere")
        (ctx.config / "config.toml").write_text("[turn]\ntool_timeout_secs = 77\n")
        ctx.ctx("restart")
        assert not alive(before)
        assert ctx.pid != before
        assert (Path(state) / "lock").read_text() == f"{ctx.pid}\n"
        assert (ctx.root / "tool" / "fs.read.d" / "timeout").read_text() == "77\n"
        ctx.environ["CTX_STATE"] = state
        ctx.umount()
        missing = ctx.ctx("restart", check=False)
        assert (missing.returncode, "ctx mount" in missing.stderr) == (69, True)


def test_each_command_works_on_the_directories_of_the_mount_that_is_meant(python: Path) -> None:
    # abi.md 8.12; a provider went into the configuration of another daemon
    with mounted(python) as ctx:
        elsewhere = {"HOME": str(ctx.base / "home"), "XDG_CONFIG_HOME": str(ctx.base / "home")}
        environ = {key: value for key, value in ctx.environ.items() if key not in ("CTX_STATE", "CTX_CONFIG")}
        ctx.environ, kept = environ | elsewhere, ctx.environ
        try:
            provider = ("--format", "openai.chat", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
            ctx.ctx("provider", "add", "acme", *provider)
            ctx.ctx("model", "new", "acme/mine", "--from", "acme/m")
            ctx.ctx("agent", "new", "helper", "--model", "debug/echo")
            listed = ctx.ctx("provider", "list", "--json").stdout
            completed = ctx.ctx("complete", "--", "ctx", "provider", "remove", "").stdout
        finally:
            ctx.environ = kept
        assert (ctx.config / "providers" / "acme.toml").exists()
        assert (ctx.root / "model/acme/mine").exists()
        assert (ctx.root / "agent/helper").exists()
        assert '"acme"' in listed
        assert "acme" in completed
        assert not (ctx.base / "home").exists()


def test_plugin_list(ctx: Ctx) -> None:
    rows = {row["name"]: row for row in json.loads(ctx.ctx("plugin", "list", "--json").stdout)}
    assert rows["faulty"]["enabled"] is True
    assert rows["unloadable"]["enabled"] is False


def test_programs_over_the_whole_mount(ctx: Ctx, tmp_path: Path) -> None:
    # issue: "`ls -R`, `find`, `du`, `tar c`, `rsync -a`, `grep -r`, `git grep --no-index` over the
    # whole mount end without an error or a hang"
    for words in (
        ["ls", "-lR", "."],
        ["find", ".", "-type", "f"],
        ["du", "-a", "."],
        ["tar", "--warning=no-file-ignored", "-cf", str(tmp_path / "all.tar"), "."],  # tar stores no sockets
        ["rsync", "-a", "./", str(tmp_path / "copy")],
        ["grep", "-r", "word_count", "."],
        ["git", "grep", "--no-index", "word_count"],
        ["cat", "status"],
    ):
        done = ctx.run(words, cwd=ctx.root)
        assert (done.returncode, done.stderr) == (0, ""), words
