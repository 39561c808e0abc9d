"""Processes of confined hosts that outlived their daemon and its fork server.

Issue: "SIGKILL of daemon and fork server leaves an agent's setsid children where there is no cgroup: they are
found and killed at the next start".
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.host.confine import leftovers
from tests.shell.confined import ONLY_HERE, SYSTEM
from tests.shell.forks import AS_NOBODY, NOBODY, Forks, ended, public_directory

pytestmark = ONLY_HERE

RUN_AWAY = """
import subprocess
child = subprocess.Popen(["setsid", "sh", "-c", "sleep 1000 & wait"])
answer = child.pid
"""


@pytest.fixture
def states() -> Iterator[tuple[Path, Path]]:
    with public_directory() as place:
        for name in ("one", "other"):
            (place / name).mkdir(mode=0o700)
            os.chown(place / name, NOBODY, NOBODY)
        yield place / "one", place / "other"


# Starts a program as root on a system without cgroups.
NO_GROUPS = ("unshare", "-m", "sh", "-c", 'umount -l /sys/fs/cgroup; exec "$@"', "sh")


def left_behind(state: Path, source: str = RUN_AWAY, prefix: tuple[str, ...] = AS_NOBODY) -> int:
    """Returns a descriptor of a process that outlived its fork server, which could create no cgroup."""
    confined = hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY), view=(*SYSTEM, ("/dev", "rw")))
    with Forks(*prefix, state=state) as forks:
        host = forks.spawn(confined)
        pidfd = os.pidfd_open(host.ask(source))
        forks.process.kill()
        forks.process.wait()
        assert ended(host.pidfd)
    return pidfd


def test_what_outlived_a_daemon_ends_with_the_next_start(states: tuple[Path, Path]) -> None:
    mine, others = left_behind(states[0]), left_behind(states[1])
    try:
        with Forks(*AS_NOBODY, state=states[0]) as forks:
            forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY)))  # it has looked by then
            assert ended(mine)
            assert not select.select([others], [], [], 0)[0]  # its daemon may still be running
        with Forks(*AS_NOBODY, state=states[1]) as forks:
            forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY)))
            assert ended(others)
    finally:
        os.close(mine)
        os.close(others)


UNSEEN = """
import ctypes
ours, theirs = os.pipe()
if not os.fork():
    os.setsid()
    if pid := os.fork():
        os.write(theirs, str(pid).encode())
        os._exit(0)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    import time
    time.sleep(1000)
answer = int(os.read(ours, 20))
"""


def test_one_that_hides_itself_ends_too(states: tuple[Path, Path]) -> None:
    mine = left_behind(states[0], UNSEEN)
    with Forks(*AS_NOBODY, state=states[0]) as forks:
        forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY)))
        assert ended(mine)
    os.close(mine)


def test_a_state_of_the_same_path_elsewhere_is_another(states: tuple[Path, Path]) -> None:
    mine = left_behind(states[0])
    states[0].rename(states[0].with_name("moved"))
    states[1].rename(states[0])
    with Forks(*AS_NOBODY, state=states[0]) as forks:
        forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY)))
        assert not select.select([mine], [], [], 0)[0]
    with Forks(*AS_NOBODY, state=states[0].with_name("moved")) as forks:
        forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY)))
        assert ended(mine)
    os.close(mine)


def test_below_a_closed_folder_the_mark_lies_elsewhere() -> None:
    with public_directory() as place:
        (place / "closed" / "state").mkdir(parents=True)
        (place / "closed").chmod(0o700)
        mine = left_behind(place / "closed" / "state", prefix=NO_GROUPS)
        with Forks(*NO_GROUPS, state=place / "closed" / "state") as forks:
            forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY)))
            assert ended(mine)
        os.close(mine)


def test_what_ends_while_it_is_looked_at_stops_nobody() -> None:
    # A zombie has no table of mounts: EINVAL.
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    leftovers._kill(pid, "a mark")
    os.waitpid(pid, 0)


def test_the_state_is_hidden_from_a_confined_host(states: tuple[Path, Path]) -> None:
    (states[0] / "secret").touch()
    seen = f"answer = os.path.exists('{states[0]}/secret')"
    with Forks(*AS_NOBODY, state=states[0]) as forks:
        free = forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY)))
        confined = forks.spawn(hostcalls.Identity(NOBODY, NOBODY, (1, NOBODY), view=(("/", "rwx"),)))
        assert (free.ask(seen), confined.ask(seen)) == (True, False)
