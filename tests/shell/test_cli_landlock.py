"""What `ctx doctor` says of a kernel without Landlock."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cortexfs.cli import system_checks
from cortexfs.cli.checks import WARN, Subject
from cortexfs.config import Places
from cortexfs.host import linux

SUBJECT = Subject("/ctx", Places(Path("/nonexistent"), Path("/nonexistent")), os.getuid())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_doctor_says_that_agents_tools_do_not_run(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # agents.md: "Where the kernel has none, no tool of an agent runs (EACCES); `ctx doctor` says so"
    def refused() -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(linux, "landlock_abi", refused)
    level, why, mend = system_checks.landlock(SUBJECT)
    assert level == WARN
    assert "no tool of an agent runs" in why
    assert "lsm=" in mend
    assert "seccomp profile" in mend


def test_doctor_names_the_version_that_there_is() -> None:
    assert system_checks.landlock(SUBJECT).why == f"Landlock ABI {linux.landlock_abi()}"
