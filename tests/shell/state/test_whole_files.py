"""Files that are replaced as a whole, and values that several processes change.

The quotes are from the issue that asked for one way to do both.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.state import locked_store, whole_files

KILLED = 9
OLD, NEW = b"old", b"new and longer"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def named(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


class Full(Exception):
    pass


def failing() -> Iterator[bytes]:
    yield b"half"
    raise Full


WAYS: dict[str, Callable[[Path], None]] = {
    "one that may have leftovers": lambda path: whole_files.replace(path, [NEW], 0o600),
    "one that is alone": lambda path: whole_files.replace(path, [NEW], 0o600, name=".new.file"),
    "without waiting": lambda path: whole_files.replace(path, [NEW], 0o600, durable=False),
}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_is_killed_leaves_the_old_or_the_new_one(tmp_path: Path, way: str) -> None:
    path = tmp_path / "file"
    seen: list[bytes] = []
    for point in range(20):
        path.write_bytes(OLD)
        if not (pid := os.fork()):
            try:
                _die_at(point)
                WAYS[way](path)
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, KILLED)
        seen.append(path.read_bytes())
        assert all(name == "file" or name.startswith(".") for name in named(tmp_path))
        if status == 0:
            break
    assert status == 0
    assert set(seen) == {OLD, NEW}
    WAYS["one that is alone"](path)
    assert ".new.file" not in named(tmp_path)


def _die_at(point: int) -> None:
    """Make this process vanish at its `point`-th call that changes the disk."""
    count = iter(range(point))

    def dying(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **keywords: object) -> object:
            if next(count, None) is None:
                os._exit(KILLED)
            return function(*args, **keywords)

        return call

    for name in ("open", "rename", "replace", "unlink", "fsync", "fchmod", "chmod", "link"):
        setattr(os, name, dying(getattr(os, name)))


def test_the_file_is_on_the_disk_before_its_name_and_its_name_before_we_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "durability (fsync of file and folder where it was)"
    path = tmp_path / "file"
    path.write_bytes(OLD)
    synced: list[tuple[bool, bytes]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.read_bytes()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    WAYS["one that is alone"](path)
    assert synced == [(False, OLD), (True, NEW)]
    synced.clear()
    WAYS["without waiting"](path)
    assert synced == []


def test_what_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with pytest.raises(Full):
        whole_files.replace(path, failing(), 0o600)
    with pytest.raises(Full):
        whole_files.create(tmp_path / "other", failing(), 0o600)
    with pytest.raises(FileExistsError):
        whole_files.create(path, [NEW], 0o600)
    assert (named(tmp_path), path.read_bytes()) == (["file"], OLD)


def test_a_mode_is_what_the_umask_leaves_of_it_or_exact(tmp_path: Path, umask: Callable[[int], int]) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    path.chmod(0o666)
    umask(0o077)
    whole_files.replace(path, [NEW], 0o644)
    assert mode_of(path) == 0o600
    umask(0o277)
    whole_files.replace(path, [NEW], 0o600, exact=True)
    assert mode_of(path) == 0o600


@pytest.mark.parametrize("put", [whole_files.replace, whole_files.create])
def test_no_link_is_followed(tmp_path: Path, put: Callable[[Path, list[bytes], int], None]) -> None:
    # "on root, links are not followed where they are not today"
    target = tmp_path / "target"
    target.write_bytes(OLD)
    (tmp_path / "file").symlink_to(target)
    if put is whole_files.replace:
        put(tmp_path / "file", [NEW], 0o600)
        assert not (tmp_path / "file").is_symlink()
    else:
        with pytest.raises(FileExistsError):
            put(tmp_path / "file", [NEW], 0o600)
    (tmp_path / ".new.file").symlink_to(target)
    WAYS["one that is alone"](tmp_path / "file")
    assert target.read_bytes() == OLD
    assert named(tmp_path) == ["file", "target"]


def test_many_who_replace_one_file_at_a_time_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    wanted = [bytes([65 + number]) * 100_000 for number in range(16)]
    with ThreadPoolExecutor(16) as many:
        list(many.map(lambda data: whole_files.replace(path, [data], 0o600, durable=False), wanted))
    assert path.read_bytes() in wanted
    assert named(tmp_path) == ["file"]


class Numbers(locked_store.LockedStore[list[int]]):
    what, mend = "the list ", "; mend it"

    def decode(self, data: bytes) -> list[int]:
        return [int(line) for line in data.decode().split(",")]

    def encode(self, value: list[int]) -> bytes:
        return ",".join(map(str, value)).encode()


def test_nobody_who_changes_a_value_loses_what_another_wrote(tmp_path: Path) -> None:
    # "read-modify-write of a msgspec-typed JSON file under a lock"
    def add(number: int) -> None:
        Numbers(tmp_path / "state" / "file", []).update(lambda known: [*known, number])

    with ThreadPoolExecutor(8) as many:
        list(many.map(add, range(40)))
    store = Numbers(tmp_path / "state" / "file", [])
    assert sorted(store.read()) == [*range(40)]
    assert (mode_of(store.path), mode_of(store.path.parent)) == (0o600, 0o700)
    assert named(store.path.parent) == [".file.lock", "file"]


def test_a_value_that_stays_the_same_is_not_written(tmp_path: Path) -> None:
    store = Numbers(tmp_path / "file", [])
    store.update(lambda known: known)
    assert not store.path.exists()
    store.update(lambda known: [1])
    before = store.path.stat().st_ino
    store.update(lambda known: [1])
    assert store.path.stat().st_ino == before


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"x", "EINVAL: the list {} cannot be read: invalid literal for int"),
        (b"1" * (Numbers.most + 1), "EMSGSIZE: the list {} cannot be read: it is over 4 MiB; mend it"),
        (None, "EINVAL: {} is not used: it is no regular file"),
    ],
)
def test_a_value_that_cannot_be_read_is_said_and_stays(
    tmp_path: Path, data: bytes | None, sentence: str
) -> None:
    store = Numbers(tmp_path / "file", [])
    store.path.write_bytes(data) if data is not None else os.mkfifo(store.path, 0o600)
    for attempt in (store.read, lambda: store.update(lambda known: [1])):
        with pytest.raises(Fault, match=f"^{sentence.format(store.path)}"):
            attempt()
    assert store.path.is_fifo() if data is None else store.path.read_bytes() == data


def test_a_lock_is_no_link_and_no_other_user_can_hold_it(tmp_path: Path) -> None:
    store = Numbers(tmp_path / "file", [])
    for target in ("elsewhere", "."):
        (tmp_path / store.lock).symlink_to(target)
        with pytest.raises(Fault, match=r"^ELOOP: .* cannot be changed: "):
            store.update(lambda known: [1])
        assert named(tmp_path) == [store.lock]
        (tmp_path / store.lock).unlink()
    held = os.open(tmp_path, os.O_RDONLY)  # every user can open a folder of mode 755
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.update(lambda known: [1])
    finally:
        os.close(held)
    assert (tmp_path / store.lock).stat().st_mode & 0o077 == 0
