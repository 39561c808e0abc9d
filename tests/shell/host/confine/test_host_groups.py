"""host/confine/limits.py: the cgroups of fork servers that start side by side, and the counting of processes
on systems without cgroups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cortexfs.host.confine import limits
from cortexfs.host.confine.limits import Groups
from cortexfs.linux import syscalls

SERVERS, STARTS = 8, 40


@pytest.fixture
def base() -> Iterator[Path]:
    """A cgroup of the test's own, as fork servers of other test workers clear the cgroups beside theirs."""
    place = next((place for _, place in limits.hierarchies() if os.access(place, os.W_OK)), None)
    if not place:
        pytest.skip("no cgroups here")
    own = place / f"test-cortexfs-{os.getpid()}"
    own.mkdir()
    yield own
    own.rmdir()


def test_fork_servers_that_start_at_once_leave_each_other_alone(base: Path) -> None:
    # a call once failed with "no host can start: No such file or directory", under load
    servers = [_forked(base) for _ in range(SERVERS)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in servers] == [0] * SERVERS


def _forked(base: Path) -> int:
    if pid := os.fork():
        return pid
    status = 1
    try:
        for _ in range(STARTS):
            groups = Groups._make(base, os.getppid())
            group = groups.create(1, 8)
            os.sched_yield()
            assert group.path.is_dir()
            assert group.kill()
            groups.remove()
        status = 0
    finally:
        os._exit(status)


def test_no_other_user_can_lock_what_a_fork_server_has_locked(base: Path) -> None:
    groups = Groups._make(base, os.getppid())
    (path,) = base.glob(f"{limits.PREFIX}*")
    assert path.stat().st_mode & 0o066 == 0, "who can open it can lock it"
    groups.remove()


def test_a_directory_that_was_cleared_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, locked = tmp_path / "mine", limits._lock
    seen: list[Path] = []

    def cleared(path: Path) -> int:
        if not seen:
            path.rmdir()
        seen.append(path)
        return locked(path)

    monkeypatch.setattr(limits, "_lock", cleared)
    os.close(limits._claim(wanted))
    assert wanted.is_dir()
    assert len(seen) == 2


def test_a_lock_on_what_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, opened = tmp_path / "mine", os.open

    def late(path: Path, flags: int) -> int:
        fd = opened(path, flags)
        path.rmdir()
        path.mkdir()
        return fd

    wanted.mkdir()
    monkeypatch.setattr(os, "open", late)
    with pytest.raises(FileNotFoundError, match="was removed before it could be locked"):
        limits._lock(wanted)


def test_what_a_dead_fork_server_left_is_cleared_and_what_a_living_one_holds_is_not(base: Path) -> None:
    dead, living = base / f"{limits.PREFIX}1.1", base / f"{limits.PREFIX}1.2"
    lock = limits._claim(living)
    try:
        (dead / "1").mkdir(parents=True)
        limits._clear(base)
        assert not dead.exists()
        assert living.is_dir()
    finally:
        living.rmdir()
        os.close(lock)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes a user who has no processes")
@pytest.mark.parametrize("dumpable", [0, 1])
def test_a_users_daemon_is_counted_although_it_is_not_dumpable(dumpable: int) -> None:
    # prctl(2), PR_SET_DUMPABLE: the /proc files of such a process belong to root; /proc/PID itself does not
    ours, theirs = os.pipe()
    daemon = _stage(dumpable, lambda: _stage(1, lambda: _stage(1, lambda: _tell(theirs))))
    os.waitpid(daemon, 0)
    os.close(theirs)
    with open(ours, "rb") as told:
        assert told.read() == b"3"  # daemon, fork server, host


STRANGER = 54321


def _tell(to: int) -> int:
    os.write(to, str(limits.tasks_of(STRANGER)).encode())
    return 0


def _stage(dumpable: int, then: Callable[[], int]) -> int:
    """Start a process of a stranger that does `then`, and waits for the child that `then` creates."""
    if pid := os.fork():
        return pid
    try:
        os.setresuid(STRANGER, STRANGER, STRANGER)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, dumpable)
        if child := then():
            os.waitpid(child, 0)
    finally:
        os._exit(0)
