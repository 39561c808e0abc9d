"""The greeting, which is the first message of the runner to the daemon."""

from __future__ import annotations

import os
import pty
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from cortexfs.core import wire
from tests.runner import fake
from tests.runner.conftest import ROOT_ONLY


# design: "name the object by its inode number"
def test_names_the_object_by_inode(place: fake.Place) -> None:
    call = place.call("one", "two words", "", "--flag=x")
    assert call.greeting.inode == place.object.stat().st_ino
    assert call.arguments == [b"one", b"two words", b"", b"--flag=x"]
    assert call.exit().status == 0


# abi.md 1.5
def test_an_alias_elsewhere_names_its_target(place: fake.Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    alias = elsewhere / "alias"
    alias.symlink_to(place.object)
    call = place.call(name=alias)
    assert call.greeting.inode == place.object.stat().st_ino


def test_relative_path_from_another_directory(place: fake.Place, tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    call = place.call(name="../../object", cwd=inside)
    assert call.greeting.inode == place.object.stat().st_ino


# abi.md 1.20: the object's first line names the runner; execve(2) passes the path, then the arguments
def test_is_an_interpreter(place: fake.Place) -> None:
    place.object.write_text(f"#!{place.runner}\n# cortexfs.object=tool/x\n")
    place.object.chmod(0o755)
    script = fake.Place(place.path, place.object, place.listener, place.stack)
    call = script.call(name="as typed")  # now the object is the program, and the name is an argument
    assert call.arguments == [b"as typed"]
    assert call.greeting.inode == place.object.stat().st_ino


# unix(7): sun_path holds 108 bytes with the NUL; both sides of that limit, and far beyond it
@pytest.mark.parametrize("length", [*range(94, 102), 250, 1000])
def test_paths_around_and_over_the_limit_of_a_socket_address(runner: Path, length: int) -> None:
    deep = Path(tempfile.mkdtemp(dir="/tmp"))
    top = deep
    try:
        while (room := length - len(str(deep))) > 0:
            deep /= "d" * (min(100, room - 1) if room != 102 else 50)
        assert len(str(deep)) == length
        deep.mkdir(parents=True)
        with fake.place(deep, runner) as place:
            call = place.call("x")
            assert call.greeting.inode == place.object.stat().st_ino
            assert call.exit(3).status == 3
    finally:
        shutil.rmtree(top)


# abi.md 4.36
def test_environment_is_an_allowlist(place: fake.Place) -> None:
    passed = "PATH HOME USER LOGNAME SHELL LANG LANGUAGE LC_ALL LC_TIME TZ TERM COLUMNS LINES NO_COLOR TMPDIR"
    env = dict.fromkeys([*passed.split(), "CTX_OUTPUT", "CTX_ROOT", "CTX_MCP_SESSION"], "v=1")
    others = ["SECRET", "PATHS", "XPATH", "HOM", "LD_PRELOAD", "LC", "CTX_STATE", "lang"]
    call = place.call(env={**env, **dict.fromkeys(others, "no")})
    assert sorted(call.environment) == sorted(f"{name}=v=1".encode() for name in env)


def test_a_huge_variable_stays_behind(place: fake.Place) -> None:
    fits, over = "x" * ((32 << 10) - len("HOME=")), "x" * ((32 << 10) - len("USER=") + 1)
    call = place.call("a", env={"HOME": fits, "USER": over, "LANG": "C"})
    assert sorted(call.environment) == [b"HOME=" + fits.encode(), b"LANG=C"]


# execve(2): one string of 128 KiB with its NUL is the most that Linux passes
def test_arguments_as_large_as_the_kernel_allows(place: fake.Place) -> None:
    arguments = [bytes([97 + i]) * (128 * 1024 - 1) for i in range(12)]
    call = place.call(*arguments)
    assert call.arguments == arguments


def test_many_small_arguments(place: fake.Place) -> None:
    arguments = [str(i).encode() for i in range(40_000)]
    assert place.call(*arguments).arguments == arguments


def test_arguments_need_not_be_text(place: fake.Place) -> None:
    assert place.call(b"\xff\xfe\n\x01").arguments == [b"\xff\xfe\n\x01"]


# abi.md 4.35
@pytest.mark.parametrize("mask", [0o000, 0o027, 0o077, 0o777])
def test_umask(place: fake.Place, mask: int) -> None:
    assert place.call(umask=mask).greeting.umask == mask


# wire.py: "Only the daemon sends descriptors"
def test_no_descriptor_is_passed(place: fake.Place) -> None:
    call = place.start(*["x" * 100_000] * 3)
    call.accept(place.listener)
    size = 0
    while size < 300_000:
        data, _, flags, _ = call.peer.recvmsg(1 << 16)
        assert not flags & socket.MSG_CTRUNC
        size += len(data)


def test_working_directory_that_was_deleted(place: fake.Place, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    call = place.start(prefix=["sh", "-c", 'rmdir ../gone; exec "$@"', "sh"], cwd=gone)
    call.accept(place.listener)
    call.greet()
    assert call.exit(0).status == 0


@ROOT_ONLY
def test_working_directory_that_may_not_be_entered(open_place: fake.Place) -> None:
    closed = open_place.path / "closed"
    closed.mkdir(mode=0o700)
    call = open_place.call("x", cwd=closed, user=65534, group=65534, extra_groups=[])
    assert call.arguments == [b"x"]
    assert call.exit(0).status == 0


# abi.md 4.4
@pytest.mark.parametrize(
    ("stream", "flag"),
    [("stdin", wire.TTY_STDIN), ("stdout", wire.TTY_STDOUT), ("stderr", wire.TTY_STDERR)],
)
def test_tty_flags(place: fake.Place, stream: str, flag: int) -> None:
    master, slave = pty.openpty()
    try:
        call = place.call(**{stream: slave})
    finally:
        os.close(slave)
        os.close(master)
    assert call.greeting.flags == flag


@pytest.mark.parametrize(("at_terminal", "flags"), [(True, wire.TTY_STDERR | wire.PIPE_STDIN), (False, 0)])
def test_a_pipe_is_told_of_where_somebody_reads_of_it(
    place: fake.Place, at_terminal: bool, flags: int
) -> None:
    # abi.md 4.52
    master, slave = pty.openpty()
    reader, writer = os.pipe()
    try:
        call = place.call(stdin=reader, **({"stderr": slave} if at_terminal else {}))
    finally:
        for number in (master, slave, reader, writer):
            os.close(number)
    assert call.greeting.flags == flags


def test_no_tty_no_flags(place: fake.Place) -> None:
    assert place.call().greeting.flags == 0


def test_the_socket_is_looked_up_in_a_directory_that_is_open(place: fake.Place) -> None:
    # docs/security.md: who renames a folder on the way leads the runner to no other socket, as the gate has
    # seen what is open.
    call = place.call()
    opened = {os.path.realpath(link) for link in Path(f"/proc/{call.process.pid}/fd").iterdir()}
    assert str(place.path.resolve()) in opened
    assert call.exit().status == 0


# The daemon may be a user's own, in a container without /proc.
@ROOT_ONLY
def test_without_proc(binaries: dict[str, Path], open_place: fake.Place) -> None:
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    plain = fake.Place(open_place.path, binaries["plain"], open_place.listener, open_place.stack)
    call = plain.call("x", prefix=hidden)
    assert call.greeting.inode == plain.object.stat().st_ino
    assert call.exit(5).status == 5


@ROOT_ONLY
def test_without_proc_a_long_path_is_said(binaries: dict[str, Path], tmp_path: Path) -> None:
    hidden = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with fake.place(deep, binaries["plain"]) as place:
        ended = place.start(prefix=hidden, env={"CTX_OUTPUT": "text"}).ended()
    assert ended.status == 1
    assert ended.err.startswith(b"object: ENAMETOOLONG: ")
