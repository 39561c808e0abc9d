"""host/process/children.py: what a plugin's process inherits."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from cortexfs.host.process import children
from cortexfs.linux import syscalls
from tests import waiting


def refused(first: int) -> None:
    raise OSError(errno.ENOSYS, f"close_range from {first}")


@pytest.mark.parametrize("kernel", ["this", "before 5.11"])
def test_no_descriptor_goes_on_to_a_child(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # "Pass on no descriptor but the three standard ones"
    if kernel != "this":
        monkeypatch.setattr(syscalls, "close_on_exec", refused)
    child = children.ChildProcess()
    with open(os.devnull) as left_open:
        os.set_inheritable(left_open.fileno(), True)
        child.start(["/bin/ls", "/proc/self/fd"], {})
        assert child.ends_within(waiting.PATIENCE)
        said = child.stdout.read()
        child.end()
    assert said == b"0\n1\n2\n3\n"  # descriptor 3 belongs to ls itself


def test_children_of_others_in_the_process_are_left_to_them() -> None:
    # "In a process that is no subreaper, unknown children are left alone"
    assert not syscalls.is_subreaper()
    with subprocess.Popen(["/bin/sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE) as other:
        for _ in range(2):  # while the other child runs, and after it has ended
            child = children.ChildProcess()
            child.start(["/bin/true"], {})
            assert child.ends_within(waiting.PATIENCE)
            child.end()
            assert other.stdin is not None
            other.stdin.close()
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert other.returncode == 3
