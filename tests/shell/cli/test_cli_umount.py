"""`ctx umount`, and `ctx mount` where there is a mount already, on real mounts of a tiny daemon."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from cortexfs.cli import mounts
from cortexfs.cli.main import main
from cortexfs.cli.mount import umount
from cortexfs.core.errors import Fault, exit_status
from tests.shell.cli_fuse import served
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and FUSE"
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(umount, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(umount, "HUNG_SECONDS", 0.2)
    monkeypatch.setattr(mounts, "ANSWER_SECONDS", 30)
    monkeypatch.setenv("CTX_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the wait for daemons that never answer."""
    monkeypatch.setattr(mounts, "ANSWER_SECONDS", 0.1)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_daemon_that_answers_is_asked_to_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 8.10
    monkeypatch.setattr(umount, "STOP_SECONDS", 30)
    root = tmp_path / "ctx"
    with served(root) as daemon:
        assert main(["umount", str(root)]) == 0
        assert daemon.wait(PATIENCE) == 0
        assert mounts.mounted_at(str(root)) is None
    assert said(capsys) == [f"unmounted {root}"]


def test_a_deaf_daemon_is_aborted_and_detached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "ctx"
    with served(root, "deaf") as daemon:
        assert main(["umount", str(root)]) == 0
        daemon.wait(PATIENCE)
        assert mounts.mounted_at(str(root)) is None
    lines = said(capsys)
    assert lines[0].startswith(f"the daemon (pid {daemon.pid}) did not stop")
    assert lines[-1] == f"detached {root} and ended its daemon (pid {daemon.pid})"


@pytest.mark.usefixtures("hung")
def test_a_hung_daemon_is_found_and_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "ctx"
    with served(root) as daemon:
        daemon.send_signal(signal.SIGSTOP)
        assert main(["umount", str(root)]) == 0
        assert daemon.wait(PATIENCE) == -signal.SIGKILL
        assert mounts.mounted_at(str(root)) is None
    lines = said(capsys)
    assert lines[0] == f"the daemon of {root} does not answer"
    assert lines[-1] == f"detached {root} and ended its daemon (pid {daemon.pid})"


@pytest.mark.usefixtures("hung")
def test_a_hung_daemon_that_nobody_knows_is_detached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "ctx"
    with served(root, "alone") as daemon:
        daemon.send_signal(signal.SIGSTOP)
        assert main(["umount", str(root)]) == 0
        assert mounts.mounted_at(str(root)) is None
    assert said(capsys)[-1].startswith(f"detached {root}; its daemon was not found")


def test_a_daemon_names_no_other_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # otherwise a daemon of root that was taken over could make root end any process
    monkeypatch.setattr(umount, "STOP_SECONDS", PATIENCE)
    root = tmp_path / "ctx"
    with served(root, f"pid={os.getpid()}") as daemon:
        assert main(["umount", str(root)]) == 0
        assert daemon.wait(PATIENCE) == 0
    assert said(capsys) == [f"unmounted {root}"]


def test_a_daemon_that_is_not_among_our_processes_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "ctx"
    with served(root, "alone", f"pid={os.getpid()}") as daemon:
        assert main(["restart", str(root)]) == 69
        assert main(["umount", str(root)]) == 0
        assert mounts.mounted_at(str(root)) is None
        assert daemon.poll() is None
    restarted, done = said(capsys)
    assert restarted.endswith("its directories are not known; name both, with --state and --config")
    assert done.startswith(f"detached {root}; its daemon is in another pid namespace")


def test_a_configuration_that_no_daemon_starts_with_ends_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, config = tmp_path / "ctx", tmp_path / "config"
    config.mkdir(mode=0o755)
    (config / "config.toml").write_text("[limits]\ndept = 1\n")
    with served(root, "alone") as daemon:
        assert main(["restart", str(root), "--state", str(tmp_path), "--config", str(config)]) == 2
        assert daemon.poll() is None
        assert mounts.mounted_at(str(root))
        assert main(["umount", str(root)]) == 0
    assert said(capsys)[0].startswith(f"ctx restart: {config}/config.toml: unknown key limits.dept; did you")


