"""The system calls that a confined process may not make: a filter in the kernel's classic BPF.

The filter closes what Landlock leaves open and no honest tool needs: ways into other processes, powers over
the kernel, setuid and setgid bits, namespaces and mounts that would change what a view means, and
sockets that lead out of the view.

Rules: the filter is data, made from the tables below. A call of another architecture (int 0x80, x32)
ends the process, as its numbers mean other calls. The filter judges numbers alone, never pointers, as the
memory behind a pointer can change after the filter has looked.
This file must never know what an agent, a host or a plugin is.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import socket
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.linux import syscalls
from cortexfs.linux.call_numbers import NUMBERS, names


class _Machine(NamedTuple):
    arch: int  # AUDIT_ARCH_* of <linux/audit.h>
    column: int  # in call_numbers.py


MACHINES = {"x86_64": _Machine(0xC000003E, 0), "aarch64": _Machine(0xC00000B7, 1)}

# Refused with EPERM.
REFUSED = names("""
    # into other processes: Landlock refuses those outside its domain, and this in it as well
    ptrace process_vm_readv process_vm_writev pidfd_getfd
    # into the kernel: large, rarely needed, and where its holes have been
    kexec_load kexec_file_load bpf perf_event_open userfaultfd
    # does what this filter refuses, past it
    io_uring_setup io_uring_enter io_uring_register
    # keys of the user's
    add_key request_key keyctl
    # other places: paths are what a view is made of
    mount umount2 pivot_root open_tree open_tree_attr move_mount mount_setattr fsopen fsconfig fsmount
    fspick setns open_by_handle_at
""")
# Refused as well if no read-only mounts protect the rest of the file system
# (host/confine/readonly_mounts.py).
METADATA = names("""
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat setxattr
    lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr
""")
# Refused to the serving daemon as well (daemon/selfconfinement.py): calls that no capability guards.
OF_DAEMON = names("""
    # new programs and processes; CLONE without CLONE_THREAD, too
    execve execveat fork vfork
    # others of root's processes; tgkill of its own threads alone, and pidfd_send_signal of no signal
    kill tkill rt_sigqueueinfo rt_tgsigqueueinfo setpriority sched_setparam sched_setscheduler
    sched_setaffinity sched_setattr ioprio_set
    # names for sockets, by which the fork server knows connections that were accepted
    bind listen
    # other filters, whose listener could put descriptors here
    seccomp
    # memory, counters and messages that root's processes share (sysvipc(7), mq_overview(7))
    shmget shmat shmctl semget semop semctl semtimedop msgget msgrcv msgsnd msgctl mq_open mq_unlink
