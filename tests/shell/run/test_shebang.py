"""The runner that an executable's first line names, and the limits of such a line (abi.md 1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.wire import PROTOCOL
from cortexfs.run import shebang


def speaks(path: Path, protocol: int = PROTOCOL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho cortexfs-object-runner 1 protocol {protocol}\n")
    path.chmod(0o755)
    return path


def installed(monkeypatch: pytest.MonkeyPatch, system: Path, own: Path) -> None:
    monkeypatch.setattr(shebang, "SYSTEM", system)
    monkeypatch.setattr(shebang, "program", lambda name: str(own))


@pytest.mark.parametrize("system", [PROTOCOL, PROTOCOL + 1, None])
def test_the_systems_runner_where_it_speaks_our_protocol(
    system: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 1.20
    assert str(shebang.SYSTEM) == "/usr/bin/cortexfs-object-runner"
    own, there = speaks(tmp_path / "own"), tmp_path / "system"
    if system is not None:
        speaks(there, system)
    installed(monkeypatch, there, own)
    assert shebang.runner() == str(there if system == PROTOCOL else own)


@pytest.mark.parametrize("name", ["my programs/runner", "a\tb", "d" * 200 + "/" + "e" * 100])
def test_a_path_that_a_first_line_cannot_hold(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 1.21
    own, system = speaks(tmp_path / name), tmp_path / "system"
    installed(monkeypatch, system, own)
    with pytest.raises(Fault, match=f"install it as {system}") as refused:
        shebang.runner()
    assert refused.value.code == "EINVAL"
    speaks(system)
    assert shebang.runner() == str(system)
