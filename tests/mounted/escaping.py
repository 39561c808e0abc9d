"""Attempts of a program to get out of its agent's view:

    python3 escaping.py OUT PID MOUNT [NAME...]

OUT is a folder, PID a process and MOUNT another daemon's mount, all outside of the view. It prints a JSON
object of all attempts, or of the named attempts, with the name of the errno that refused each, or "done".
Each attempt has its own process. It imports only the standard library, as it runs inside of a view.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable

OUT = OUTSIDER = BESIDE = ""
PLACE = 1 if platform.machine() == "aarch64" else 0
AT_EMPTY_PATH, AT_FDCWD = 0x1000, -100
NEW_MOUNTS, NEW_USER, NEW_TIME = 0x00020000, 0x10000000, 0x80
libc = ctypes.CDLL(None, use_errno=True)


def call(numbers: tuple[int, int] | int, *words: object) -> int:
    """Make a system call, by its numbers on x86_64 and aarch64."""
    number = numbers if isinstance(numbers, int) else numbers[PLACE]
    if number < 0:
        raise OSError(errno.ENOSYS, "not on this machine")
    kept = [ctypes.create_string_buffer(word) if isinstance(word, bytes) else word for word in words]
    values = [
        ctypes.c_long(word)
        if isinstance(word, int)
        else ctypes.c_long(ctypes.addressof(word) if isinstance(word, ctypes.Array) else 0)
        for word in kept
    ]
    result = int(libc.syscall(ctypes.c_long(number), *values))
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def path(name: str = "file") -> bytes:
    return f"{OUT}/{name}".encode()


def handle(name: str) -> tuple[int, bytes]:
    """Returns a handle for a file, which opens it without a path (name_to_handle_at(2))."""
    space = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.create_string_buffer(8)
    call((303, 264), AT_FDCWD, path(name), space, mount, 0)
    return os.open(OUT, os.O_PATH), space.raw


def held(name: str = "file") -> int:
    return os.open(path(name), os.O_PATH)


def by_directory(name: str) -> None:
    os.chdir(OUT)
    os.chmod(name, 0o777)


def by_link() -> None:
    os.symlink(path(), "to")
    os.chmod("to", 0o666)


def by_memory() -> None:
    """Change the mode by a program that is in no file."""
    with open(shutil.which("chmod") or "chmod", "rb") as file:
        fd = os.memfd_create("x", 0)
        os.write(fd, file.read())
    subprocess.run([f"/proc/self/fd/{fd}", "666", path()], check=True, pass_fds=[fd])


def without_a_name() -> None:
    """Give a file that has no name yet a name outside."""
    fd = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o600)
    os.link(f"/proc/self/fd/{fd}", path("new"), follow_symlinks=True)


def brought_in() -> None:
    call((265, 37), held(), b"", AT_FDCWD, b"inside", AT_EMPTY_PATH)


def exchanged() -> None:
    with open("swap", "w", encoding="ascii"):
        pass
    call((316, 276), AT_FDCWD, b"swap", AT_FDCWD, path(), 2)


def by_bind_mount() -> None:
    call((165, 40), path()[:-5], b"inside", b"", 4096, 0)


def by_open_tree() -> None:
    tree = call((428, 428), AT_FDCWD, path()[:-5], 1)
    os.chmod(f"/proc/self/fd/{tree}/file", 0o666)


def in_namespaces() -> None:
    call((272, 97), NEW_USER | NEW_MOUNTS)


def in_namespaces_by_clone3() -> None:
    if not call(435, struct.pack("QQQQQQQQ", NEW_USER | NEW_MOUNTS, 0, 0, 0, 17, 0, 0, 0), 64):
        os._exit(0)


def entered(pid: str) -> None:
    call((308, 268), os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), 0)


def shared_folder() -> None:
    os.mkdir("folder")
    os.chmod("folder", 0o2777)


def has_queue() -> None:
    call((240, 180), b"cortexfs-test", os.O_CREAT | os.O_RDWR, 0o600, None)
    call((241, 181), b"cortexfs-test")


def has_capability() -> None:
    shutil.copy("/bin/true", "capable")
    os.setxattr("capable", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 7, 0, 0, 0))


def mapped() -> None:
    with open(path(), "r+b") as file, mmap.mmap(file.fileno(), 1) as memory:
        memory[0] = 0


def connected(family: int, kind: int, address: object) -> None:
    with socket.socket(family, kind) as one:
        one.connect(address)  # type: ignore[arg-type]


def a_pair_elsewhere() -> None:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(b"x", f"{BESIDE}/.run.sock")


def written(name: str, text: str = "0") -> None:
    with open(name, "w", encoding="ascii") as file:
        file.write(text)


ATTEMPTS: dict[str, Callable[[], object]] = {
    "mode from the directory": lambda: by_directory("file"),
    "mode of the directory": lambda: by_directory("."),
    "mode by dots": lambda: os.chmod(os.path.relpath(path()), 0o666),
    "mode by a descriptor of the directory": lambda: os.chmod("file", 0o666, dir_fd=os.open(OUT, os.O_PATH)),
    "mode by a descriptor": lambda: os.chmod(f"/proc/self/fd/{held()}", 0o666),
    "mode by a thread's descriptor": lambda: os.chmod(f"/proc/thread-self/fd/{held()}", 0o666),
    "mode by fchmodat2": lambda: call(452, held(), b"", 0o666, AT_EMPTY_PATH),
    "mode by its own root": lambda: os.chmod(b"/proc/self/root" + path(), 0o666),
    "mode by another's root": lambda: os.chmod(b"/proc/%s/root%s" % (OUTSIDER.encode(), path()), 0o666),
    "mode by another's directory": lambda: os.chmod(f"/proc/{OUTSIDER}/cwd/file", 0o666),
    "mode of another's program": lambda: os.chmod(f"/proc/{OUTSIDER}/exe", 0o4755),
    "mode by a link": by_link,
    "mode by a program in memory": by_memory,
    "owner by a descriptor": lambda: call((260, 54), held(), b"", os.getuid(), os.getgid(), AT_EMPTY_PATH),
    "owner of a link": lambda: os.lchown(path("link"), os.getuid(), os.getgid()),
    "times": lambda: os.utime(path(), (1, 1)),
    "times by a descriptor": lambda: call((280, 88), held(), b"", None, AT_EMPTY_PATH),
    "times of a link": lambda: os.utime(path("link"), (1, 1), follow_symlinks=False),
    "attributes": lambda: os.setxattr(path(), "user.x", b"y"),
    "attributes by setxattrat": lambda: call(
        463, AT_FDCWD, path(), 0, b"user.x", struct.pack("QII", 0, 0, 0), 16
    ),
    "an access list": lambda: os.setxattr(
        path(), "system.posix_acl_access", struct.pack("<IHHIHHIHHI", 2, 1, 6, 0, 4, 4, 0, 32, 6, 0)
    ),
    "flags": lambda: fcntl.ioctl(os.open(path(), os.O_RDONLY), 0x40086602, struct.pack("l", 0x40)),
    "flags by file_setattr": lambda: call(469, AT_FDCWD, path(), bytes(24), 24, 0),
    "capabilities of a program": has_capability,
    "setgid folder": shared_folder,
    "setuid by mknod": lambda: os.mknod("set", 0o104755),
    "setuid by opening": lambda: os.open("set", os.O_CREAT | os.O_WRONLY, 0o4755),
    "cut": lambda: os.truncate(path(), 0),
    "cut by opening": lambda: os.open(path(), os.O_RDONLY | os.O_TRUNC),
    "written by a descriptor": lambda: os.open(f"/proc/self/fd/{held()}", os.O_WRONLY),
    "written by openat2": lambda: call(437, AT_FDCWD, path(), struct.pack("QQQ", os.O_WRONLY, 0, 0), 24),
    "written by memory": mapped,
    "written by a handle": lambda: call((304, 265), *handle("file"), os.O_WRONLY),
    "a ring of calls": lambda: call(425, 1, bytes(120)),
    "a hard link by a descriptor": brought_in,
    "a hard link by its name": lambda: os.link(f"/proc/self/fd/{held()}", "in", follow_symlinks=True),
    "a file that had no name": without_a_name,
    "exchanged": exchanged,
    "executed": lambda: subprocess.run([path("program")], check=True),
    "executed by a descriptor": lambda: call((322, 281), held("program"), b"", None, None, AT_EMPTY_PATH),
    "a bind mount": by_bind_mount,
    "a tree of mounts": by_open_tree,
    "another file system": lambda: call(430, b"tmpfs", 0),
    "a mount made writable": lambda: call(442, AT_FDCWD, b"/", 0x8000, struct.pack("QQQQ", 0, 1, 0, 0), 32),
    "mounted anew": lambda: call((165, 40), b"", b"/", b"", 32 | 4096, 0),
    "unmounted": lambda: call((166, 39), b"/", 2),
    "another root": lambda: os.chroot("."),
    "a pivot": lambda: call((155, 41), b".", b"."),
    "namespaces": in_namespaces,
    "namespaces by clone": lambda: call((56, 220), NEW_USER | NEW_MOUNTS | 17, 0, 0, 0, 0) or os._exit(0),
    "namespaces by clone3": in_namespaces_by_clone3,
    "a namespace of time": lambda: call((272, 97), NEW_TIME),
    "its own namespace again": lambda: entered("self"),
    "another's namespace": lambda: entered(OUTSIDER),
    "a device": lambda: os.mknod("device", 0o020666, os.makedev(1, 1)),
    "another traced": lambda: call((101, 117), 0x4206, int(OUTSIDER), 0, 0),
    "its parent traced": lambda: call((101, 117), 0x4206, os.getppid(), 0, 0),
    "a child traced": lambda: call((101, 117), 0, 0, 0, 0),
    "another's memory": lambda: call((310, 270), int(OUTSIDER), bytes(16), 1, bytes(16), 1, 0),
    "another's memory by its file": lambda: os.open(f"/proc/{OUTSIDER}/mem", os.O_RDWR),
    "another's environment": lambda: os.open(f"/proc/{OUTSIDER}/environ", os.O_RDONLY),
    "another's descriptor": lambda: call(438, os.pidfd_open(int(OUTSIDER)), 0, 0),
    "a signal": lambda: os.kill(int(OUTSIDER), signal.SIGKILL),
    "a signal by descriptor": lambda: signal.pidfd_send_signal(os.pidfd_open(int(OUTSIDER)), signal.SIGKILL),
    "a limit": lambda: call((302, 261), int(OUTSIDER), 0, struct.pack("QQ", 0, 0), None),
    "another mount": lambda: connected(socket.AF_UNIX, socket.SOCK_STREAM, f"{BESIDE}/.run.sock"),
    "an abstract socket": lambda: connected(socket.AF_UNIX, socket.SOCK_STREAM, "\0cortexfs-test"),
    "datagrams": lambda: connected(socket.AF_UNIX, socket.SOCK_DGRAM, f"{BESIDE}/.run.sock"),
    "a pair that goes elsewhere": a_pair_elsewhere,
    "the network": lambda: socket.socket(socket.AF_INET),
    "the network's tables": lambda: socket.socket(16, socket.SOCK_RAW),
    "packets": lambda: socket.socket(17, socket.SOCK_RAW),
    "the host of a machine": lambda: socket.socket(40),
    "the kernel's ciphers": lambda: socket.socket(38, socket.SOCK_SEQPACKET),
    "a queue of messages": has_queue,
    "keys": lambda: call((248, 217), b"user", b"x", b"y", 1, -4),
    "programs for the kernel": lambda: call((321, 280), 0, bytes(120), 120),
    "events": lambda: call((298, 241), bytes(120), 0, -1, -1, 0),
    "faults of memory": lambda: call((323, 282), 0),
    "a setting of the kernel's": lambda: written("/proc/sys/kernel/core_pattern", "|/bin/true"),
    "who is killed first": lambda: written(f"/proc/{OUTSIDER}/oom_score_adj"),
    "a cgroup": lambda: os.listdir("/sys/fs/cgroup"),
    "the name of the machine": lambda: call((170, 161), b"x", 1),
    "accounting": lambda: call((163, 89), path()),
}


def attempted(attempt: Callable[[], object]) -> str:
    """Make an attempt in a process of its own, and return its result."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        said = "done"
        try:
            attempt()
        except OSError as error:
            said = errno.errorcode.get(error.errno or 0, str(error))
        except subprocess.CalledProcessError:
            said = "failed"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="ascii") as pipe:
        said = pipe.read()
    return said or f"ended by {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}"


if __name__ == "__main__":
    OUT, OUTSIDER, BESIDE, *names = sys.argv[1:]
    print(json.dumps({name: attempted(ATTEMPTS[name]) for name in names or ATTEMPTS}))