""")
PR_SET_SECCOMP = 22
# The only requests of the daemon: FIOCLEX and FIONCLEX, FIONBIO, FIONREAD, TCGETS, TIOCGWINSZ, SIOCOUTQ.
REQUESTS = (0x5451, 0x5450, 0x5421, 0x541B, 0x5401, 0x5413, 0x5411)
# The first call that is newer than these tables. ENOSYS makes programs believe in an old kernel.
NEWER = 470
# Each of them works on a descriptor that was opened for reading.
METADATA_REQUESTS = (
    *(0x40086602, 0x40087602, 0x401C5820),  # FS_IOC_SETFLAGS, _SETVERSION, _FSSETXATTR
    0x40086604,  # EXT4_IOC_SETVERSION
    *(0x40806685, 0x800C6613),  # FS_IOC_ENABLE_VERITY, _SET_ENCRYPTION_POLICY
    # of btrfs, to make and destroy subvolumes and snapshots
    *(0x50009401, 0x5000940E, 0x5000940F, 0x50009417, 0x50009418, 0x5000943F),
    *(0x4008941A, 0xC0C89425),  # their flags, and where they were received from
)
TERMINAL_REQUESTS = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX, which type into the terminal
# F_SETOWN names the process that the kernel signals when data arrives: for uid 0 any process, with any
# signal.
COMMANDS = (8, 15, 1024)  # F_SETOWN, F_SETOWN_EX and F_SETLEASE
# The position of the mode: a setuid or setgid bit in it is EPERM. mkdir(2) ignores both bits.
MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
# The same for calls whose mode counts only if the flags, one argument before it, create a file.
MODES_BY_FLAGS = {"open": 2, "openat": 3}
# SO_PASSCRED, SO_PASSSEC and SO_PASSPIDFD, which give a socket a name without bind(2)
NAMING = (16, 34, 76)

# Every CLONE_NEW*. For clone(2), the bit of the time namespace belongs to the exit signal.
_NAMESPACES = sum(syscalls.NAMESPACES.values())
_TIME_NAMESPACE = 0x80
_CLONE_THREAD = 0x10000
_X32 = 0x40000000  # __X32_SYSCALL_BIT

_ALLOW, _ASK, _KILL, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x80000000, 0x00050000
_REFUSE = _ERRNO | errno.EACCES
_NUMBER, _ARCH, _FIRST = 0, 4, 16  # offsets in struct seccomp_data; the low word of an argument comes first
_ARGUMENT, _TYPE_MASK = 8, 0xF
_LOAD, _RETURN, _AND, _SKIP = 0x20, 0x06, 0x54, 0x05
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45

_SET_ID = stat.S_ISUID | stat.S_ISGID
_MAKES = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)

Instruction = tuple[int, int, int, int]  # code, instructions to skip if true, if false, operand
_INSTRUCTION = struct.Struct("=HBBI")
_GO_ON: Instruction = (_RETURN, 0, 0, _ALLOW)


class FilterChoice(NamedTuple):
    network: bool  # False: only Unix sockets
    unix: int = _REFUSE  # the verdict on Unix sockets other than pairs
    metadata: bool = True  # whether modes, owners, times and attributes of files may change
    families: tuple[int, ...] = ()  # with a network, the allowed families of sockets; empty: all


def restrict(*, network: bool, metadata: bool) -> int | None:
    """Filter the calls of this process and its descendants.

    Returns a descriptor whose reader decides about Unix sockets other than pairs
    (host/confine/socket_gate.py). Returns None if the process has a listener already: then all are refused.
    Raises Fault EACCES on a machine that the tables lack.
    """
    machine = _machine()
    with suppress(OSError):  # EBUSY: the process has a listener already, of a container for example
        return syscalls.filter_syscalls(program(machine, FilterChoice(network, _ASK, metadata)), asks=True)
    syscalls.filter_syscalls(program(machine, FilterChoice(network, metadata=metadata)))
    return None


def close(*, network: bool, unix: bool, metadata: bool = True, families: tuple[int, ...] = ()) -> None:
    """Like `restrict`, without a listener: Unix sockets other than pairs are allowed only with `unix`."""
    choice = FilterChoice(network, _ALLOW if unix else _REFUSE, metadata, families)
    syscalls.filter_syscalls(program(_machine(), choice))


def guard(channels: Sequence[int]) -> None:
    """Filter the calls of the daemon. New descriptors may arrive only on `channels`; on any if the kernel or
    the C library leaves no choice and `channels` is empty."""
    syscalls.filter_syscalls(guarding(_machine(), os.getpid(), channels))


def guarding(machine: _Machine, pid: int, channels: Sequence[int]) -> bytes:
    by_these = _by_these(machine.column, channels) if channels else ()
    confining = _confining(machine.column, FilterChoice(True, metadata=False, families=_FAMILIES))
    return _packed(_of_machine(machine.arch), _of_daemon(machine.column, pid), by_these, confining)


_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)  # getaddrinfo(3) needs the last of them


def _of_daemon(column: int, pid: int) -> Iterator[Instruction]:
    no = _failing(errno.EPERM)
    for name in OF_DAEMON:
        yield from _called(column, name, [no])
    yield from _called(column, "clone", _where(_ANY_BIT, _CLONE_THREAD, _GO_ON, no))
    yield from [(_AT_LEAST, 0, 1, NEWER), _failing(errno.ENOSYS)]
    yield from _called(column, "ioctl", [_look(1), *_any_of(REQUESTS, _GO_ON), _failing(errno.ENOTTY)])
    yield from _called(column, "prctl", _where(_EQUAL, PR_SET_SECCOMP, no, _GO_ON))
    options = [_look(2), *_any_of(NAMING, no), _GO_ON]
    of_sockets = [_look(1), (_EQUAL, 1, 0, socket.SOL_SOCKET), _GO_ON, *options]
    yield from _called(column, "setsockopt", of_sockets)
    yield from _called(column, "fcntl", [_look(1), *_any_of(COMMANDS, no), _GO_ON])
    yield from _called(column, "tgkill", _where(_EQUAL, pid, _GO_ON, no))
    yield from _called(column, "pidfd_send_signal", [_look(1), (_EQUAL, 0, 1, 0), _GO_ON, no])


def _by_these(column: int, channels: Sequence[int]) -> Iterator[Instruction]:
    """Refuse descriptors from other sources than the starter and the looker, and any replacement of their
    channels."""
    no = _failing(errno.EPERM)
    for name in ("recvmmsg", "close_range"):
        yield from _called(column, name, [no])
    yield from _called(column, "recvmsg", [_look(0), *_any_of(channels, _GO_ON), no])
    yield from _called(column, "close", [_look(0), *_any_of(channels, no), _GO_ON])
    for name in ("dup2", "dup3"):
        yield from _called(column, name, [_look(1), *_any_of(channels, no), _GO_ON])


def allow_only(called: Iterable[str]) -> None:
    """Have all calls but `called` fail with ENOSYS, beside the refusals of other filters."""
    machine = _machine()
    known = (line for name in called for line in _called(machine.column, name, [_GO_ON]))
    syscalls.filter_syscalls(_packed(_of_machine(machine.arch), known, [_failing(errno.ENOSYS)]))


def _machine() -> _Machine:
    name = os.uname().machine
    if name not in MACHINES:
        raise Fault("EACCES", f"nothing can be confined here: the system calls of {name} are not known")
    return MACHINES[name]


@functools.cache
def program(machine: _Machine, choice: FilterChoice) -> bytes:
    return _packed(_of_machine(machine.arch), _confining(machine.column, choice))


def _packed(*parts: Iterable[Instruction]) -> bytes:
    """Join the parts of a program. Before and after each part, the accumulator holds the call's number."""
    return b"".join(_INSTRUCTION.pack(*each) for part in parts for each in part)


