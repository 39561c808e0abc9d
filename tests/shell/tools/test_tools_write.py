"""fs.write: the old content or the new content, whatever happens, and no other file left behind."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.sdk import MemoryRuntime, run
from cortexfs.tools.fs_write import write
from tests.shell.tools.test_tools import as_nobody, call, standing

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system that is full soon."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], check=False)
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield place
    subprocess.run(["umount", place], check=True)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.mark.parametrize("mode", ["overwrite", "create", "append"])
def test_a_new_file_is_made_with_what_the_umask_leaves(tmp_path: Path, mode: str) -> None:
    ran = standing(tmp_path, lambda: call("fs.write", path="x", content="é\n", mode=mode), umask=0o027)
    assert ran.text == "created x: 3 bytes\n"
    assert (tmp_path / "x").read_bytes() == "é\n".encode()
    assert (tmp_path / "x").stat().st_mode & 0o7777 == 0o640
    assert names(tmp_path) == ["x"]


def test_modes_mean_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    assert call("fs.write", path=str(path), content="no", mode="create").code == "EEXIST"
    assert path.read_text() == "old"
    assert call("fs.write", path=str(path), content="+", mode="append").text.startswith("appended to")
    assert path.read_text() == "old+"
    assert call("fs.write", path=str(path), content="new").text.startswith("replaced")
    assert path.read_text() == "new"
    assert call("fs.write", path=str(path), content="", mode="maybe").code == "EINVAL"
    assert names(tmp_path) == ["x"]


def test_create_does_not_go_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert call("fs.write", path=str(tmp_path / "link"), content="x", mode="create").code == "EEXIST"
    assert names(tmp_path) == ["link"]


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/link").symlink_to("../b")
    (tmp_path / "b").symlink_to("c")
    call("fs.write", path=str(tmp_path / "a/link"), content="1")  # a dangling link: the target is created
    assert (tmp_path / "c").read_text() == "1"
    call("fs.write", path=str(tmp_path / "a/link"), content="2")
    assert (tmp_path / "c").read_text() == "2"
    assert (tmp_path / "b").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    assert call("fs.write", path=str(tmp_path / "loop"), content="x").code == "ELOOP"


def test_binary_content_comes_as_base64(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert call("fs.write", path=str(path), content="AP/+\nAA==", encoding="base64").text.endswith(
        "4 bytes\n"
    )
    assert path.read_bytes() == b"\x00\xff\xfe\x00"
    for wrong in ("AP/", "A!==", "\x00"):
        assert call("fs.write", path=str(path), content=wrong, encoding="base64").code == "EINVAL"


def test_parents_are_made_on_request_only(tmp_path: Path) -> None:
    path = str(tmp_path / "a/b/x")
    assert call("fs.write", path=path, content="x").code == "ENOENT"
    assert not call("fs.write", path=path, content="x", make_parents=True).code
    assert Path(path).read_text() == "x"


def test_what_is_no_file_is_not_written(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dir").mkdir()
    for mode in ("overwrite", "append"):
        assert call("fs.write", path=str(tmp_path / "pipe"), content="x", mode=mode).code == "EINVAL"
        assert call("fs.write", path=str(tmp_path / "dir"), content="x", mode=mode).code == "EISDIR"
        assert call("fs.write", path=f"{tmp_path}/new/", content="x", mode=mode).code == "EISDIR"
    assert names(tmp_path) == ["dir", "pipe"]


def test_an_existing_file_keeps_mode_owner_and_attributes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    path.chmod(0o4751)
    attributes = True
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        attributes = False  # the file system has no attributes
    before = path.stat()
    assert not call("fs.write", path=str(path), content="new").code
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    if attributes:
        assert os.getxattr(path, "user.note") == b"kept"


@NEEDS_ROOT
def test_bits_for_a_group_that_cannot_be_kept_are_dropped(tmp_path: Path) -> None:
    # the bits would open the file to another group
    path = tmp_path / "x"
    path.write_text("old")
    os.chown(path, 65534, 0)
    path.chmod(0o2664)
    tmp_path.chmod(0o777)
    assert (
        as_nobody(tmp_path, lambda: call("fs.write", path="x", content="new").text) == "replaced x: 3 bytes\n"
    )
    after = path.stat()
    assert (after.st_mode & 0o7777, after.st_uid, after.st_gid) == (0o644, 65534, 65534)


@NEEDS_ROOT
def test_who_may_not_write_a_file_may_not_replace_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o444)
    tmp_path.chmod(0o777)
    assert as_nobody(tmp_path, lambda: call("fs.write", path="x", content="new").code) == "EACCES"
    assert path.read_text() == "old"


@NEEDS_ROOT
def test_a_directory_that_takes_no_file_is_named_as_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o666)
    tmp_path.chmod(0o755)
    said = as_nobody(tmp_path, lambda: repr(call("fs.write", path="x", content="new")))
    assert "EACCES" in said
    assert "its directory takes no new file" in said
    assert as_nobody(tmp_path, lambda: call("fs.write", path="y", content="new").code) == "EACCES"
    assert as_nobody(tmp_path, lambda: call("fs.write", path="x", content="+", mode="append").code) == ""
    assert path.read_text() == "old+"
    assert names(tmp_path) == ["x"]


def test_of_many_creators_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "x"
    barrier = threading.Barrier(8)
    codes: list[str] = []

    def create(content: str) -> None:
        barrier.wait()
        codes.append(
            call("fs.write", path=str(path), content=content * 10_000, mode="create").code or content
        )

    threads = [threading.Thread(target=create, args=(letter,)) for letter in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = set(codes) - {"EEXIST"}
    assert len(codes) == 8
    assert path.read_text() == winner * 10_000
    assert names(tmp_path) == ["x"]


def test_without_hard_links_create_still_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    path = str(tmp_path / "x")
    assert call("fs.write", path=path, content="1", mode="create").text.startswith("created")
    assert call("fs.write", path=path, content="2", mode="create").code == "EEXIST"
    assert Path(path).read_text() == "1"
    assert names(tmp_path) == ["x"]


def test_a_reader_sees_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "x"
    whole = {letter * 200_000 for letter in "ab"}
    path.write_text("a" * 200_000)
    ended = threading.Event()

    def write_both() -> None:
        for letter in "ab" * 20:
            call("fs.write", path=str(path), content=letter * 200_000)
        ended.set()

    thread = threading.Thread(target=write_both)
    thread.start()
    while not ended.is_set():
        assert path.read_text() in whole
    thread.join()
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("mode", ["overwrite", "create"])
@pytest.mark.parametrize("step", ["write", "fsync", "fchmod", "replace", "link"])
def test_a_failure_at_any_step_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, mode: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    used = {"overwrite": {"write", "fsync", "fchmod", "replace"}, "create": {"write", "fsync", "link"}}[mode]
    path = tmp_path / "x"
    if mode == "overwrite":
        path.write_text("old")
    monkeypatch.setattr(os, step, fail)
    ran = call("fs.write", path=str(path), content="new", mode=mode)
    monkeypatch.undo()
    if step not in used:
        assert not ran.code
        return
    assert ran.code == "ENOSPC"
    assert str(path) in ran.message
    assert ".tmp" not in ran.message
    assert names(tmp_path) == (["x"] if mode == "overwrite" else [])
    assert mode == "create" or path.read_text() == "old"


@NEEDS_ROOT
@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_a_full_disk_leaves_the_old(small: Path, mode: str) -> None:
    (small / "x").write_text("old")
    assert call("fs.write", path=str(small / "x"), content="n" * 100_000, mode=mode).code == "ENOSPC"
    assert (small / "x").read_text() == "old"
    assert names(small) == ["x"]


@NEEDS_ROOT
def test_what_is_read_only_is_said_of_the_file(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    refused = call("fs.write", path=str(small / "x"), content="new")
    assert (refused.code, refused.message) == ("EROFS", f"[Errno 30] Read-only file system: '{small}/x'")


def test_a_cancelled_write_leaves_the_old(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    runtime = MemoryRuntime()
    runtime.cancel()
    assert call("fs.write", runtime, path=str(path), content="new").code == "ECANCELED"
    assert path.read_text() == "old"
    assert names(tmp_path) == ["x"]


class Cancelled(BaseException):
    """Raised as a host raises a cancellation, anywhere in a tool."""


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # dropped files close themselves
def test_a_cancellation_at_any_instruction_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    wholes = ["a" * 1000, "b" * 1000]
    path.write_text(wholes[0])
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    descriptors = len(os.listdir("/proc/self/fd"))
    for turn in range(60):
        begun = threading.Event()

        def work(content: str = wholes[turn % 2], begun: threading.Event = begun) -> None:
            try:
                begun.set()
                run(write, {"path": str(path), "content": content}, MemoryRuntime())
                while True:
                    os.sched_yield()
            except Cancelled:
                pass

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        for _ in range(turn):
            os.stat(path)
        raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Cancelled))
        thread.join()
        assert path.read_text() in wholes
        assert names(tmp_path) == ["x"]
    assert len(os.listdir("/proc/self/fd")) == descriptors
