"""States of earlier versions, made by tests/states/make.py. The daemon of today shows what they showed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import Ctx, mounted
from tests.places import PROJECT
from tests.states.make import COMMITS, SESSION

STATES = PROJECT / "tests/states"
MOST = 200 << 10  # bytes of all states together


def unpacked(commit: str, folder: Path) -> Path:
    subprocess.run(["tar", "-xJf", STATES / f"{commit}.tar.xz", "-C", folder], check=True)
    return folder / "state"


def test_they_are_small_and_there_is_one_for_each_commit() -> None:
    packed = {path.name.partition(".")[0]: path.stat().st_size for path in STATES.glob("*.tar.xz")}
    assert set(packed) == set(COMMITS)
    assert sum(packed.values()) < MOST


# abi.md 8.37
@pytest.mark.skipif(os.geteuid() != 0, reason="they are states of root's daemon")
@pytest.mark.parametrize("commit", COMMITS)
def test_the_daemon_understands_the_state(python: Path, tmp_path: Path, commit: str) -> None:
    shown = json.loads((STATES / f"{commit}.json").read_text())
    state = unpacked(commit, tmp_path)
    with mounted(python, state=state) as ctx:
        for path, text in shown["controls"].items():
            assert (ctx.root / path).read_text() == text
        for path, target in shown["aliases"].items():
            assert os.readlink(ctx.root / path) == target
        if shown["session"] is not None:
            folder = ctx.root / f"home/0/model/debug/echo.d/session/{SESSION}"
            assert (folder / "latest.md").read_text() == shown["session"]
            ctx.ctx("send", "debug/echo", "--session", SESSION, "and more")
            assert len((folder / "messages.jsonl").read_text().splitlines()) == 4
        if any(line.startswith("agent new") for line in shown["commands"]):
            assert (ctx.root / "agent/keeper").exists()
            assert "hello" in ctx.ctx("run", "keeper", "hello").stdout
    assert (state / "version").read_text() == "1\n"


# abi.md 8.38
def test_a_state_of_a_newer_version_is_refused_in_a_sentence(fresh: Ctx) -> None:
    fresh.umount()
    (fresh.state / "version").write_text("99\n")
    refused = fresh.ctx("mount", str(fresh.root), check=False)
    assert refused.returncode == 70
    assert "is of version 99, which a newer CortexFS has written" in refused.stderr
    assert not os.path.ismount(fresh.root)
    (fresh.state / "version").write_text("1\n")
    fresh.mount()
