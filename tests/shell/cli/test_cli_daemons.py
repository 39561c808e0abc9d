"""The process of a mount's daemon is found (cli/daemons.py), on real mounts of a tiny daemon."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cortexfs.cli import bounded, daemons, mounts
from cortexfs.core.mountinfo import Mount
from cortexfs.core.starter_command import STARTER, STARTER_NAME
from cortexfs.linux import capabilities
from tests.mounted.hanging import ANSWERS, GETATTR, READ, hanging
from tests.shell.cli_fuse import served
from tests.shell.forks import public_directory
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and FUSE"
)


def mounted(root: Path) -> Mount:
    found = mounts.mounted_at(str(root))
    assert found
    return found


def pid_of(mount: Mount) -> int | None:
    found = daemons.of(mount)
    if found is None:
        return None
    found.process.close()
    return found.process.pid


@contextmanager
def starter(root: Path, *options: str, **settings: object) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process that claims to have started the mount's daemon, and names this process as the daemon."""
    said = ["--daemon", str(os.getpid()), "--root", str(root), *options]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        channels = [str(theirs.fileno())] * 2
        process = subprocess.Popen(  # type: ignore[call-overload]
            [sys.executable, *STARTER, *channels, *said], pass_fds=[theirs.fileno()], **settings
        )
        try:
            until(Path(f"/proc/{process.pid}/comm").read_bytes, lambda name: name == STARTER_NAME + b"\n")
            yield process
        finally:
            process.kill()
            process.wait()


def test_its_starter_tells_which_it_is_and_its_directories(tmp_path: Path) -> None:
    with served(root := tmp_path / "c t\\x", "--state", "/elsewhere") as process:
        found = daemons.of(mounted(root))
        assert found
        assert (found.process.pid, found.state, found.config) == (
            process.pid,
            f"{root}.state",
            f"{root}.config",
        )
        assert found.process.end(signal.SIGTERM, 30)
        found.process.close()


def test_what_it_says_itself_is_not_believed(tmp_path: Path) -> None:
    with served(root := tmp_path / "ctx", "alone"):
        mount = mounted(root)
        assert pid_of(mount) is None
        with starter(root):
            assert pid_of(mount) == os.getpid()
        for options in (["--root", str(tmp_path)], ["--daemon", "1"]):  # the last option counts
            with starter(root, *options):
                assert pid_of(mount) is None


@pytest.fixture
def program() -> Iterator[str]:
    """Compiles a program that does nothing, and that every user may execute."""
    source = b"#include <unistd.h>\nint main(void) { return pause(); }\n"
    with public_directory() as folder:
        program = str(folder / STARTER_NAME.decode())
        subprocess.run(["cc", "-x", "c", "-o", program, "-"], input=source, check=True)
        yield program


def test_a_setuid_program_is_no_starter(tmp_path: Path, program: str) -> None:
    # its command line comes from the user that started it
    with served(root := tmp_path / "ctx", "alone"):
        for mode, found in ((0o755, os.getpid()), (0o4755, None), (0o2755, None)):
            os.chmod(program, mode)
            with starter(root, executable=program) as process:
                assert os.readlink(f"/proc/{process.pid}/exe") == program
                assert pid_of(mounted(root)) == found


def test_no_process_of_roots_is_a_users_daemon(tmp_path: Path, program: str) -> None:
    # A user's process may be the child of a process of root: of a login, or of process 1.
    with served(root := tmp_path / "ctx", "alone"):
        theirs = mounted(root)._replace(owner=1000)
        with starter(root, executable=program, user=1000, group=1000):
            assert pid_of(theirs) is None
        words = f'{program} {" ".join(STARTER)} 0 0 --daemon $$ --root "{root}" & wait'
        with subprocess.Popen(["sh", "-c", words], user=1000, group=1000, start_new_session=True) as parent:
            until(lambda: pid_of(theirs), lambda found: found == parent.pid)
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_process_without_powers_is_no_starter_of_roots(tmp_path: Path) -> None:
    # A daemon that was taken over can forge such a command line, for itself or for a host of root.
    with (
        served(root := tmp_path / "ctx", "alone"),
        starter(root, preexec_fn=lambda: capabilities.keep(0)) as powerless,
    ):
        assert "CapEff:\t0000000000000000" in Path(f"/proc/{powerless.pid}/status").read_text()
        assert pid_of(mounted(root)) is None


def test_a_users_process_is_no_starter_of_roots(tmp_path: Path) -> None:
    with served(root := tmp_path / "ctx", "alone"), starter(root, user=1000):
        assert pid_of(mounted(root)) is None


def test_a_mount_of_the_same_place_elsewhere_has_its_own(tmp_path: Path) -> None:
    with served(root := tmp_path / "ctx") as first:
        mount = mounted(root)
        assert pid_of(mount) == first.pid
        assert pid_of(mount._replace(connection=1 << 19)) is None


def test_root_waits_for_no_program_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the file system of the program answers until the program runs, and then never again
    monkeypatch.setattr(daemons, "_SECONDS", 0.1)
    with served(root := tmp_path / "ctx"), public_directory() as folder:
        words = ["cc", "-x", "c", "-o", str(folder / "small"), "-nostdlib", "-static", "-s", "-Wl,-n", "-"]
        subprocess.run(words, input=b'void _start(void) { for (;;) __asm__("pause"); }', check=True)
        data = (folder / "small").read_bytes()
        (place := folder / STARTER_NAME.decode()).touch()
        attributes = bytearray(ANSWERS[GETATTR])
        attributes[:8], attributes[76:80] = bytes(8), (0o100755).to_bytes(4, "little")  # to be asked again
        answers = {**ANSWERS, GETATTR: bytes(attributes), READ: data.ljust(4096, b"\0")}
        with hanging(place, answers):
            process = subprocess.Popen([place], user=1000, group=1000, extra_groups=[], cwd="/")
            try:
                del answers[GETATTR]
                theirs = mounted(root)._replace(owner=1000)
                assert bounded.ask(lambda: str(pid_of(theirs)).encode(), PATIENCE) == b"None"
            finally:
                process.kill()
        process.wait(PATIENCE)
