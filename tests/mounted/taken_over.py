"""A daemon that an attacker has taken over: it serves, and then does what the attacker wants.

    python taken_over.py ROOT STATE CONFIG FOLDER VICTIM

Prints as JSON the result of each attempt, before the daemon gave up the rights it does not need, and after.
Prints "ready" when the daemon serves. FOLDER is a folder of the test, VICTIM a process of root's.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import cortexfs
from cortexfs import config as configuration
from cortexfs.core import starts
from cortexfs.daemon import daemon, selfconfinement
from cortexfs.linux import syscalls
from cortexfs.pool.starter_ends import begin
from cortexfs.state import directories, state_lock
from tests.mounted.taken_over_helpers import ALL, hosts, starter

ROOT, STATE, CONFIG, FOLDER = map(Path, sys.argv[1:5])
VICTIM = int(sys.argv[5])
PROVIDER = CONFIG / "providers" / "evil.toml"
MODULE = Path(cortexfs.__file__)
TERMINAL = os.openpty()[1]
LISTENER = socket.socket(socket.AF_UNIX)
LISTENER.bind(str(FOLDER / "own"))
LISTENER.listen()
libc = ctypes.CDLL(None, use_errno=True)
made: list[daemon.Daemon] = []


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def fork() -> None:
    if pid := os.fork():
        os.waitpid(pid, 0)
    else:
        os._exit(0)


def trace() -> None:
    call("ptrace", 0x4206, VICTIM, None, 0)  # PTRACE_SEIZE
    os.kill(VICTIM, signal.SIGCONT)
    libc.ptrace(17, VICTIM, None, None)


def write_memory() -> None:
    call("process_vm_writev", VICTIM, None, 0, None, 0, 0)


def mount() -> None:
    call("mount", b"none", os.fsencode(FOLDER / "mount"), b"tmpfs", 0, None)
    call("umount2", os.fsencode(FOLDER / "mount"), 2)


def enter() -> None:
    with open("/proc/self/ns/uts") as space:
        syscalls.setns(space.fileno(), syscalls.NAMESPACES["uts"])


def device() -> None:
    os.mknod(STATE / "device", 0o600 | 0o020000, os.makedev(1, 3))
    (STATE / "device").unlink()


def setuid_program() -> None:
    (STATE / "program").touch()
    (STATE / "program").chmod(0o4755)


# -- files and processes that the daemon must not change


def opens(path: str | Path, flags: int = os.O_WRONLY) -> Callable[[], None]:
    return lambda: os.close(os.open(path, flags))


def key_command() -> None:
    """Write a key command, which the starter executes as root."""
    PROVIDER.parent.mkdir(mode=0o755, exist_ok=True)
    PROVIDER.write_text(f"key = {{ command = ['touch', '{FOLDER}/root-was-here'] }}\n")
    PROVIDER.chmod(0o600)
    if made:
        asked = starts.StartChild(1 << 20, starts.KEY, PROVIDER.stem)
        made[0].starter.control.send(msgspec.msgpack.encode(asked))
    PROVIDER.unlink()


def another_mode() -> None:
    with open(FOLDER / "roots") as file:  # a descriptor to read is enough for fchmod
        os.fchmod(file.fileno(), 0o666)
        os.fchmod(file.fileno(), 0o600)


def another_owner() -> None:
    with open(FOLDER / "roots") as file:
        os.fchown(file.fileno(), 65534, 65534)
        os.fchown(file.fileno(), 0, 0)


def link() -> None:
    """Link another file of root's into the daemon's own folder."""
    os.link(FOLDER / "roots", STATE / "taken")
    (STATE / "taken").unlink()


def move() -> None:
    (FOLDER / "roots").rename(STATE / "taken")
    (STATE / "taken").rename(FOLDER / "roots")


def remove() -> None:
    (FOLDER / "roots").unlink()
    (FOLDER / "roots").touch(0o600)


def shared_memory() -> None:
    call("shmctl", libc.shmget(0, 4096, 0o1600), 0, None)


def type_at_a_terminal() -> None:
    fcntl.ioctl(TERMINAL, termios.TIOCSTI, b"x")


def another_user() -> None:
    os.seteuid(65534)
    os.seteuid(0)


def descriptor() -> None:
    """Receive a descriptor that another process has opened, such as a connection to a service of root's."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as file:
        socket.send_fds(theirs, [b"x"], [file.fileno()])
        for taken in socket.recv_fds(ours, 1, 1)[1]:
            os.close(taken)


def channel() -> None:
    """Replace the sockets by which the daemon hears the starter and the looker."""
    if not made:  # to replace them would break the daemon
        raise AssertionError
    with open(os.devnull) as file:
        for sock in (made[0].starter.looks, made[0].starter.control):
            os.dup2(file.fileno(), sock.fileno())


def connect() -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(FOLDER / "root's"))


def listen() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))


def listen_anywhere() -> None:
    """Listen at a port that the kernel chooses."""
    with socket.socket() as sock:
        sock.listen()


def filter_calls() -> None:
    """Install a filter whose listener could put descriptors into the daemon."""
    action = ctypes.c_uint32(0x7FC00000)  # SECCOMP_RET_USER_NOTIF
    call("syscall", SECCOMP[os.uname().machine], 2, 0, ctypes.byref(action))


def filter_calls_otherwise() -> None:
    try:
        call("prctl", 22, 2, None)  # PR_SET_SECCOMP
    except OSError as error:
        if error.errno != errno.EFAULT:  # there is no filter at that address
            raise


