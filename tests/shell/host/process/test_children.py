"""host/process/children.py: what a process of a plugin gets."""

from __future__ import annotations

import errno
import os

import pytest

from cortexfs.host.process import children
from cortexfs.linux import syscalls
from tests import waiting


def refused(first: int) -> None:
    raise OSError(errno.ENOSYS, f"close_range from {first}")


@pytest.mark.parametrize("kernel", ["this", "before 5.11"])
def test_no_descriptor_goes_on_to_a_child(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # "Let no descriptor through but the three"
    if kernel != "this":
        monkeypatch.setattr(syscalls, "close_on_exec", refused)
    child = children.ChildProcess()
    with open(os.devnull) as left_open:
        os.set_inheritable(left_open.fileno(), True)
        child.start(["/bin/ls", "/proc/self/fd"], {})
        assert child.ends_within(waiting.PATIENCE)
        said = child.stdout.read()
        child.end()
    assert said == b"0\n1\n2\n3\n"  # the last is its own, of the listing