def test_a_dead_daemons_mount_is_detached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "ctx"
    with served(root) as daemon:
        daemon.kill()
        daemon.wait(PATIENCE)
        assert mounts.is_stale(str(root))
        assert main(["status", "--root", str(root)]) == 69
        assert main(["umount", str(root)]) == 0
        assert os.listdir(root) == []
    status, done = said(capsys)
    assert status == f"ctx status: {root} is the mount of a dead daemon; replace it with: ctx mount {root}"
    assert done == f"detached {root}; its daemon was dead already"


def test_nothing_to_unmount_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["umount", str(tmp_path)]) == 1
    assert said(capsys) == [f"nothing of CortexFS is mounted at {tmp_path}"]


def test_another_users_mount_is_not_ours_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "ctx"
    monkeypatch.setattr(mounts, "mounted_at", lambda point: mounts.Mount(point, 1, 1001, False))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert main(["umount", str(root)]) == 13
    assert said(capsys) == [
        f"ctx umount: {root} was mounted by uid 1001; only that user and root may unmount it"
    ]


def test_another_users_mount_is_not_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Root may not either: the mount would be ended, and its new start would then be refused.
    monkeypatch.setattr(mounts, "mounted_at", lambda point: mounts.Mount(point, 1, 1001, False))
    assert main(["restart", str(tmp_path)]) == 13
    assert said(capsys) == [
        f"ctx restart: {tmp_path} was mounted by uid 1001; only that user may restart it; "
        f"to end it: ctx umount {tmp_path}"
    ]
    monkeypatch.setattr(os, "getuid", lambda: 1000)  # a user that may not end it
    assert main(["restart", str(tmp_path)]) == 13
    assert said(capsys) == [f"ctx restart: {tmp_path} was mounted by uid 1001; only that user may restart it"]


def test_a_live_mount_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "ctx"
    with served(root) as daemon:
        assert main(["mount", str(root)]) == 0
        assert daemon.poll() is None
    assert said(capsys) == [f"{root} is mounted already (pid {daemon.pid})"]


@pytest.mark.usefixtures("hung")
def test_a_hung_mount_is_not_mounted_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "ctx"
    with served(root) as daemon:
        daemon.send_signal(signal.SIGSTOP)
        assert main(["mount", str(root)]) == 69
    assert said(capsys) == [
        f"ctx mount: the daemon of {root} does not answer; end it with: ctx umount {root}"
    ]


def test_a_dead_daemons_mount_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 8.9
    root = tmp_path / "ctx"
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("[limits]\ndept = 1\n")  # ctx mount stops here
    with served(root) as daemon:
        daemon.kill()
        daemon.wait(PATIENCE)
        assert main(["mount", str(root)]) == 2
        assert mounts.mounted_at(str(root)) is None
    assert said(capsys)[0] == f"detached the mount that a dead daemon left at {root}"


def test_doctor_finds_dead_mounts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "ctx"
    with served(root) as daemon:
        daemon.kill()
        daemon.wait(PATIENCE)
        assert main(["doctor", "--root", str(root)]) == 69
    # Another lane's test may have a dead mount at the same time, which the line names, too.
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "lost its daemon" in line and str(root) in line]


def test_a_mount_that_was_moved_leads_to_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # otherwise a user could have root abort or detach any mount, such as root's own
    mine, theirs = tmp_path / "mine" / "ctx", tmp_path / "theirs" / "ctx"
    for above in (mine.parent, theirs.parent):
        above.mkdir()

    def moved(*_: object) -> None:
        if not theirs.parent.is_symlink():
            theirs.parent.rename(tmp_path / "moved")
            theirs.parent.symlink_to(mine.parent)
        raise Fault("EHOSTDOWN", "its daemon does not answer")

    with served(mine) as daemon, served(theirs, "alone"):
        found = mounts.mounted_at(str(theirs))
        assert found
        try:
            with monkeypatch.context() as patch:
                patch.setattr(mounts, "status_text", moved)
                assert main(["umount", str(theirs)]) == exit_status("EXDEV")
            with pytest.raises(Fault, match="leads to another mount now"):
                umount.detach(found)
            assert mounts.status_text(str(mine)).startswith("version: 0\n")
            assert daemon.poll() is None
        finally:
            subprocess.run(["umount", "-l", str(tmp_path / "moved" / "ctx")], check=True)
    assert "was moved and is left alone" in said(capsys)[-1]