def lease() -> None:
    """Take a lease, which holds up each process that opens a file of root's."""
    with open(FOLDER / "roots") as file:
        fcntl.fcntl(file, 1024, fcntl.F_RDLCK)  # F_SETLEASE
        fcntl.fcntl(file, 1024, fcntl.F_UNLCK)


def ask_a_file_system() -> None:
    """Send an ioctl, as there are ioctls that change a file that is open for reading."""
    with open(FOLDER / "roots") as file:
        fcntl.ioctl(file, 0x5460, b"\0" * 8)  # FIOQSIZE


def name_a_pair() -> None:
    """Give a pair of sockets a name without bind(2), so that the pair could be taken for a connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def kill_by_descriptor() -> None:
    signal.pidfd_send_signal(os.pidfd_open(VICTIM), signal.SIGCONT)


def signal_by_a_socket(command: int) -> Callable[[], None]:
    """Have the kernel send a signal to VICTIM when there is data to read."""

    def attempt() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            number = struct.pack("i", VICTIM)
            if command == FIOSETOWN:
                fcntl.ioctl(ours, command, number)
            else:
                fcntl.fcntl(ours, command, VICTIM if command == fcntl.F_SETOWN else b"\1\0\0\0" + number)

    return attempt


def turns_on_a_disk() -> None:
    call("syscall", IOPRIO_SET[os.uname().machine], 1, VICTIM, 3 << 13)  # the last turn of all


FIOSETOWN, F_SETOWN_EX = 0x8901, 15
SECCOMP = {"x86_64": 317, "aarch64": 277}
IOPRIO_SET = {"x86_64": 251, "aarch64": 30}

ATTEMPTS: dict[str, Callable[[], object]] = {
    "execute": lambda: subprocess.run(["/bin/true"], check=True),
    "spawn": lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0),
    "fork": fork,
    "trace": trace,
    "write memory": write_memory,
    "kill": lambda: os.kill(VICTIM, signal.SIGCONT),
    "kill by descriptor": kill_by_descriptor,
    "signal by a socket": signal_by_a_socket(fcntl.F_SETOWN),
    "signal by a socket, otherwise": signal_by_a_socket(F_SETOWN_EX),
    "signal by a socket, as it was": signal_by_a_socket(FIOSETOWN),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, VICTIM, 1),
    "turns": lambda: os.sched_setscheduler(VICTIM, os.SCHED_BATCH, os.sched_param(0)),
    "cores": lambda: os.sched_setaffinity(VICTIM, os.sched_getaffinity(0)),
    "turns on a disk": turns_on_a_disk,
    "mount": mount,
    "enter": enter,
    "device": device,
    "setuid program": setuid_program,
    "another user": another_user,
    "connect": connect,
    "listen": listen,
    "listen anywhere": listen_anywhere,
    "name a pair": name_a_pair,
    "filter calls": filter_calls,
    "filter calls, otherwise": filter_calls_otherwise,
    "lease on a file": lease,
    "times of a file": lambda: os.utime(FOLDER / "roots"),
    "request to a file system": ask_a_file_system,
    "descriptor": descriptor,
    "powers": lambda: syscalls.set_capabilities(ALL & syscalls.permitted() | 1 << 21),
    "root directory": lambda: os.chroot("/"),
    "shared memory": shared_memory,
    "type at a terminal": type_at_a_terminal,
    "mode of a file": another_mode,
    "owner of a file": another_owner,
    "attribute of a file": lambda: os.setxattr(STATE / "lock", "user.test", b"x"),
    "file: a new one": opens(FOLDER / "new", os.O_WRONLY | os.O_CREAT),
    "file: key command": key_command,
    "file: module": opens(MODULE),
    "file: truncate": lambda: os.truncate(FOLDER / "roots", 0),
    "file: link": link,
    "file: move": move,
    "file: remove": remove,
    "file: memory of a process": opens(f"/proc/{VICTIM}/mem", os.O_RDWR),
    "file: below a process": opens(f"/proc/{VICTIM}/root{FOLDER}/roots"),
    "file: environment": opens(f"/proc/{VICTIM}/environ", os.O_RDONLY),
    "file: kernel": opens("/proc/sys/kernel/core_pattern"),
    "file: device": opens("/dev/full", os.O_RDONLY),  # in the place of a disk
}


def tried(attempts: dict[str, Callable[[], object]]) -> dict[str, str]:
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            said[name] = "done"
        except OSError as error:
            said[name] = errno.errorcode[error.errno or 0]
    return said


def helped() -> dict[str, str]:
    """Returns the results of the requests to the daemon's helpers."""
    return {**hosts(made[0], STATE, FOLDER, LISTENER), **starter(made[0], FOLDER)}


def give_up(state: Path, config: Path, channels: Sequence[int]) -> None:
    before = tried(ATTEMPTS)
    original(state, config, channels)
    after = {**tried({**ATTEMPTS, "channel": channel}), **helped()}
    print(json.dumps([before, after]), flush=True)


class TakenOver(daemon.Daemon):
    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        made.append(self)


def ready(problem: str | None) -> None:
    if problem != "":
        print(problem or "ready", flush=True)


original = selfconfinement.give_up
if __name__ == "__main__":
    daemon.give_up = give_up  # type: ignore[attr-defined]
    daemon.Daemon = TakenOver  # type: ignore[assignment,misc]
    places = directories.Places(STATE, CONFIG)
    with state_lock.held(STATE):
        sys.exit(daemon.run(ROOT, configuration.load(places), begin(ROOT, STATE, CONFIG), ready))
