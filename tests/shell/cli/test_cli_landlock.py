"""`ctx doctor` on kernels without Landlock, and on systems that allow no mounts for views."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from cortexfs.cli.mount import checks
from cortexfs.cli.mount.mount_checks import OK, WARN, Subject
from cortexfs.linux import syscalls
from cortexfs.state.directories import Places

SUBJECT = Subject("/ctx", Places(Path("/nonexistent"), Path("/nonexistent")), os.getuid())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_doctor_says_that_agents_tools_do_not_run(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # agents.md: "Where the kernel has none, no tool of an agent runs (EACCES)"; `ctx doctor` says so
    def refused() -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(syscalls, "landlock_abi", refused)
    level, why, mend, *_ = checks.landlock(SUBJECT)
    assert level == WARN
    assert "no tool of an agent runs" in why
    assert "lsm=" in mend
    assert "seccomp profile" in mend


def test_doctor_names_the_version_that_there_is() -> None:
    assert checks.landlock(SUBJECT).why == f"Landlock ABI {syscalls.landlock_abi()}"


def test_doctor_says_which_calls_are_refused_where_there_are_no_mounts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # abi.md 4.44
    assert checks.view_mounts(SUBJECT).level == OK
    (tmp_path / "limit").write_text("0\n")
    monkeypatch.setattr(checks, "NO_NAMESPACES", {str(tmp_path / "limit"): "0"})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    level, why, mend, *_ = checks.view_mounts(SUBJECT)
    assert (level, "EPERM" in why, str(tmp_path) in mend) == (WARN, True, True)
