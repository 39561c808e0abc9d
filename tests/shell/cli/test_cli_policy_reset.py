"""A removed policy: `ctx policy` reports it, and its `reset` undoes the values that were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.cli.main import main
from cortexfs.core.errors import exit_status
from tests.shell.cli import test_cli_policy
from tests.shell.cli.test_cli_policy import USER, linted, refused

root = test_cli_policy.root


def test_a_removed_policy_is_said(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 3.22
    (root / "tool/fs.read.d/policy").unlink()
    status, said = refused(capsys, "explain", USER, "fs.read")
    assert status == exit_status("ENOENT")
    assert "tool/fs.read.d/policy was removed, but its last lines still apply" in said
    assert said.endswith("or: ctx policy reset tool/fs.read\n")
    assert [(one["code"], one["subject"]) for one in linted(capsys)[1]] == [
        ("POLICY_REMOVED", "tool/fs.read.d/policy")
    ]


def test_reset_needs_a_daemon_that_answers(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "status").unlink()
    status, said = refused(capsys, "reset", "fs.read")
    assert (status, "no CortexFS is mounted at" in said) == (exit_status("EHOSTDOWN"), True)


def test_reset_writes_the_word(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "agent/base.d/policy").unlink()
    assert main(["policy", "reset", "fs.read", "agent/base"]) == 0
    assert (
        (root / "tool/fs.read.d/policy").read_text()
        == (root / "agent/base.d/policy").read_text()
        == "reset\n"
    )
    assert refused(capsys, "reset", "nothing")[0] == exit_status("ENOENT")
    (root / "tool/fs.read.d/policy").unlink()
    (root / "tool/fs.read.d/policy").mkdir()
    assert "tool/fs.read.d/policy: Is a directory" in refused(capsys, "reset", "fs.read")[1]
