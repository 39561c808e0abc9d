"""Files that the kernel can start: the report on a file agrees with what the kernel does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.state import script_files, startable


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"#!/bin/sh\n", ""),
        (b"#! /bin/sh -e\n", ""),
        (b"#!/usr/bin/env sh", ""),
        (b"", "it is no program"),
        (b"echo hi\n", "it is no program"),
        (b"#!/bin/sh\r\n", "its first line ends in CR LF"),
        (b"#!\n", "its #! line names no interpreter"),
        (b"#!/no/such/sh -e\n", "its #! line names /no/such/sh, which"),
        (b"#!/etc/passwd\n", "its #! line names /etc/passwd, which"),
    ],
)
def test_a_file_is_started_or_it_is_said_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, why: str
) -> None:
    # abi.md 11.48
    monkeypatch.setattr(startable, "_OTHERS", str(tmp_path / "none"))
    path = tmp_path / "program"
    path.write_bytes(data)
    path.chmod(0o755)
    said = startable.of_file(path)
    assert (said.startswith(why), bool(said)) == (True, bool(why))
    if why:
        with pytest.raises(OSError, match="program"):
            subprocess.run([str(path)])
    else:
        assert subprocess.run([str(path)]).returncode == 0


def test_other_kinds_of_programs_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 11.48
    assert startable.of_file(sys.executable) == startable.of_file(tmp_path / "none") == ""
    monkeypatch.setattr(startable, "_OTHERS", str(tmp_path))
    (tmp_path / "status").touch()
    assert startable.why_not(b"MZ")
    (tmp_path / "wine").touch()
    assert startable.why_not(b"MZ") == ""


def test_a_script_that_cannot_be_started_is_no_tool(tmp_path: Path) -> None:
    # abi.md 11.48, 12.18
    path = tmp_path / "greet"
    path.write_text("#!/no/such/sh\n# tool: Greet.\n")
    path.chmod(0o755)
    with pytest.raises(
        Fault, match="greet cannot be started: its #! line names /no/such/sh, which"
    ) as caught:
        script_files.header(str(path))
    assert caught.value.code == "ENOEXEC"
