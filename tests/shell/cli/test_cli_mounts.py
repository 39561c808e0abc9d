"""The choice of the mount that a command means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cortexfs.cli import mounts
from cortexfs.cli.bounded import MAX_ANSWER
from cortexfs.core import mountinfo
from cortexfs.core.errors import Fault

MOUNTINFO = r"""
25 1 0:23 / / rw - ext4 /dev/root rw
40 25 0:41 / /ctx rw,nosuid - fuse.cortexfs cortexfs rw,user_id=0,group_id=0,allow_other
41 25 0:42 / /home/a/my\040ctx rw master:2 - fuse.cortexfs cortexfs rw,user_id=1000,group_id=1000
42 25 0:41 /tool /srv/tool rw - fuse.cortexfs cortexfs rw,user_id=0,group_id=0,allow_other
43 25 0:43 / /other rw - fuse.sshfs host: rw,user_id=0
""".strip()


def test_mounts_are_read_from_mountinfo() -> None:
    assert mountinfo.mounts(MOUNTINFO) == [
        mounts.Mount("/ctx", 41, 0, True),
        mounts.Mount("/home/a/my ctx", 42, 1000, False),
    ]


US, ROOT, THEM = 1000, 0, 1001


@pytest.mark.parametrize(
    ("known", "meant"),
    [
        ([], "/ctx"),
        ([("/mnt/a", ROOT, True)], "/mnt/a"),
        ([("/mnt/a", THEM, False)], "/ctx"),
        ([("/mnt/a", THEM, True), ("/b", US, False)], "/b"),
        ([("/mnt/a", THEM, True), ("/b", ROOT, True)], "/b"),
        ([("/ctx", THEM, True), ("/b", ROOT, True)], "/b"),
        ([("/b", ROOT, True), ("/b", THEM, True), ("/a", US, True)], "/a"),  # theirs covers root's
        ([("/a", US, True), ("/a", US, True)], "/a"),
        ([("/ctx", US, True), ("/a", US, False)], "/ctx"),
        ([("/ctx", ROOT, True), ("/a", US, False)], "/a"),
        ([("/ctx", ROOT, True), ("/a", ROOT, True)], "/ctx"),
        ([("/ctx", ROOT, True), ("/a", US, False), ("/b", US, False)], "/ctx"),
        ([("/b", ROOT, True), ("/a", US, False)], "/a"),
    ],
)
def test_the_default_is_the_one_and_only_mount(
    known: list[tuple[str, int, bool]], meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 1.1, 1.22
    listed = [mounts.Mount(point, 1, owner, everyone) for point, owner, everyone in known]
    monkeypatch.setattr(mounts, "mounts", lambda: listed)
    monkeypatch.setattr(mounts, "is_stale", lambda point: False)
    monkeypatch.setattr(os, "getuid", lambda: US)
    assert mounts.root(None, {}) == meant


@pytest.mark.parametrize("us", [ROOT, US])
@pytest.mark.parametrize(
    "known", [[("/mnt/a", True)], [("/ctx", False)], [("/ctx", True), ("/mnt/a", True), ("/mnt/b", False)]]
)
def test_a_strangers_mount_is_never_implied(
    known: list[tuple[str, bool]], us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 1.22
    listed = [mounts.Mount(point, 1, THEM, everyone) for point, everyone in known]
    monkeypatch.setattr(mounts, "mounts", lambda: listed)
    monkeypatch.setattr(mounts, "is_stale", lambda point: pytest.fail("it was looked at"))
    monkeypatch.setattr(os, "getuid", lambda: us)
    with pytest.raises(Fault, match="no CortexFS of yours or of root's is mounted") as refused:
        mounts.root(None, {})
    # "Errors say which mounts were passed over and why"
    for point in {"/ctx", "/mnt/a"} & {point for point, _ in known}:
        assert f"{point} is the mount of uid {THEM}, which decides what runs there" in refused.value.message
    assert "/mnt/b" not in refused.value.message  # other users cannot enter it
    # "named with --root it is used"; "If CTX_ROOT is in the environment it was named"
    assert mounts.root("/mnt/a", {}) == mounts.root(None, {"CTX_ROOT": "/mnt/a"}) == "/mnt/a"


@pytest.mark.parametrize(("dead", "meant"), [("/ctx", "/a"), ("/a", "/ctx"), ("/ctx /a", "/ctx")])
def test_a_dead_mount_is_meant_where_there_is_no_other(
    dead: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        mounts, "mounts", lambda: [mounts.Mount(point, 1, os.getuid(), True) for point in ("/a", "/ctx")]
    )
    monkeypatch.setattr(mounts, "is_stale", dead.split().__contains__)
    assert mounts.root(None, {}) == meant


def test_several_mounts_are_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "mounts", lambda: [mounts.Mount(point, 1, 0, True) for point in ("/b", "/a")])
    monkeypatch.setattr(mounts, "is_stale", lambda point: False)
    with pytest.raises(Fault, match="there are several mounts, /a, /b; name one with --root or CTX_ROOT"):
        mounts.root(None, {})


def test_a_status_without_an_end_is_cut(tmp_path: Path) -> None:
    # Another user's mount could have such a status, and all of it would fill the memory of root's command.
    (tmp_path / "status").symlink_to("/dev/zero")
    assert len(mounts.status_text(str(tmp_path))) == MAX_ANSWER
