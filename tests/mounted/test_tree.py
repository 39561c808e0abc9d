"""The whole tree and common programs, and the notices that the kernel gets when the tree changes."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.tree_client import USER, Served, needs_root, served

# abi.md 1.13, 3.9
REFUSED = errno.EACCES if os.geteuid() else errno.EROFS


@pytest.fixture(scope="module")
def mount() -> Iterator[Served]:
    """A shared mount; tests leave it as they found it."""
    with served() as mount_:
        yield mount_


@pytest.fixture
def fresh() -> Iterator[Served]:
    with served() as mount_:
        yield mount_


@pytest.mark.parametrize(
    "command",
    [
        "ls -lR",
        "find . -type f -newer /etc/passwd",
        "find . -xdev -empty",
        "du -a",
        "tar cf - --warning=no-file-ignored . | tar tf -",
        "grep -r cortexfs .",
        "git grep --no-index cortexfs",
        "find . -type f -exec cat {} +",
        "find . -type f -exec md5sum {} +",
        "df . && stat -f .",
        "getfattr -hRd -m - .",
    ],
)
def test_programs_walk_the_whole_tree_without_an_error(mount: Served, command: str) -> None:
    mount.does(command)


def test_rsync_copies_the_tree_and_finds_nothing_new_the_second_time(mount: Served, tmp_path: Path) -> None:
    # abi.md 1.15
    mount.does(f"rsync -a --exclude='*.sock' --exclude=/status ./ {tmp_path}/")
    assert (tmp_path / "tool/fs.read").read_bytes() == (mount.root / "tool/fs.read").read_bytes()
    assert mount.does(f"rsync -ai --exclude='*.sock' --exclude=/status ./ {tmp_path}/") == ""


def test_sizes_are_what_a_read_gives(mount: Served) -> None:
    # abi.md 1.16
    for folder, _, files in os.walk(mount.root):
        for name in files:
            path = Path(folder, name)
            if stat.S_ISREG(path.lstat().st_mode):
                assert path.stat().st_size == len(path.read_bytes()), path


def test_stat_and_read_of_status_agree(mount: Served) -> None:
    for _ in range(3):
        found = os.stat(mount.root / "status")
        assert found.st_size == len((mount.root / "status").read_bytes())


@needs_root
def test_another_user_sees_everything_but_other_homes(mount: Served) -> None:
    done = mount.shell("ls -lR . >/dev/null; ls -ld home/*", user=USER)
    assert "home/0" in done.stdout
    assert "home/0" in done.stderr


def test_the_root_takes_no_other_name(mount: Served) -> None:
    # abi.md 1.13
    for make in (
        os.mkdir,
        lambda path: os.symlink("x", path),
        lambda path: os.link(mount.root / "status", path),
        lambda path: open(path, "x").close(),
    ):
        for name in ("plugin", "log", ".run.sock2"):
            with pytest.raises(OSError, match=name) as raised:
                make(mount.root / name)
            assert raised.value.errno == errno.EROFS


@needs_root
def test_where_mode_bits_refuse_they_say_so(mount: Served) -> None:
    # abi.md 1.13
    for script in ("mkdir x", "echo x > tool/shell.d/policy", "touch tool/x", "rm tool/shell.d/policy"):
        done = mount.shell(script, user=USER)
        assert done.returncode
        assert "ermission denied" in done.stderr, (script, done)


def test_the_runners_socket_is_in_every_folder_and_in_no_listing(mount: Served) -> None:
    # abi.md 1.12
    inodes = set()
    for folder, folders, files in os.walk(mount.root):
        assert ".run.sock" not in folders + files
        found = os.lstat(os.path.join(folder, ".run.sock"))
        assert stat.filemode(found.st_mode) == "srwxrwxrwx"
        inodes.add(found.st_ino)
    assert len(inodes) == 1
    assert "Read-only file system" in mount.shell("rm -f .run.sock").stderr


def test_the_runners_socket_is_reached_through_any_folder(mount: Served) -> None:
    for folder in ("", "tool", "tool/shell.d", "model/openai"):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(mount.root / folder / ".run.sock"))


def test_a_declared_socket_that_nobody_serves_refuses(mount: Served) -> None:
    # abi.md 5.6
    with socket.socket(socket.AF_UNIX) as caller, pytest.raises(ConnectionRefusedError):
        caller.connect(str(mount.root / "agent/coder.sock"))


def test_an_executable_runs_its_interpreter(mount: Served) -> None:
    assert mount.does("tool/shell") == (mount.root / "tool/shell").read_text()


def test_a_log_grows_under_who_reads_it(mount: Served) -> None:
    # abi.md 1.17
    with open(mount.root / "tool/shell.d/log", "rb", buffering=0) as log:
        start = len(log.read())
        for _ in range(3):
            mount.tell("log shell")
            assert log.read(100) == b'{"run":"r1"}\n'
            assert os.fstat(log.fileno()).st_size == log.tell()
    assert (mount.root / "tool/shell.d/log").stat().st_size == start + 39


def test_new_and_removed_objects_are_seen_at_once_by_who_looked_before(fresh: Served) -> None:
    new = fresh.root / "tool/t00001"
    assert not new.exists()  # the kernel caches this answer
    inode = os.stat(fresh.root / "tool/shell").st_ino
    fresh.tell("add 3")
    assert new.exists()
    assert (fresh.root / "tool/t00001.d/policy").exists()
    fresh.tell("drop shell")
    assert not (fresh.root / "tool/shell").exists()
    assert not (fresh.root / "tool/shell.d").exists()
    fresh.tell("add 0")
    assert os.stat(fresh.root / "tool/t00001").st_ino != inode


def test_a_changed_object_shows_in_stat_and_read_at_once(fresh: Served) -> None:
    path = fresh.root / "tool/shell"
    before = path.read_bytes(), path.stat().st_size
    fresh.tell("break shell")
    assert b"broken: no such host" in path.read_bytes()
    assert path.stat().st_size == len(path.read_bytes()) > before[1]
    assert (fresh.root / "tool/shell.d/status").read_text() == "broken: no such host\n"
    assert (fresh.root / "tool/shell.d/status").stat().st_size == 21


def test_a_shell_that_stands_in_a_folder_is_not_thrown_out_by_a_change(fresh: Served) -> None:
    folder = os.open(fresh.root / "tool/shell.d", os.O_DIRECTORY)
    try:
        fresh.tell("break shell")
        assert os.readlink(f"/proc/self/fd/{folder}") == str(fresh.root / "tool/shell.d")
        assert "broken" in os.read(os.open("status", os.O_RDONLY, dir_fd=folder), 99).decode()
    finally:
        os.close(folder)


def test_a_listing_is_of_one_moment_whatever_happens_meanwhile(fresh: Served) -> None:
    fresh.tell("add 2000")
    with os.scandir(fresh.root / "tool") as listing:
        seen = [next(listing).name for _ in range(10)]
        fresh.tell("drop t01999")
        fresh.tell("drop shell")
        seen += [entry.name for entry in listing]
    assert len(seen) == len(set(seen))
    assert {f"t{number:05}" for number in range(1999)} <= set(seen)


def test_ten_thousand_tools_fit(fresh: Served) -> None:
    fresh.tell("add 10000")
    assert len(os.listdir(fresh.root / "tool")) == 2 * 10_002
    fresh.does("ls -l tool | tail -1")
    status = Path(f"/proc/{fresh.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 150 << 10  # KiB
    assert peak > resource.getpagesize() >> 10


def test_ls_asks_for_foreign_attributes_once_and_not_for_each_entry(fresh: Served) -> None:
    fresh.tell("add 200")
    trace = fresh.does("strace -f -e trace=getxattr,lgetxattr ls -l tool 2>&1 | grep -c getxattr || true")
    if not trace.strip().isdigit() or trace.strip() == "0":
        pytest.skip("strace is not installed")
    assert int(trace) <= 4


def test_attributes_of_objects(mount: Served) -> None:
    path = mount.root / "tool/shell"
    shown = {name: os.getxattr(path, name).decode() for name in os.listxattr(path)}
    assert shown == {
        "user.cortexfs.kind": "tool",
        "user.cortexfs.name": "shell",
        "user.cortexfs.origin": "plugin:example@1.0",
        "user.cortexfs.status": "ready",
        "user.cortexfs.token_estimate": str(-(-path.stat().st_size // 4)),
    }
    with pytest.raises(OSError, match="shell") as raised:
        os.setxattr(path, "user.cortexfs.name", b"x")
    assert raised.value.errno == REFUSED


def test_what_the_tree_cannot_do_is_refused_as_elsewhere(mount: Served) -> None:
    tool = mount.root / "tool"
    with pytest.raises(OSError, match="hell") as raised:
        os.link(tool / "shell", tool / "shell2")
    assert raised.value.errno == errno.EPERM
    with pytest.raises(OSError, match="tool") as raised:
        os.open(tool, os.O_TMPFILE | os.O_RDWR)
    assert raised.value.errno in (errno.EOPNOTSUPP, errno.EROFS)
    for script in ("chmod 777 tool/shell", "touch tool/shell", "rmdir tool", "mv tool t"):
        done = mount.shell(script)
        assert done.returncode
        said = os.strerror(REFUSED if "touch" in script else errno.EROFS)
        assert said in done.stderr, (script, done)


def test_a_killed_server_can_be_replaced(fresh: Served) -> None:
    fresh.kill()
    fresh.stop()
    fresh.start()
    assert (fresh.root / "tool/shell").exists()


LOOKER = """
import os, sys
while True:
    for name in ("t00001", "t00001.d", "t00001.d/status", "shell"):
        try:
            os.stat(os.path.join(sys.argv[1], name))
        except OSError:
            pass
    os.listdir(sys.argv[1])
"""


def test_nobody_sees_the_older_tree_after_a_change_however_many_look(fresh: Served) -> None:
    # design.md: only one way to make the kernel forget gave no stale reads; this test checks that way
    tool = fresh.root / "tool"
    lookers = [subprocess.Popen([sys.executable, "-c", LOOKER, str(tool)]) for _ in range(3)]
    try:
        fresh.tell("add 5")
        for _ in range(50):
            fresh.tell("drop t00001")
            assert not (tool / "t00001").exists()
            assert not (tool / "t00001.d/policy").exists()
            fresh.tell("add 5")
            assert (tool / "t00001").stat().st_size == len((tool / "t00001").read_bytes())
            assert (tool / "t00001.d/status").read_text() == "ready\n"
            fresh.tell("break t00001")
            assert b"broken" in (tool / "t00001").read_bytes()
            assert (tool / "t00001.d/status").read_text() == "broken: no such host\n"
    finally:
        for looker in lookers:
            looker.kill()
            looker.wait()
