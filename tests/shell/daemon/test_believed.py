"""A file of the configuration or the state is used only if no other user can have written it.

The quotes without a source are from the issue that asked for this rule.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cortexfs import config
from cortexfs.cli.mount import checks
from cortexfs.cli.mount.mount_checks import FAIL, OK, Subject
from cortexfs.core.errors import Fault
from cortexfs.core.policy.risk import FILE as POLICY
from cortexfs.daemon import deciding
from cortexfs.daemon.agent_ports import PolicyFile
from cortexfs.state import directories
from cortexfs.state.directories import Places
from tests.shell.believing import KINDS, control, own_agent, written

USER, STRANGER = 65534, 1


def top(path: Path) -> Path:
    return next(above for above in path.parents if above.name == "base")


def moved(path: Path) -> Path:
    """Moves the file to a new folder beside the state, and leaves a link to it. Returns that folder."""
    folder = top(path) / "elsewhere"
    folder.mkdir(mode=0o755)
    os.chown(folder, path.stat().st_uid, -1)
    path.rename(folder / "it")
    path.symlink_to(folder / "it")
    return folder


def moved_below(path: Path) -> Path:
    """Does the same as `moved`, but moves the file one folder further down."""
    folder = moved(path)
    below = folder / "below"
    below.mkdir(mode=0o755)
    os.chown(below, folder.stat().st_uid, -1)
    (folder / "it").rename(below / "it")
    path.unlink()
    path.symlink_to(below / "it")
    return folder


def led(path: Path) -> Path:
    """Moves the folder that holds everything into a new folder, and leaves a link. Returns the new folder."""
    base, aside = top(path), top(path).parent / "aside"
    aside.mkdir(mode=0o755)
    os.chown(aside, base.stat().st_uid, -1)
    base.rename(aside / "base")
    base.symlink_to("aside/base")
    return aside


def writable(path: Path, bits: int) -> None:
    path.chmod(path.stat().st_mode & 0o7777 | bits)


def closed(folder: Path) -> None:
    folder.chmod(0o700)
    given(folder)


def given(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


WAYS: dict[str, Callable[[Path], object]] = {
    "a stranger's": given,
    "of a group": lambda path: writable(path, 0o020),
    "everybody's": lambda path: writable(path, 0o002),
    "in a folder of a stranger": lambda path: given(path.parent),
    "in a closed folder of a stranger": lambda path: closed(path.parent),
    "in a folder of a group": lambda path: writable(path.parent, 0o020),
    "in a folder of everybody": lambda path: writable(path.parent, 0o002),
    "in a folder of a folder of everybody": lambda path: writable(path.parent.parent, 0o002),
    "in a folder below one of a stranger": lambda path: given(top(path)),
    "in a folder below one of everybody": lambda path: writable(top(path), 0o002),
    "in a folder by a stranger's link": lambda path: given(led(path).parent / "base"),
    "in a folder by a link to below one of a stranger": lambda path: given(led(path)),
    "a link to a stranger's": lambda path: given(moved(path) / "it"),
    "a link into a folder of a stranger": lambda path: given(moved(path)),
    "a link into a folder of everybody": lambda path: writable(moved(path), 0o002),
    "a link to below a folder of a stranger": lambda path: given(moved_below(path)),
    "a stranger's link": lambda path: given(moved(path).parent / path.relative_to(top(path))),
}
OF_LINKS = ("a stranger's", *(way for way in WAYS if way.startswith("in a folder")))
CASES = [(kind, way) for kind in KINDS for way in WAYS if kind != "weights" or way in OF_LINKS]


@contextlib.contextmanager
def places(uid: int) -> Iterator[Places]:
    """Yields a state and a configuration that belong to this user, in a folder that others may enter."""
    above = Path(tempfile.mkdtemp(prefix="ctx-believed-"))
    above.chmod(0o755)
    base = above / "base"
    try:
        base.mkdir(mode=0o755)
        os.chown(base, uid, uid)
        with being(uid):
            directories.create(where := Places(base / "state", base / "config"))
        yield where
    finally:
        shutil.rmtree(above)


@contextlib.contextmanager
def being(uid: int) -> Iterator[None]:
    """Accesses files as this user until the context ends."""
    if uid == os.geteuid():
        yield
        return
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def others(uid: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody else")
    assert uid != STRANGER


@pytest.mark.parametrize("uid", [0, USER])
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_what_others_could_have_written_is_not_used(kind: str, way: str, uid: int) -> None:
    # "A file that is not owned by the daemon's uid or root, or that group or others can write, is not used"
    others(uid)
    make, use = KINDS[kind]
    with places(uid) as where:
        with being(uid):
            path = make(where)
            before = use(where)
        WAYS[way](path)
        with being(uid):
            after = use(where)
            told = deciding.every(where.config, where.state)
            finding = checks.configuration(Subject("/nowhere", where, uid))
        assert "used" not in before
        told_mends = {"chmod go-w", f"chown -h {uid}", "all yours or root's"}
        mends = {*told_mends, "put another one there", "chmod 600", "Permission denied"}
        assert any(mend in after for mend in mends), after
        # "doctor, reload and status say which, and the chmod that mends it"
        assert any(mend in line for mend in told_mends for line in told)
        assert finding.level == FAIL
        assert finding.why == " / ".join(told)


# The other files are closed (0600): a user's daemon cannot read those of root, trusted or not.
OPEN = ("config.toml", "plugins.json", "policy.toml", "plugin-keys.gpg", "provider", "plugin", "weights")


@pytest.mark.parametrize("kind", OPEN)
def test_a_users_daemon_believes_root(kind: str) -> None:
    # "not owned by the daemon's uid or root": an administrator may give a user a file
    others(USER)
    make, use = KINDS[kind]
    with places(USER) as where:
        with being(USER):
            path = make(where)
        os.chown(path, 0, 0, follow_symlinks=False)
        with being(USER):
            assert "used" not in use(where)
            assert deciding.every(where.config, where.state) == []


@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o077])
def test_what_our_own_commands_write_is_believed_whatever_the_umask(mask: int) -> None:
    with places(os.geteuid()) as where:
        before = os.umask(mask)
        try:
            for kind in KINDS.values():
                if kind.make not in (control, own_agent):  # the daemon writes these, with its own umask
                    kind.make(where)
        finally:
            os.umask(before)
        assert deciding.every(where.config, where.state) == []
        assert checks.configuration(Subject("/nowhere", where, os.geteuid())).level == OK


def test_a_file_is_not_missing_where_others_may_remove_it(tmp_path: Path) -> None:
    # a removed policy.toml may have been stricter than none at all
    tmp_path.chmod(0o777)
    with pytest.raises(Fault, match=f"^EPERM: nothing in {tmp_path} is used: .*chmod go-w {tmp_path}$"):
        PolicyFile(tmp_path / POLICY).read()
    tmp_path.chmod(0o1777)  # with the sticky bit, users remove only their own files
    PolicyFile(tmp_path / POLICY).read()


def test_what_was_looked_at_is_looked_at_again(tmp_path: Path) -> None:
    # agentworld.py: "policy.toml is read again when it has changed"; a new mode does not change its time
    path = tmp_path / POLICY
    path.write_text("deny = ['shell.*']\n")
    policy = PolicyFile(path)
    assert policy.read().deny == ("shell.*",)
    path.chmod(0o664)
    with pytest.raises(Fault, match=f"chmod go-w {path}$"):
        policy.read()
    path.chmod(0o644)
    assert policy.read().deny == ("shell.*",)


def test_what_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / config.FILE, 0o600)
    with pytest.raises(Fault, match="it is no regular file"):
        config.load(Places(tmp_path, tmp_path))
    (tmp_path / config.FILE).unlink()
    (tmp_path / config.FILE).symlink_to(config.FILE)
    with pytest.raises(Fault, match="ELOOP"):
        config.load(Places(tmp_path, tmp_path))


def test_a_link_that_leads_nowhere_is_not_taken_for_no_file(tmp_path: Path) -> None:
    # the missing file may have been stricter than none: it may set limits, or deny tools to all agents
    for name in (config.FILE, POLICY):
        (tmp_path / name).symlink_to("gone")
    why = "is not used: it is a link to a missing file; remove the link, or create the file"
    with pytest.raises(Fault, match=why):
        config.load(Places(tmp_path, tmp_path))
    with pytest.raises(Fault, match=why):
        PolicyFile(tmp_path / POLICY).read()
    assert deciding.unused(tmp_path, tmp_path) == [
        f"{tmp_path / name} {why}" for name in (config.FILE, POLICY)
    ]


def test_what_a_killed_writer_left_lends_no_mode(tmp_path: Path) -> None:
    # "Make sure that what our own commands write has a mode that is believed whatever the umask"
    left = tmp_path / f".{config.CHOICES}.new"
    left.write_text("half")
    left.chmod(0o666)
    config.choose(tmp_path, "notes", True)
    assert config.choices(tmp_path) == {"notes": True}
    assert not left.exists()


def test_an_acl_that_lets_others_write_counts(tmp_path: Path) -> None:
    # acl(5): if a file has an ACL, the group bits of its mode are the mask of all entries
    path = written(tmp_path / config.FILE)
    nobody = 0xFFFFFFFF
    entries = [(1, 6, nobody), (2, 6, STRANGER), (4, 4, nobody), (0x10, 6, nobody), (0x20, 4, nobody)]
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", data)
    except OSError as problem:
        pytest.skip(f"no ACL here: {problem}")
    with pytest.raises(Fault, match=f"chmod go-w {path}$"):
        config.load(Places(tmp_path, tmp_path))
    path.chmod(path.stat().st_mode & 0o7755)
    config.load(Places(tmp_path, tmp_path))
