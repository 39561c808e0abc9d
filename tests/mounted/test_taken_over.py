"""Attacks from inside a daemon of root's that was taken over, which all fail: docs/security.md, "A daemon
that was taken over"."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from cortexfs.cli import mounts
from cortexfs.cli.main import main
from cortexfs.cli.mount import umount
from cortexfs.linux import landlock, seccomp
from tests.mounted.ctx_mount import NOBODY, Ctx, wait_gone
from tests.shell.forks import public_directory
from tests.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="is root's daemon"),
    pytest.mark.skipif(os.uname().machine not in seccomp.MACHINES, reason="no filter for this machine"),
]
SCRIPT = Path(__file__).with_name("taken_over.py")
HANGING = Path(__file__).with_name("taken_over_hanging.py")
# Attempts that fail with another error than EPERM.
OTHERS = {
    "connect": "EAFNOSUPPORT",
    "file: link": "EXDEV",
    "request to a file system": "ENOTTY",
    "signal by a socket, as it was": "ENOTTY",
    "type at a terminal": "ENOTTY",
}
OF_OTHERS = ("host ", "file: ", "starter ")  # prefixes of attempts that are not the daemon's own calls


class Attempts(NamedTuple):
    before: dict[str, str]
    after: dict[str, str]


@pytest.fixture(scope="module")
def attempts() -> Iterator[Attempts]:
    with ExitStack() as stack:
        base = stack.enter_context(public_directory())
        for name in ("ctx", "folder", "folder/mount", "folder/shared", "config"):
            (base / name).mkdir()
        (base / "folder/shared").chmod(0o777)
        (base / "folder/roots").touch(0o600)
        service = stack.enter_context(socket.socket(socket.AF_UNIX))
        service.bind(str(base / "folder" / "root's"))
        os.chmod(service.getsockname(), 0o777)
        service.listen()
        victim = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(victim.kill)
        places = [str(base / name) for name in ("ctx", "state", "config", "folder")]
        words = [sys.executable, str(SCRIPT), *places, str(victim.pid)]
        root = SCRIPT.parents[2]
        # Standard input as systemd sets it up for services: connected to a socket where root listens.
        stream = stack.enter_context(socket.socket(socket.AF_UNIX))
        stream.connect(service.getsockname())
        environ = {**os.environ, "PYTHONPATH": str(root)}
        options = {"stdin": stream, "stdout": subprocess.PIPE, "env": environ}
        daemon = stack.enter_context(subprocess.Popen(words, **options))  # type: ignore[call-overload]
        stack.callback(daemon.terminate)
        assert daemon.stdout
        said = Attempts(*json.loads(daemon.stdout.readline()))
        assert daemon.stdout.readline() == b"ready\n"
        words = [str(base / "ctx/tool/fs.read"), "/etc/hostname"]
        assert subprocess.run(words, capture_output=True, timeout=PATIENCE).returncode == 0  # it still serves
        yield said
        daemon.terminate()
        assert daemon.wait(PATIENCE) == 0
        assert not os.path.ismount(base / "ctx")


def test_it_can_do_nothing_that_it_does_not_need(attempts: Attempts) -> None:
    assert set(attempts.before.values()) == {"done"}  # so each attempt could work
    own = {name: said for name, said in attempts.after.items() if not name.startswith(OF_OTHERS)}
    tried = [name for name in attempts.before if not name.startswith("file: ")]
    assert own == {name: OTHERS.get(name, "EPERM") for name in (*tried, "channel")}


@pytest.mark.skipif(landlock.version() < 2, reason="an older Landlock")
def test_it_changes_no_file_but_its_state(attempts: Attempts) -> None:
    # So it cannot make its starter execute a file of its own, and cannot look into any process.
    files = {name: said for name, said in attempts.after.items() if name.startswith("file: ")}
    assert len(files) > 10
    assert files == {name: OTHERS.get(name, "EACCES") for name in files}


def test_it_gets_no_host_of_anybody_who_has_not_connected(attempts: Attempts) -> None:
    # "so that a taken-over daemon cannot ask for uid 0"
    hosts = {name: said for name, said in attempts.after.items() if name.startswith("host ")}
    # A host made a fitting connection and sent it, but the fork server saw that the sender is not the daemon.
    assert hosts.pop("host of root by a host of nobody") == "65534 asked refused"
    assert len(hosts) == 6
    assert set(hosts.values()) == {"EACCES"}


def test_the_process_that_starts_others_does_nothing_else_for_it(attempts: Attempts) -> None:
    said = {name: said for name, said in attempts.after.items() if name.startswith("starter ")}
    assert len(said) == 5
    assert set(said.values()) == {"EINVAL"}


def test_it_keeps_no_capability(ctx: Ctx) -> None:
    status = Path(f"/proc/{ctx.pid}/status").read_text()
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert re.search(rf"^{name}:\t0{{16}}$", status, re.MULTILINE), name
    assert "Seccomp:\t2\n" in status


def test_users_are_served_when_the_process_that_starts_others_is_killed(fresh: Ctx) -> None:
    # The daemon logs a sentence and ends; only its mount is left, which the next daemon removes.
    pid = fresh.pid
    assert fresh.call("fs.read", "/etc/hostname", uid=NOBODY).status == 0
    (starter,) = _children(pid)
    os.kill(starter, signal.SIGKILL)
    assert wait_gone(pid)
    log = fresh.state / "daemon.log"
    assert "the process that starts others has ended; the daemon ends, too" in log.read_text()
    log.write_text("")
    until(lambda: [one for one in _everybody() if str(fresh.state) in one], lambda left: not left)
    fresh.ctx("umount", str(fresh.root), check=False)
    fresh.mount()
    assert fresh.call("fs.read", "/etc/hostname").status == 0


@pytest.mark.parametrize("undead", [False, True])
def test_nobody_outlives_it_by_waiting_for_its_files(
    undead: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(umount, "HUNG_SECONDS", 0.1)
    for name in ("ctx", "state", "config"):
        (tmp_path / name).mkdir(0o755)
    root = tmp_path / "ctx"
    words = [sys.executable, str(HANGING), *(str(tmp_path / name) for name in ("ctx", "state", "config"))]
    environ = {**os.environ, "PYTHONPATH": str(HANGING.parents[2])}
    with ExitStack() as stack:
        daemon = stack.enter_context(
            subprocess.Popen([*words, *["undead"] * undead], stdout=subprocess.PIPE, env=environ)
        )
        stack.callback(lambda: subprocess.run(["umount", "-f", "-l", root], stderr=subprocess.DEVNULL))
        assert daemon.stdout
        held = [os.pidfd_open(int(pid)) for pid in daemon.stdout.readline().split()]
        for pidfd in held:
            stack.callback(os.close, pidfd)
        assert len(held) == 2
        assert [daemon.stdout.readline() for _ in range(2)] == [b"it waits\n", b"it goes on\n"]
        if undead:
            assert main(["umount", str(root)]) == 0
        assert daemon.wait(PATIENCE) == 1
        for pidfd in held:
            assert select.select([pidfd], [], [], PATIENCE)[0]
        if not undead:
            with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
                os.listdir(root)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _everybody() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found


def test_what_is_closed_to_root_without_powers_is_told_at_the_mount(fresh: Ctx) -> None:
    fresh.ctx("umount", str(fresh.root))
    private = fresh.state.parent / "private"
    private.mkdir(mode=0o600)
    done = fresh.ctx("mount", "--state", str(private / "state"), str(fresh.root), check=False)
    assert done.returncode == 13
    assert f"needs {private}/state without them: chmod a+x {private}" in done.stderr
    assert not os.path.ismount(fresh.root)
    private.chmod(0o711)
    fresh.ctx("mount", "--state", str(private / "state"), str(fresh.root))
    assert fresh.call("fs.read", "/etc/hostname").status == 0


@pytest.mark.parametrize("name", ["daemon.log", "lock"])
def test_the_next_one_follows_no_link_that_it_left(name: str, fresh: Ctx) -> None:
    # The daemon opens these files as root, before the kernel limits it to its state.
    fresh.ctx("umount", str(fresh.root))
    (outside := fresh.state.parent / "outside").touch()
    (fresh.state / name).unlink()
    (fresh.state / name).symlink_to(outside)
    done = fresh.ctx("mount", str(fresh.root), check=False)
    assert done.returncode != 0
    assert f"{name} is a link, which is refused here; remove it" in done.stderr
    assert outside.read_bytes() == b""
    (fresh.state / name).unlink()
    fresh.ctx("mount", str(fresh.root))


def test_the_next_one_changes_nothing_behind_links_that_it_left(fresh: Ctx) -> None:
    fresh.ctx("umount", str(fresh.root))
    outside = fresh.state.parent / "outside"
    for name, half_made in (
        ("tree/tool", "fs.read.d/.new.policy"),
        ("tree/links/tool", ".new.mine"),
        ("plugins", ".new.words/plugin.toml"),
        ("sessions/agent/one", "session/log"),
        ("log/tool", "fs.read/log"),
        ("agents", ".new.one"),
    ):
        (left := outside / name / half_made).parent.mkdir(parents=True)
        left.write_text("half made")
        shutil.rmtree(fresh.state / name, ignore_errors=True)
        (fresh.state / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh.state / name).symlink_to(outside / name)
    before = {path: path.lstat() for path in outside.rglob("*")}
    for link, status, said in (
        ("tree/links/tool", 13, "tree/links/tool/.new.mine cannot be used: Permission denied"),
        ("plugins", 1, "plugins is a link, which is refused here; remove it"),
    ):
        done = fresh.ctx("mount", str(fresh.root), check=False)
        assert done.returncode == status
        assert f"{fresh.state}/{said}" in done.stderr
        assert "Traceback" not in (fresh.state / "daemon.log").read_text()
        (fresh.state / link).unlink()
    fresh.ctx("mount", str(fresh.root))
    assert fresh.call("fs.read", "/etc/hostname").status == 0
    fresh.ctx("umount", str(fresh.root))
    after = {path: path.lstat() for path in outside.rglob("*")}
    assert {path: (it.st_uid, it.st_mode, it.st_mtime_ns) for path, it in after.items()} == {
        path: (it.st_uid, it.st_mode, it.st_mtime_ns) for path, it in before.items()
    }
    shutil.rmtree(fresh.state)
    fresh.ctx("mount", str(fresh.root))
