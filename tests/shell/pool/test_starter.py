"""host/starter.py and starter.py: the processes and sockets of the daemon's starter, and its refusals."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from cortexfs.core import starts
from cortexfs.daemon.starts import home
from cortexfs.linux import syscalls
from cortexfs.pool.starter import Child, Starter
from cortexfs.pool.starter_ends import begin
from tests.shell.starters import starting

SLEEP = ("/bin/sh", "-c", "exec sleep 3600")


async def engine(starter: Starter) -> Child:
    child, rights = await starter.start(starts.ENGINE)
    for fd in rights:
        os.close(fd)
    return child


async def refused(starter: Starter, what: str, argument: str = "") -> str:
    with pytest.raises(OSError) as caught:  # noqa: PT011
        await starter.start(what, argument)
    return errno.errorcode[caught.value.errno or 0]


def environ(pid: int) -> set[bytes]:
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return {word.partition(b"=")[0] for word in words if word}


async def test_only_what_is_in_the_table_is_started(tmp_path: Path) -> None:
    # "no part of a message is a program"
    async with starting(engine=["/nowhere/python"]) as starter:
        assert await refused(starter, "/bin/true") == "EINVAL"
        assert await refused(starter, starts.ENGINE) == "ENOENT"
        assert await refused(starter, starts.KEY, "../acme") == "EINVAL"


@pytest.mark.parametrize(
    "name", ["", "--output=x", "/etc", ".signature-/../x", ".signature-\0", "signature-1"]
)
async def test_signatures_lie_in_the_state(name: str, tmp_path: Path) -> None:
    # gpgv takes a name that begins with a hyphen for an option, and could be made to write to any file.
    async with starting(state=tmp_path) as starter:
        assert await refused(starter, starts.SIGNATURE, name) == "EINVAL"


def test_what_looks_at_signatures_has_no_power(tmp_path: Path) -> None:
    # The starter finds a program of that name, which reports its own rights.
    script = tmp_path / "gpgv"
    attempts = "; ".join(
        f"({attempt}) 2>&-; echo $?"
        for attempt in (
            "test $(head -c 1 /dev/zero | wc -c) = 1",
            f"echo > {tmp_path}/new",
            f"rm {script}",
            "python3 -c 'import socket; socket.socket()'",
        )
    )
    script.write_text(f"#!/bin/sh\ngrep -E 'CapPrm|CapBnd' /proc/self/status; {attempts}; wc -c\n")
    script.chmod(0o755)
    words = [sys.executable, *starts.gpgv(str(script), str(tmp_path))]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    *powers, device, new, removed, opened, read = done.stdout.splitlines()
    assert [each.split()[1] for each in powers] == ["0" * 16] * 2
    assert "0" not in {device, new, removed, opened}
    assert read == "0"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpgv"]


async def test_signatures_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / f"{starts.PREFIX}1").mkdir()
    async with starting(state=tmp_path) as starter:
        said, status = await starter.output(starts.SIGNATURE, f"{starts.PREFIX}1", 60, 9)
        assert (said, status) == (b"[GNUPG:] ", 2)  # the folder has no files


async def test_a_child_is_ended_by_its_number() -> None:
    async with starting(engine=["/bin/sh", "-c", "sleep 3600 & wait"]) as starter:
        one, other = await engine(starter), await engine(starter)
        one.kill()
        await one.ended.wait()
        assert one.status == -signal.SIGKILL
        assert other.status is None
        one.kill()  # killing it twice does no harm
        assert environ(other.pid) == {b"PATH", b"LANG", b"OMP_WAIT_POLICY", b"GOMP_SPINCOUNT"}


async def test_nothing_outlives_the_daemon() -> None:
    starter = Starter(begin(engine=SLEEP))
    child, rights = starter.start_now(starts.ENGINE)
    forks, more = starter.first()
    pidfds = [os.pidfd_open(each) for each in (starter.pid, child.pid, forks.pid)]
    for fd in (*rights, *more):
        os.close(fd)
    starter.stop()
    for pidfd in pidfds:
        await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)


async def test_a_starter_that_is_gone_starts_nothing() -> None:
    async with starting() as starter:
        os.kill(starter.pid, signal.SIGKILL)
        assert await refused(starter, starts.ENGINE) == "EPIPE"
        assert await refused(starter, starts.ENGINE) == "EPIPE"


async def test_who_waits_hears_of_its_end() -> None:
    async with starting() as starter, trio.open_nursery() as nursery:
        os.kill(starter.pid, signal.SIGSTOP)
        nursery.start_soon(refused, starter, starts.ENGINE)
        await trio.testing.wait_all_tasks_blocked()
        os.kill(starter.pid, signal.SIGKILL)


async def test_what_comes_too_late_is_ended() -> None:
    async with starting(engine=SLEEP) as starter:
        os.kill(starter.pid, signal.SIGSTOP)
        before = len(os.listdir("/proc/self/fd"))
        with trio.move_on_after(0):
            await starter.start(starts.ENGINE)
        child = [*starter._children.values()][-1]
        os.kill(starter.pid, signal.SIGCONT)
        await child.ended.wait()
        assert len(os.listdir("/proc/self/fd")) == before


# -- listeners


async def told(starter: Starter, device: int) -> int:
    return (await starter._answer(starts.MountDevice(starter._next(), device))).done.error


async def test_a_listener_lies_in_the_mount(tmp_path: Path) -> None:
    (tmp_path / "root/model/acme").mkdir(parents=True)
    async with starting(root=tmp_path / "root") as starter:
        assert await told(starter, os.stat(tmp_path).st_dev) == 0
        with await starter.listener("model/acme/talker.sock", 4) as listener:
            assert listener.getsockname()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "root/model/acme/talker.sock"))
                listener.accept()[0].close()
        with pytest.raises(OSError, match="in use"):
            await starter.listener("model/acme/talker.sock", 4)


@pytest.mark.parametrize("path", ["../outside/s", "model/../../outside/s", "link/s", "model/link/s"])
async def test_no_listener_lies_outside_of_it(path: str, tmp_path: Path) -> None:
    # A taken-over daemon can point links of the mount anywhere.
    (tmp_path / "outside").mkdir()
    (tmp_path / "root/model").mkdir(parents=True)
    for link in ("root/link", "root/model/link"):
        (tmp_path / link).symlink_to(tmp_path / "outside")
    async with starting(root=tmp_path / "root") as starter:
        assert await told(starter, os.stat(tmp_path).st_dev) == 0
        with pytest.raises(OSError):  # noqa: PT011
            await starter.listener(path, 4)
        assert list((tmp_path / "outside").iterdir()) == []


async def test_no_listener_lies_in_what_is_not_the_mount(tmp_path: Path) -> None:
    # as with the folder below the mount, once it is unmounted
    (tmp_path / "root").mkdir()
    async with starting(root=tmp_path / "root") as starter:
        for _ in range(2):  # before the starter knows any device, and with another device
            with pytest.raises(OSError, match="cross-device"):
                await starter.listener("talker.sock", 4)
            await told(starter, os.stat(tmp_path).st_dev + 1)
        assert os.listdir(tmp_path / "root") == []


# -- keys


def provider(config: Path, command: str, mode: int = 0o600) -> None:
    path = config / "providers/acme.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"base_url = 'http://127.0.0.1'\n[key]\ncommand = {command}\n")
    path.chmod(mode)


async def test_the_command_of_a_provider_is_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_TEST", "needed")
    monkeypatch.setenv("OTHER_KEY", "not for it")
    provider(tmp_path, "['sh', '-c', 'echo $XDG_TEST$OTHER_KEY; echo said >&2; cat']")
    async with starting(config=tmp_path) as starter:
        assert await starter.output(starts.KEY, "acme", 60, 100) == (b"needed\n", 0)
        provider(tmp_path, "['sh', '-c', 'yes; exit 3']")
        with pytest.raises(TimeoutError):
            await starter.output(starts.KEY, "acme", 0.2, 100)
        provider(tmp_path, "['false']")
        assert await starter.output(starts.KEY, "acme", 60, 100) == (b"", 1)


async def test_no_command_is_run_that_others_may_have_written(tmp_path: Path) -> None:
    async with starting(config=tmp_path) as starter:
        provider(tmp_path, "['true']", 0o666)
        assert await refused(starter, starts.KEY, "acme") == "EINVAL"
        assert await refused(starter, starts.KEY, "other") == "ENOENT"
        provider(tmp_path, "['/nowhere/true']")
        assert await refused(starter, starts.KEY, "acme") == "ENOENT"
        provider(tmp_path, "'text'")
        assert await refused(starter, starts.KEY, "acme") in ("EINVAL", "ENOENT")


# -- mounts


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_what_others_have_mounted_over_it_stays(tmp_path: Path) -> None:
    syscalls.cover(str(tmp_path), "test-cortexfs")
    starter = Starter(begin(tmp_path))
    try:
        starter.unmount()  # no mount is ours yet
        starter.mounted(os.stat(tmp_path).st_dev)
        syscalls.cover(str(tmp_path), "test-cortexfs-other")
        starter.unmount()
        assert os.path.ismount(tmp_path)
        syscalls.unmount(str(tmp_path))
        starter.unmount()
        assert not os.path.ismount(tmp_path)
        starter.unmount()  # the mount is gone
    finally:
        starter.stop()


async def test_a_mount_is_told_once() -> None:
    async with starting() as starter:
        for device, said in ((0, errno.EINVAL), (1, 0), (2, errno.EINVAL), (1, errno.EINVAL)):
            assert await told(starter, device) == said


async def test_what_is_no_message_ends_nothing() -> None:
    async with starting(engine=SLEEP) as starter:
        starter.control.send(b"\xc1")
        assert (await engine(starter)).pid


def test_the_package_of_the_starter_is_small() -> None:
    # Only this process keeps root's powers: it has no loop, no mount, and no parser of untrusted bytes.
    words = [sys.executable, "-c", "import sys, cortexfs.host.starter; print(*sys.modules)"]
    loaded = set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())
    assert loaded.isdisjoint({"trio", "pyfuse3", "h11", "ssl", "asyncio", "cortexfs.peers.caller"})


# -- users


async def test_users_are_looked_up_where_sockets_may_be_opened() -> None:
    # nsswitch.conf(5): many directory services use a Unix socket, which root's daemon cannot open
    async with starting() as starter:
        assert await home(starter, 0) == "/root"
        said, status = await starter.output(starts.USER, "0", 60, 1000)
        assert (said.split(b":")[2], status) == (b"0", 0)
        assert await starter.output(starts.USER, str(2**31), 60, 1000) == (b"", 2)
        assert await home(starter, 2**31) == ""
        for word in ("root", "-1", "0 1", "", "²"):
            assert await refused(starter, starts.USER, word) == "EINVAL"


async def test_a_user_of_a_directory_service_has_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortexfs.daemon.starts.os.geteuid", lambda: 0)
    monkeypatch.setattr("cortexfs.daemon.starts._home", lambda uid: "")  # as if this process found no user
    async with starting() as starter:
        assert await home(starter, 0) == "/root"
    async with starting() as starter:
        os.kill(starter.pid, signal.SIGKILL)
        assert await home(starter, 0) == ""