def _confining(column: int, choice: FilterChoice) -> Iterator[Instruction]:
    refused = REFUSED if choice.metadata else (*REFUSED, *METADATA)
    for name in refused:
        yield from _called(column, name, [_failing(errno.EPERM)])
    yield from _modes(column)
    if not choice.metadata:
        kinds = (*METADATA_REQUESTS, *TERMINAL_REQUESTS)
        requests = [_look(1), *_any_of(kinds, _failing(errno.EPERM)), _GO_ON]
        yield from _called(column, "ioctl", requests)
    # Its flags are behind a pointer. After ENOSYS the C library falls back to clone(2).
    yield from _called(column, "clone3", [_failing(errno.ENOSYS)])
    spaces = _NAMESPACES | _TIME_NAMESPACE
    yield from _called(column, "clone", _where(_ANY_BIT, _NAMESPACES, _failing(errno.EPERM), _GO_ON))
    yield from _called(column, "unshare", _where(_ANY_BIT, spaces, _failing(errno.EPERM), _GO_ON))
    # Limits of other processes of the user stay: an RLIMIT_CPU of 0 would kill the process.
    yield from _called(column, "prlimit64", _where(_EQUAL, 0, _GO_ON, _failing(errno.EPERM)))
    yield from _sockets(column, choice)
    yield _GO_ON


def _of_machine(arch: int) -> Iterator[Instruction]:
    yield from [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL)]
    yield from [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]


def _modes(column: int) -> Iterator[Instruction]:
    """Refuse setuid and setgid bits, which would give a file's owner's or group's powers to any user."""
    has_bit = [(_ANY_BIT, 0, 1, _SET_ID), _failing(errno.EPERM), _GO_ON]
    for name, at in MODES.items():
        yield from _called(column, name, [_look(at), *has_bit])
    for name, at in MODES_BY_FLAGS.items():
        makes = [_look(at - 1), (_ANY_BIT, 1, 0, _MAKES), _GO_ON]
        yield from _called(column, name, [*makes, _look(at), *has_bit])
    # Its mode is behind a pointer. After ENOSYS programs fall back to openat(2).
    yield from _called(column, "openat2", [_failing(errno.ENOSYS)])


def _sockets(column: int, choice: FilterChoice) -> Iterator[Instruction]:
    network, unix, families = choice.network, choice.unix, choice.families
    other = _GO_ON if network else (_RETURN, 0, 0, _REFUSE)
    sockets = _where(_EQUAL, socket.AF_UNIX, (_RETURN, 0, 0, unix), other)
    if network and families:  # another family fails as on a kernel without it
        known = [(_EQUAL, len(families) - at, 0, family) for at, family in enumerate(families)]
        sockets = [_look(0), *known, _failing(errno.EAFNOSUPPORT), *sockets]
    yield from _called(column, "socket", sockets)
    is_unix, pairs = [_look(0), (_EQUAL, 1, 0, socket.AF_UNIX), other], [_GO_ON]
    if unix != _ALLOW:  # a pair of datagram sockets could send to other addresses too
        lasting = [(_EQUAL, 1, 0, socket.SOCK_STREAM), (_EQUAL, 0, 1, socket.SOCK_SEQPACKET)]
        pairs = [_look(1), (_AND, 0, 0, _TYPE_MASK), *lasting, _GO_ON, (_RETURN, 0, 0, _REFUSE)]
    yield from _called(column, "socketpair", [*is_unix, *pairs])


def _any_of(values: Sequence[int], then: Instruction) -> list[Instruction]:
    """Returns code that runs `then` if the accumulator holds one of the values, else the next instruction."""
    last = len(values)
    return [*((_EQUAL, last - at, 0, value) for at, value in enumerate(values)), (_SKIP, 0, 0, 1), then]


def _called(column: int, name: str, then: list[Instruction]) -> list[Instruction]:
    number = NUMBERS[name][column]
    return [(_EQUAL, 0, len(then), number), *then] if number >= 0 else []


def _where(test: int, operand: int, then: Instruction, other: Instruction) -> list[Instruction]:
    """Returns code that tests the first argument and runs `then` or `other`."""
    return [_look(0), (test, 0, 1, operand), then, other]


def _look(argument: int) -> Instruction:
    """Load the low word of an argument: the numbers that are judged here fit into it."""
    return (_LOAD, 0, 0, _FIRST + argument * _ARGUMENT)


def _failing(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | error)


if os.uname().machine in MACHINES:  # compiled once, before hosts are forked
    for _choice in itertools.product((False, True), (_ALLOW, _ASK, _REFUSE), (False, True)):
        program(_machine(), FilterChoice(*_choice))
