"""`ctx state export` and `import`, with daemons that run and hold conversations meanwhile."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.waiting import until

KEY = "sk-nobody-else-has-this"
SAID = 40


def told(ctx: Ctx, session: str) -> str:
    folder = ctx.root / f"home/{os.getuid()}/model/debug/echo.d/session/{session}"
    return (folder / "events.jsonl").read_text()


def filled(ctx: Ctx) -> None:
    ctx.ctx("send", "debug/echo", "--session", "kept", "over the export")
    (ctx.root / "tool/fs.read.d/policy").write_text("allow coder_t tool:fs.read execute\n")
    ctx.ctx("agent", "new", "keeper", "--model", "debug/echo", "--tools", "fs.read")
    ctx.ctx(
        "provider",
        "add",
        "work",
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--format",
        "openai.chat",
        "--model",
        "m",
    )
    (ctx.state / "secrets").mkdir(mode=0o700, exist_ok=True)
    (ctx.state / "secrets/work").touch(0o600)
    (ctx.state / "secrets/work").write_text(f"{KEY}\n")


# abi.md 8.41
@pytest.mark.parametrize("secrets", [False, True])
def test_another_mount_has_what_was_exported(fresh: Ctx, python: Path, tmp_path: Path, secrets: bool) -> None:
    filled(fresh)
    said, path = told(fresh, "kept"), tmp_path / "archive"
    fresh.ctx("state", "export", str(path), *(["--secrets"] if secrets else []))
    assert path.stat().st_mode & 0o777 == 0o600
    unpacked = subprocess.run(["tar", "-xzOf", path], capture_output=True, check=True).stdout
    assert (KEY.encode() in unpacked) == secrets
    with mounted(python) as other:
        other.ctx("send", "debug/echo", "--session", "own", "before the import")
        other.ctx("state", "import", str(path), "--yes")
        assert told(other, "kept") == said
        assert "coder_t" in (other.root / "tool/fs.read.d/policy").read_text()
        assert "hello" in other.ctx("run", "keeper", "hello").stdout
        assert "work" in other.ctx("provider", "list").stdout
        assert (other.state / "secrets/work").exists() == secrets
        assert not (other.root / f"home/{os.getuid()}/model/debug/echo.d/session/own").exists()
        assert list((other.state / "before-import/state/sessions").rglob("own"))
    assert told(fresh, "kept") == said


# abi.md 8.42
def test_an_import_keeps_the_secrets_that_an_archive_has_not(fresh: Ctx, tmp_path: Path) -> None:
    filled(fresh)
    path = tmp_path / "archive"
    fresh.ctx("state", "export", str(path))
    pid = fresh.pid
    fresh.ctx("state", "import", str(path), "--yes")
    assert fresh.pid != pid
    assert (fresh.state / "secrets/work").read_text() == f"{KEY}\n"


def test_an_import_follows_no_link_that_a_daemon_has_left(fresh: Ctx, tmp_path: Path) -> None:
    filled(fresh)
    fresh.ctx("state", "export", str(tmp_path / "archive"))
    (tmp_path / "elsewhere").mkdir()
    (fresh.state / "before-import").symlink_to(tmp_path / "elsewhere")
    fresh.ctx("state", "import", str(tmp_path / "archive"), "--yes")
    assert not list((tmp_path / "elsewhere").iterdir())
    assert (fresh.state / "before-import/state/agents").is_dir()
    assert not (fresh.state / "before-import").is_symlink()


def test_an_import_ends_no_daemon_of_another_state(fresh: Ctx, ctx: Ctx, tmp_path: Path) -> None:
    fresh.ctx("state", "export", str(tmp_path / "archive"))
    pids = fresh.pid, ctx.pid
    words = ("--root", str(ctx.root), "--state", str(fresh.state), "--config", str(fresh.config))
    refused = fresh.ctx("state", "import", str(tmp_path / "archive"), "--yes", *words, check=False)
    assert (refused.returncode, "name its mount with --root" in refused.stderr) == (1, True)
    assert (fresh.pid, ctx.pid) == pids


def test_without_a_daemon_an_import_only_replaces_the_files(fresh: Ctx, tmp_path: Path) -> None:
    filled(fresh)
    fresh.ctx("state", "export", str(tmp_path / "archive"))
    fresh.umount()
    (fresh.state / "agents/keeper.json").unlink()
    fresh.ctx("state", "import", str(tmp_path / "archive"), "--yes")
    assert (fresh.state / "agents/keeper.json").exists()
    assert not os.path.ismount(fresh.root)
    fresh.mount()
    assert "over the export" in told(fresh, "kept")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_nobody_else_exports_a_state(fresh: Ctx, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    words = [str(fresh.python), "-I", "-m", "cortexfs.cli.main", "state", "export", str(tmp_path / "archive")]
    done = fresh.run([*words, "--state", str(fresh.state), "--config", str(fresh.config)], uid=NOBODY)
    assert done.returncode == 13
    assert not list(tmp_path.iterdir())


def test_a_daemon_that_is_talked_with_is_exported_whole(fresh: Ctx, tmp_path: Path) -> None:
    def talk() -> None:
        for number in range(SAID):
            fresh.ctx("send", "debug/echo", "--session", "busy", f"message {number}")

    talking = threading.Thread(target=talk)
    talking.start()
    path = tmp_path / "archive"
    events = fresh.root / f"home/{os.getuid()}/model/debug/echo.d/session/busy/events.jsonl"
    until(lambda: events.exists() and events.stat().st_size)
    fresh.ctx("state", "export", str(path))
    talking.join()
    whole = told(fresh, "busy")
    fresh.ctx("state", "import", str(path), "--yes")
    part = told(fresh, "busy").splitlines()
    assert part[0] == whole.splitlines()[0]
    fresh.ctx("send", "debug/echo", "--session", "busy", "and after")
    assert "and after" in told(fresh, "busy")


def test_what_is_no_archive_changes_nothing_and_ends_no_daemon(fresh: Ctx, tmp_path: Path) -> None:
    filled(fresh)
    pid = fresh.pid
    (tmp_path / "garbage").write_bytes(os.urandom(1000))
    for words in (
        ("import", str(tmp_path / "garbage"), "--yes"),
        ("import", str(tmp_path / "none"), "--yes"),
    ):
        assert fresh.ctx("state", *words, check=False).returncode in (1, 2)
    refused = fresh.ctx("state", "export", str(tmp_path / "no/folder"), check=False)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert fresh.pid == pid
    assert not list(fresh.state.glob(".import-*"))
    assert "over the export" in told(fresh, "kept")
