"""The Linux system calls that Python 3.11 lacks, by ctypes.

Rules: each function makes one system call (`permitted` and `mount_and_inode` decode the result) and
raises OSError as `os` does. Needs Linux 5.8 for the mount id of statx(2).
This file must never know what a host or a caller is.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from array import array
from collections.abc import Callable
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)

# The flag of setns(2) for each /proc/PID/ns/NAME, in the order of hostcalls.Identity.namespaces.
NAMESPACES = {
    "user": 0x10000000,
    "mnt": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "cgroup": 0x02000000,
}

# prctl(2)
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
_PR_SET_NAME = 15
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

CLONE_FS, CLONE_FILES = 0x200, 0x400  # unshare(2)

# capset(2): header of version and pid (0: self), then low and high words of each set in turn.
_CAP_HEADER = struct.Struct("=Ii")
_CAP_DATA = struct.Struct("=6I")
_CAP_VERSION_3 = 0x20080522

_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1

# Calls since Linux 5.1 have the same number on all machines.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1
# Rights of files, network and scopes. Older kernels accept zeroes in fields that they lack.
_RULESET = struct.Struct("=QQQ")
_PATH_BENEATH = struct.Struct("=Qi")
_LANDLOCK_RULE_NET_PORT = 2
_NET_PORT = struct.Struct("=QQ")
_CLOSE_RANGE, _CLOSE_RANGE_CLOEXEC = 436, 4
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR = struct.Struct("=QQQQ")  # struct mount_attr: set, clear, propagation, user namespace
_MOUNT_ATTR_RDONLY = 1
_MS_PRIVATE = 0x40000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8  # mount(2)
_MNT_FORCE, _MNT_DETACH = 1, 2  # umount2(2)
_LAST = 0xFFFFFFFF  # descriptor

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
_SCHED_FLAG_KEEP_POLICY = 8
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period

_RENAMEAT2 = {"x86_64": 316, "aarch64": 276, "riscv64": 276}
_RENAME_EXCHANGE = 2

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
_SECCOMP_USER_NOTIF_FLAG_CONTINUE = 1
_NOTICE = struct.Struct("=QI68x")  # struct seccomp_notif: id, pid, and fields that are not read
_REPLY = struct.Struct("=QqiI")  # struct seccomp_notif_resp
_SECCOMP_IOCTL_NOTIF_RECV = 0xC0002100 | _NOTICE.size << 16
_SECCOMP_IOCTL_NOTIF_SEND = 0xC0002101 | _REPLY.size << 16
_INSTRUCTION = 8  # bytes of a struct sock_filter

_CREDENTIALS = struct.Struct("=iII")  # SCM_CREDENTIALS: pid, uid, gid

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_STATX_DONT_SYNC = 0x4000
_STATX_INO = 0x100
_STATX_MNT_ID = 0x1000


class Sender(NamedTuple):
    """The sender of a message, which the kernel names on a socket with SO_PASSCRED."""

    pid: int
    uid: int


def receive(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int], int]:
    """Returns data, at most `most` descriptors, and flags. socket.recv_fds of Python 3.11 omits the flag that
    keeps descriptors out of a program that another thread executes at that moment."""
    return receive_signed(sock, size, most, 0)[:3]


def receive_signed(
    sock: socket.socket, size: int, most: int, credentials: int = socket.CMSG_SPACE(_CREDENTIALS.size)
) -> tuple[bytes, list[int], int, Sender | None]:
    """Like `receive` for a socket with SO_PASSCRED; returns the sender too. CMSG_NXTHDR of glibc 2.35 misses
    a last message without padding. The kernel may fill the padding with one more descriptor."""
    room = credentials + socket.CMSG_SPACE(most * 4)
    data, ancillary, flags, _ = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    rights, sender = array("i"), None
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            rights.frombytes(payload[: len(payload) // 4 * 4])
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, uid, _ = _CREDENTIALS.unpack(payload)
            sender = Sender(pid, uid)
    for surplus in rights[most:]:
        os.close(surplus)
        flags |= socket.MSG_CTRUNC
    return data, list(rights[:most]), flags, sender


def _checked(call: Callable[..., int], *arguments: object) -> int:
    result = call(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    # ctypes would pass an int as 32 bits, and leave the upper bits undefined.
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_libc.syscall, ctypes.c_long(number), *words)


def prctl(option: int, *arguments: int) -> int:
    # The kernel refuses many options unless all unused arguments are zero unsigned longs.
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return _checked(_libc.prctl, option, *map(ctypes.c_ulong, padded))


def set_name(name: bytes) -> None:
    """Set the kernel's name of this thread; it has at most 15 bytes."""
    _checked(_libc.prctl, _PR_SET_NAME, name, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def is_subreaper() -> bool:
    """Returns True if orphans below this process become its children."""
    found = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(found))
    return bool(found.value)


