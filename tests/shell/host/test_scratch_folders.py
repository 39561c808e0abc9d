"""Scratch folders of agents' sessions: only their user may enter them, and unused ones are removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.host.call import plugin_state
from cortexfs.host.call.plugin_state import SCRATCH, SCRATCH_SECONDS, prepare_scratch

UID = os.geteuid() or 65534


def identity(path: Path | str) -> Identity:
    return Identity(UID, UID, (), scratch=str(path))


def old(path: Path) -> Path:
    before = time.time() - SCRATCH_SECONDS - 60
    os.utime(path, (before, before))
    return path


def test_it_is_its_users_alone_and_the_others_go_when_they_are_old(tmp_path: Path) -> None:
    # abi.md 7.8: "A folder that nobody has used for a week is removed"
    kept = tmp_path / "kept"
    own = kept / SCRATCH / str(UID)
    prepare_scratch(identity(own / "a"), str(kept))
    assert ((own / "a").stat().st_mode & 0o777, (own / "a").stat().st_uid) == (0o700, UID)
    for name in ("b", "c"):
        prepare_scratch(identity(own / name), str(kept))
    (outside := tmp_path / "outside").mkdir()
    (outside / "file").write_text("stays")
    (own / "b" / "deep").mkdir()
    (own / "b" / "deep" / "link").symlink_to(outside)
    (own / "d").symlink_to(outside)
    old(own / "a")
    old(own / "b")
    os.utime(own / "d", (0, 0), follow_symlinks=False)
    prepare_scratch(identity(own / "a"), str(kept))  # this counts as a use
    assert sorted(entry.name for entry in own.iterdir() if not entry.is_symlink()) == ["a", "c"]
    assert (outside / "file").read_text() == "stays"


@pytest.mark.parametrize(
    "where", ["{kept}/scratch/{uid}/..", "{kept}/scratch/1/x", "{kept}/x", "/etc/x", "x"]
)
def test_no_other_place_is_made_one(tmp_path: Path, where: str) -> None:
    (kept := tmp_path / "kept").mkdir()
    with pytest.raises(Fault) as refused:
        prepare_scratch(identity(where.format(kept=kept, uid=UID)), str(kept))
    assert refused.value.code == "EACCES"
    assert not list(kept.iterdir())


def test_no_link_leads_elsewhere(tmp_path: Path) -> None:
    (kept := tmp_path / "kept").mkdir()
    (outside := tmp_path / "outside").mkdir()
    (kept / SCRATCH).symlink_to(outside)
    with pytest.raises(Fault):
        prepare_scratch(identity(f"{kept}/{SCRATCH}/{UID}/x"), str(kept))
    assert not list(outside.iterdir())
    assert plugin_state.scratch_view(Identity(UID, UID, ())) == ()
