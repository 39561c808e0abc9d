"""System calls that a confined process may not make: a filter in the kernel's classic BPF.

It closes what Landlock leaves open and what a tool has no honest use for: ways into other processes, powers
over the kernel, namespaces and mounts in which a view would mean something else, and sockets that lead
where it may not go.

Rules: the filter is data, made from the tables below. A call of another architecture (int 0x80, x32)
ends the process, as its numbers mean other calls. Where arguments decide, they are numbers: what is
behind a pointer can change after the filter has looked.
This file must never know what an agent, a host or a plugin is.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.host import linux


class _Machine(NamedTuple):
    arch: int  # AUDIT_ARCH_* of <linux/audit.h>
    column: int  # of the tables below


MACHINES = {"x86_64": _Machine(0xC000003E, 0), "aarch64": _Machine(0xC00000B7, 1)}

# By name, the numbers on x86_64 and on aarch64. All of these are EPERM.
REFUSED = {
    # into other processes: Landlock refuses those outside its domain, and this in it as well
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    # into the kernel: large, rarely needed, and where its holes have been
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),  # does what this filter refuses, past it
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # keys of the user's
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # other places: paths are what a view is made of
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
}
CLONE, CLONE3, UNSHARE, PRLIMIT = (56, 220), (435, 435), (272, 97), (302, 261)
SOCKET, SOCKETPAIR = (41, 198), (53, 199)

# Every CLONE_NEW*, the time namespace being what is the exit signal's place for clone(2).
_NAMESPACES = sum(linux.NAMESPACES.values())
_TIME_NAMESPACE = 0x80
_X32 = 0x40000000  # __X32_SYSCALL_BIT

_ALLOW, _ASK, _KILL, _ERRNO = 0x7FFF0000, 0x7FC00000, 0x80000000, 0x00050000
_REFUSE = _ERRNO | errno.EACCES
_NUMBER, _ARCH, _FIRST = 0, 4, 16  # offsets in struct seccomp_data; the low word of an argument comes first
_ARGUMENT, _TYPE_MASK = 8, 0xF
_LOAD, _RETURN, _AND = 0x20, 0x06, 0x54
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45

Instruction = tuple[int, int, int, int]  # code, instructions to skip if true, if false, operand
_INSTRUCTION = struct.Struct("=HBBI")
_GO_ON: Instruction = (_RETURN, 0, 0, _ALLOW)


def restrict(*, network: bool, paths: bool) -> int | None:
    """Filter the calls of this process and of whatever it forks and executes.

    Without `network` there are no sockets but Unix ones. With `paths`, these are somebody else's to decide
    (Landlock's); else they are made in pairs, or as who listens to the descriptor that is returned
    says (gate.py).
    Raises Fault EACCES where none of this is known how to, unless Landlock alone does.
    """
    name = os.uname().machine
    machine = MACHINES.get(name)
    if machine is None:
        if network:
            return None
        raise Fault("EACCES", f"an agent's tool cannot be kept from the network on this machine ({name})")
    if not paths:
        with suppress(OSError):  # EBUSY: there is a listener around us, in a container say
            return linux.filter_syscalls(program(machine, network=network, unix=_ASK), asks=True)
    linux.filter_syscalls(program(machine, network=network, unix=_ALLOW if paths else _REFUSE))
    return None


def close(*, network: bool, unix: bool, families: tuple[int, ...] = ()) -> None:
    """The same for good, with nobody who decides: Unix sockets, other than pairs, only with `unix`. With a
    network, sockets are of these families alone, if any are named."""
    machine = MACHINES.get(os.uname().machine)
    if machine is None:
        raise Fault("EACCES", f"nothing can be filtered on this machine ({os.uname().machine})")
    linux.filter_syscalls(
        program(machine, network=network, unix=_ALLOW if unix else _REFUSE, families=families)
    )


@functools.cache
def program(machine: _Machine, *, network: bool, unix: int, families: tuple[int, ...] = ()) -> bytes:
    return b"".join(_INSTRUCTION.pack(*each) for each in _instructions(machine, network, unix, families))


def _instructions(
    machine: _Machine, network: bool, unix: int, families: tuple[int, ...]
) -> Iterator[Instruction]:
    """The accumulator holds the call's number between the parts; each part leaves it so, or returns."""
    column = machine.column
    yield from [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, machine.arch), (_RETURN, 0, 0, _KILL)]
    yield from [(_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    for numbers in REFUSED.values():
        yield from _if_called(numbers[column], [_failing(errno.EPERM)])
    # Its flags are behind a pointer. The C library takes ENOSYS for an old kernel, and uses clone(2).
    yield from _if_called(CLONE3[column], [_failing(errno.ENOSYS)])
    spaces = _NAMESPACES | _TIME_NAMESPACE
    yield from _if_called(CLONE[column], _where(_ANY_BIT, _NAMESPACES, _failing(errno.EPERM), _GO_ON))
    yield from _if_called(UNSHARE[column], _where(_ANY_BIT, spaces, _failing(errno.EPERM), _GO_ON))
    # Of others of the same user: a process whose RLIMIT_CPU is 0 is a dead one.
    yield from _if_called(PRLIMIT[column], _where(_EQUAL, 0, _GO_ON, _failing(errno.EPERM)))
    other = _GO_ON if network else (_RETURN, 0, 0, _REFUSE)
    sockets = _where(_EQUAL, socket.AF_UNIX, (_RETURN, 0, 0, unix), other)
    yield from _if_called(SOCKET[column], _among(families, sockets) if network and families else sockets)
    is_unix = [_look(0), (_EQUAL, 1, 0, socket.AF_UNIX), other]
    yield from _if_called(SOCKETPAIR[column], [*is_unix, *_pairs(unix)])
    yield _GO_ON


def _among(families: tuple[int, ...], then: list[Instruction]) -> list[Instruction]:
    """Sockets of other families are what a kernel without these says."""
    known = [(_EQUAL, len(families) - at, 0, family) for at, family in enumerate(families)]
    return [_look(0), *known, _failing(errno.EAFNOSUPPORT), *then]


def _pairs(unix: int) -> list[Instruction]:
    """Pairs that stay pairs: one that sends datagrams could send them elsewhere, too."""
    if unix == _ALLOW:
        return [_GO_ON]
    kind = [_look(1), (_AND, 0, 0, _TYPE_MASK)]
    lasting = [(_EQUAL, 1, 0, socket.SOCK_STREAM), (_EQUAL, 0, 1, socket.SOCK_SEQPACKET)]
    return [*kind, *lasting, _GO_ON, (_RETURN, 0, 0, _REFUSE)]


def _if_called(number: int, then: list[Instruction]) -> list[Instruction]:
    return [(_EQUAL, 0, len(then), number), *then]


def _where(test: int, operand: int, then: Instruction, other: Instruction) -> list[Instruction]:
    """By the first argument."""
    return [_look(0), (test, 0, 1, operand), then, other]


def _look(argument: int) -> Instruction:
    """Its low word, which is all of what is a number here."""
    return (_LOAD, 0, 0, _FIRST + argument * _ARGUMENT)


def _failing(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | error)


if os.uname().machine in MACHINES:  # made once, before any host is forked
    for _choice in itertools.product((False, True), (_ALLOW, _ASK, _REFUSE)):
        program(MACHINES[os.uname().machine], network=_choice[0], unix=_choice[1])