def setns(fd: int, kind: int) -> None:
    _checked(_libc.setns, fd, kind)


def unshare(flags: int) -> None:
    """Give this thread alone its own namespaces or tables, as `flags` name them."""
    _checked(_libc.unshare, flags)


def copy_mount(fd: int) -> int:
    """Returns the descriptor of a copy of the mount from `fd` down, with all mounts below. Needs Linux 5.2
    and CAP_SYS_ADMIN over the mount namespace."""
    return _syscall(_OPEN_TREE, fd, b"", _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE)


def put_mount(mount: int, fd: int) -> None:
    """Mount a result of `copy_mount` over `fd`."""
    _syscall(_MOVE_MOUNT, mount, b"", fd, b"", _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)


def cover(path: str, name: str) -> None:
    """Mount an empty file system over a directory. mountinfo shows it as `name`."""
    flags = ctypes.c_ulong(_MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _checked(_libc.mount, name.encode(), os.fsencode(path), b"tmpfs", flags, b"size=4k,mode=755")


def unmount(path: str) -> None:
    """Detach the topmost mount at this path, through links. Processes that use it keep it until they end."""
    _checked(_libc.umount2, os.fsencode(path), ctypes.c_int(_MNT_DETACH))


def abort_fuse(path: str) -> None:
    """Fail all requests of the topmost FUSE mount at this path, through links. It stays mounted if the caller
    holds it by a descriptor."""
    try:
        _checked(_libc.umount2, os.fsencode(path), ctypes.c_int(_MNT_FORCE))
    except OSError as problem:
        if problem.errno != errno.EBUSY:  # it is held; the requests are aborted
            raise


def set_mount(mount: int, *, is_read_only: bool = False, is_private: bool = False) -> None:
    """Make this mount and all mounts below read-only, or stop propagation to and from the mounts they were
    copied from. Needs Linux 5.12."""
    attributes, propagation = _MOUNT_ATTR_RDONLY * is_read_only, _MS_PRIVATE * is_private
    changes = _MOUNT_ATTR.pack(attributes, 0, propagation, 0)
    _syscall(_MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, changes, _MOUNT_ATTR.size)


def exchange(path: os.PathLike[str], other: os.PathLike[str]) -> None:
    """Exchange two paths in one step."""
    number = _RENAMEAT2.get(os.uname().machine, -1)
    _syscall(number, _AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)


def core() -> int:
    """Returns the number of the processor core that runs this thread."""
    return _checked(_libc.sched_getcpu)


def take_turns_of(nanoseconds: int) -> None:
    """Set the time slice of this thread and of those that it starts. Since Linux 6.12, a thread that wakes up
    with a shorter slice runs first; older kernels ignore the slice."""
    if number := _SCHED_SETATTR.get(os.uname().machine):
        nice = os.getpriority(os.PRIO_PROCESS, 0)  # sched_setattr(2) would reset it to 0
        fields = _SCHED_ATTR.size, 0, _SCHED_FLAG_KEEP_POLICY, nice, 0, nanoseconds, 0, 0
        _syscall(number, 0, _SCHED_ATTR.pack(*fields), 0)


def close_on_exec(first: int) -> None:
    """Close `first` and all descriptors above it at exec. Needs Linux 5.11."""
    _syscall(_CLOSE_RANGE, first, _LAST, _CLOSE_RANGE_CLOEXEC)


def permitted() -> int:
    data = ctypes.create_string_buffer(_CAP_DATA.size)
    _checked(_libc.capget, _CAP_HEADER.pack(_CAP_VERSION_3, 0), data)
    words = _CAP_DATA.unpack(data.raw)
    return int(words[1]) | int(words[4]) << 32


def set_capabilities(mask: int) -> None:
    """Make `mask` the effective and permitted set, and the inheritable one empty."""
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = _CAP_DATA.pack(low, low, 0, high, high, 0)
    _checked(_libc.capset, _CAP_HEADER.pack(_CAP_VERSION_3, 0), data)


def new_session_keyring() -> None:
    # ENOSYS on a machine that the table lacks. The name is NULL: an anonymous keyring.
    _syscall(_KEYCTL.get(os.uname().machine, -1), _KEYCTL_JOIN_SESSION_KEYRING, None)


def landlock_abi() -> int:
    return _syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)


