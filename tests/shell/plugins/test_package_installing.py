"""Installing a plugin: whole or not at all, whatever was there before, and whenever it is killed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.linux.syscalls import exchange
from cortexfs.plugins.install import install as installing
from cortexfs.plugins.install.install import install, remove, settle
from cortexfs.plugins.package import package
from cortexfs.plugins.package.package import File
from tests.shell.plugin_files import full

OLD = {"manifest.toml": File(b"old"), "lib/only-old": File(b"x")}
NEW = {"manifest.toml": File(b"new"), "bin/deep/er/x": File(b"x", True)}

KILLED = 9


def cannot(one: Path, other: Path) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


def content(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def left(base: Path) -> list[str]:
    return sorted(name for name in os.listdir(base) if name != installing.LOCK)


@pytest.fixture(autouse=True)
def strange_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_plugin_is_written_as_it_was_checked(tmp_path: Path) -> None:
    tree = full(tmp_path / "source")
    place = install(tmp_path / "plugins", "hello", tree.files)
    assert place == tmp_path / "plugins" / "hello"
    assert package.read(place) == tree
    # the users of its tools have to read it, whatever the umask of the installer
    assert {oct(path.stat().st_mode & 0o777) for path in (place, place / "bin", place / "bin/hello")} == {
        "0o755"
    }
    assert oct((place / "manifest.toml").stat().st_mode & 0o777) == "0o644"
    assert left(tmp_path / "plugins") == ["hello"]


@pytest.mark.parametrize("how", [exchange, cannot])
def test_a_new_version_takes_the_place_of_the_old(tmp_path: Path, how: object) -> None:
    install(tmp_path, "a", OLD)
    install(tmp_path, "a", NEW, how)  # type: ignore[arg-type]
    assert content(tmp_path / "a") == {"manifest.toml": b"new", "bin/deep/er/x": b"x"}
    assert left(tmp_path) == ["a"]


@pytest.mark.parametrize("how", [exchange, cannot])
def test_killed_anywhere_the_old_or_the_new_one_is_whole(tmp_path: Path, how: object) -> None:
    # issue: "Install is atomic: killed anywhere, the old or the new version is whole"
    old = {path: file.data for path, file in OLD.items()}
    new = {path: file.data for path, file in NEW.items()}
    seen = set()
    for point in range(1000):
        base = tmp_path / str(point)
        install(base, "a", OLD)
        pid = os.fork()
        if not pid:
            try:
                _die_at(point)
                install(base, "a", NEW, how)  # type: ignore[arg-type]
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, KILLED)
        before = content(base / "a") if (base / "a").exists() else None
        settle(base)
        assert left(base) == ["a"]
        assert content(base / "a") in (old, new)
        # the plugin is missing for a moment only where the file system cannot exchange directories
        assert before in (old, new) or (before is None and how is cannot)
        seen.add(content(base / "a")["manifest.toml"])
        if status == 0:
            break
    assert point > 10
    assert seen == {b"old", b"new"}


def _die_at(point: int) -> None:
    """Make this process vanish at its `point`-th call that changes the disk."""
    count = iter(range(point))

    def dying(function: object) -> object:
        def call(*args: object, **keywords: object) -> object:
            if next(count, None) is None:
                os._exit(KILLED)
            return function(*args, **keywords)  # type: ignore[operator]

        return call

    for name in ("open", "rename", "replace", "unlink", "rmdir", "mkdir", "fsync", "fchmod", "chmod"):
        setattr(os, name, dying(getattr(os, name)))


def test_what_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    install(tmp_path, "a", OLD)
    with pytest.raises(Fault, match="cannot be changed: "):
        install(tmp_path, "a", {"x" * 300: File(b"")})
    with pytest.raises(Fault, match="cannot be changed: "):
        install(tmp_path, "a", {"a": File(b""), "a/b": File(b"")})
    assert left(tmp_path) == ["a"]
    assert content(tmp_path / "a")["manifest.toml"] == b"old"


@pytest.mark.parametrize("name", ["../x", "/x", ".", "..", "a/b", "", ".hidden"])
def test_no_name_leads_outside(tmp_path: Path, name: str) -> None:
    # abi.md 11.26
    base = tmp_path / "plugins"
    install(base, "a", OLD)
    for attempt in (lambda: install(base, name, NEW), lambda: remove(base, name)):
        with pytest.raises(Fault, match=r"^EINVAL: the name "):
            attempt()
    assert sorted(os.listdir(tmp_path)) == ["plugins"]
    assert left(base) == ["a"]


def test_a_link_in_the_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    outside, base = tmp_path / "outside", tmp_path / "plugins"
    outside.mkdir()
    (outside / "kept").touch()
    base.mkdir()
    for name in ("a", ".a.new", ".b.old"):
        (base / name).symlink_to(outside)
    (base / "b").mkdir()
    install(base, "a", NEW)
    assert not (base / "a").is_symlink()
    assert [*os.listdir(outside)] == ["kept"]
    assert left(base) == ["a", "b"]


def test_a_plugin_is_removed_at_once(tmp_path: Path) -> None:
    install(tmp_path, "a", OLD)
    remove(tmp_path, "a")
    assert left(tmp_path) == []
    with pytest.raises(Fault, match="no plugin 'a' is installed"):
        remove(tmp_path, "a")


def test_settling_where_nothing_is_makes_nothing(tmp_path: Path) -> None:
    settle(tmp_path / "plugins")
    assert os.listdir(tmp_path) == []


def test_installing_waits_for_whoever_installs(tmp_path: Path) -> None:
    """Of many installers at once each leaves a whole plugin, and none clears what another is writing."""
    pids = []
    for number in range(8):
        if not (pid := os.fork()):
            try:
                install(tmp_path, "a", {f"f{n}": File(b"%d" % number) for n in range(20)})
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 8
    assert len({*content(tmp_path / "a").values()}) == 1
    assert len(content(tmp_path / "a")) == 20