def landlock_ruleset(files: int, network: int, scopes: int) -> int:
    """Returns the descriptor of rules that refuse these rights."""
    return _syscall(_LANDLOCK_CREATE_RULESET, _RULESET.pack(files, network, scopes), _RULESET.size, 0)


def landlock_allow(ruleset: int, fd: int, rights: int) -> None:
    """Allow `rights` below a directory, or for a file."""
    rule = _PATH_BENEATH.pack(rights, fd)
    _syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)


def landlock_allow_port(ruleset: int, port: int, rights: int) -> None:
    _syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_NET_PORT, _NET_PORT.pack(rights, port), 0)


def landlock_restrict(ruleset: int) -> None:
    """Apply the rules to this thread and its descendants."""
    _syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)


def filter_syscalls(program: bytes, *, asks: bool = False) -> int:
    """Have `program` judge every system call of this thread and its descendants.

    With `asks`, returns a descriptor on which another process receives the calls that `program` leaves open.
    """
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog; "@" pads as C does.
    fprog = struct.pack("@HP", len(program) // _INSTRUCTION, ctypes.addressof(code))
    number = _SECCOMP[os.uname().machine]
    return _syscall(number, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER if asks else 0, fprog)


def seccomp_question(listener: int) -> tuple[int, int]:
    """Take a call that waits for a decision. Returns its id and the calling thread."""
    data = bytearray(_NOTICE.size)
    fcntl.ioctl(listener, _SECCOMP_IOCTL_NOTIF_RECV, data)
    question, pid = _NOTICE.unpack(data)
    return question, pid


def seccomp_answer(listener: int, question: int, *, allow: bool) -> None:
    """Let the call go on, or fail with EACCES. Raises ENOENT if its thread has ended."""
    error, flags = (0, _SECCOMP_USER_NOTIF_FLAG_CONTINUE) if allow else (-errno.EACCES, 0)
    fcntl.ioctl(listener, _SECCOMP_IOCTL_NOTIF_SEND, bytearray(_REPLY.pack(question, 0, error, flags)))


def getsockopt(fd: int, level: int, option: int, size: int) -> bytes:
    """Like socket.getsockopt, without its limit of 1024 bytes."""
    data = ctypes.create_string_buffer(size)
    length = ctypes.c_uint(size)
    _checked(_libc.getsockopt, fd, level, option, data, ctypes.byref(length))
    return data.raw[: length.value]


_statx_buffer = ctypes.create_string_buffer(256)


def mount_and_inode(place: bytes | int) -> tuple[int, int]:
    """Returns the mount id and inode of a path (links followed) or descriptor. Not for use in threads.

    st_dev would not do: a bind mount of / has the device and inode of /, but other mounts below it.
    """
    fd, path, flags = (_AT_FDCWD, place, 0) if isinstance(place, bytes) else (place, b"", _AT_EMPTY_PATH)
    _statx(fd, path, flags)
    mask, inode, _, _, mount = _STATX.unpack_from(_statx_buffer)
    if not mask & _STATX_MNT_ID:
        raise OSError(errno.ENOSYS, "statx(2) gives no mount ids: CortexFS needs Linux 5.8")
    return mount, inode


def device_and_inode(path: bytes) -> tuple[int, int]:
    """Returns a file's device and inode, equal in all mount namespaces (links followed). Not for threads."""
    _statx(_AT_FDCWD, path, 0)
    _, inode, major, minor, _ = _STATX.unpack_from(_statx_buffer)
    return os.makedev(major, minor), inode


def _statx(fd: int, path: bytes, flags: int) -> None:
    # Not synchronised: the caller's root may be on a FUSE file system that never answers.
    flags |= _AT_STATX_DONT_SYNC
    _checked(_libc.statx, fd, path, flags, _STATX_INO | _STATX_MNT_ID, _statx_buffer)


# stx_mask, stx_ino at 32, stx_dev_major and stx_dev_minor at 136, stx_mnt_id at 144
_STATX = struct.Struct("=I28xQ96xIIQ")
