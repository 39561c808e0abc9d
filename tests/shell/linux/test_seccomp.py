"""The filters of system calls: their answers on each machine, and their effect on a process that has one."""

from __future__ import annotations

import errno
import os
import re
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.host.confine import view
from cortexfs.linux import seccomp, syscalls
from cortexfs.linux.call_numbers import NUMBERS
from tests.shell.confined import ONLY_HERE, in_child
from tests.shell.forks import NOBODY, Forks

pytestmark = ONLY_HERE


@pytest.mark.parametrize("name", seccomp.REFUSED)
def test_each_refused_call_is_refused_to_root_with_all_powers(name: str) -> None:
    column = seccomp.MACHINES[os.uname().machine].column

    def work() -> None:
        syscalls._syscall(NUMBERS[name][column], -1, -1, -1, -1)

    def filtered() -> None:
        seccomp.restrict(network=True, metadata=True)
        work()

    assert in_child(filtered) == errno.EPERM
    assert in_child(work) != errno.EPERM


# Newer than most headers; their numbers are the same on every machine.
NEWER = ("open_tree_attr", "fchmodat2", "setxattrat", "removexattrat", "file_setattr")


@pytest.mark.parametrize(
    ("header", "column"),
    [("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", 0), ("/usr/include/asm-generic/unistd.h", 1)],
)
def test_the_numbers_are_those_of_the_headers(header: str, column: int) -> None:
    if not Path(header).exists():
        pytest.skip("the kernel's headers are not installed")
    found = dict(re.findall(r"define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text()))
    ours = dict(NUMBERS)
    for name in NEWER:
        assert len(set(ours.pop(name))) == 1
    found |= {"newfstatat": found.get("newfstatat", found.get("fstatat", ""))}
    assert {name: numbers[column] for name, numbers in ours.items()} == {
        name: int(found.get(name) or -1) for name in ours
    }


def judged(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Returns a filter's answer; the filter is executed as linux/filter.h describes."""
    data = struct.pack("=iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    word = at = 0
    while True:
        code, yes, no, operand = struct.unpack_from("=HBBI", program, at * 8)
        at += 1
        match code:
            case 0x20:
                (word,) = struct.unpack_from("=I", data, operand)
            case 0x54:
                word &= operand
            case 0x06:
                return int(operand)
            case 0x05:
                at += operand
            case _:
                true = {0x15: word == operand, 0x35: word >= operand, 0x45: bool(word & operand)}[code]
                at += yes if true else no


HIGH = 1 << 32  # the kernel ignores the bits above an int
DECISIONS = [
    (NUMBERS["bpf"], (), errno.EPERM),
    (NUMBERS["clone"], (0x10000000,), errno.EPERM),
    (NUMBERS["clone"], (HIGH | 0x20000000 | 17,), errno.EPERM),
    (NUMBERS["clone"], (0x80 | 0x10F00,), 0),
    (NUMBERS["unshare"], (0x80,), errno.EPERM),
    (NUMBERS["unshare"], (0x200,), 0),
    (NUMBERS["prlimit64"], (0,), 0),
    (NUMBERS["prlimit64"], (HIGH,), 0),
    (NUMBERS["prlimit64"], (1,), errno.EPERM),
    (NUMBERS["socket"], (2, 1), errno.EACCES),
    (NUMBERS["socket"], (HIGH | 1, 1), None),
    (NUMBERS["socketpair"], (1, HIGH | 0x80801), 0),
    (NUMBERS["socketpair"], (1, 5), 0),
    (NUMBERS["socketpair"], (1, 2), errno.EACCES),
    (NUMBERS["socketpair"], (1, 0x80802), errno.EACCES),
    (NUMBERS["socketpair"], (30, 1), errno.EACCES),
    ((0, 63), (1,), 0),  # read
    (NUMBERS["fchmod"], (3, 0o755), 0),
    (NUMBERS["fchmod"], (3, 0o4755), errno.EPERM),
    (NUMBERS["fchmodat"], (3, 0, 0o2755), errno.EPERM),
    (NUMBERS["fchmodat2"], (3, 0, 0o6000), errno.EPERM),
    (NUMBERS["mknodat"], (3, 0, 0o104755), errno.EPERM),
    (NUMBERS["openat"], (3, 0, os.O_CREAT, 0o4755), errno.EPERM),
    (NUMBERS["openat"], (3, 0, os.O_TMPFILE, 0o4755), errno.EPERM),
    (NUMBERS["openat"], (3, 0, os.O_DIRECTORY, 0o4755), 0),
    (NUMBERS["openat"], (3, 0, os.O_CREAT, 0o1755), 0),
    (NUMBERS["openat2"], (3, 0), errno.ENOSYS),
    (NUMBERS["utimensat"], (3, 0), 0),
    (NUMBERS["ioctl"], (3, 0x40086602), 0),
]
# Decisions of the same filter on systems without mounts.
MOUNTLESS = [
    (NUMBERS["fchmod"], (3, 0o755), errno.EPERM),
    (NUMBERS["utimensat"], (3, 0), errno.EPERM),
    (NUMBERS["ioctl"], (3, 0x40086602), errno.EPERM),
    (NUMBERS["ioctl"], (3, 0x401C5820), errno.EPERM),
    (NUMBERS["ioctl"], (3, 0x5401), 0),  # TCGETS
    ((0, 63), (1,), 0),
]


@pytest.mark.parametrize("name", seccomp.MACHINES)
@pytest.mark.parametrize(("numbers", "arguments", "error"), DECISIONS)
def test_the_filter_on_every_machine(
    name: str, numbers: tuple[int, int], arguments: tuple[int, ...], error: int | None
) -> None:
    machine = seccomp.MACHINES[name]
    program = seccomp.program(machine, seccomp.FilterChoice(network=False, unix=seccomp._ASK))
    answer = {None: 0x7FC00000, 0: 0x7FFF0000}.get(error, 0x50000 | (error or 0))
    assert judged(program, machine.arch, numbers[machine.column], *arguments) == answer
    assert judged(program, machine.arch ^ 1, numbers[machine.column], *arguments) == 0x80000000
    assert judged(program, machine.arch, numbers[machine.column] | 0x40000000, *arguments) == 0x80000000


@pytest.mark.parametrize("name", seccomp.MACHINES)
@pytest.mark.parametrize(("numbers", "arguments", "error"), MOUNTLESS)
def test_the_filter_where_there_are_no_mounts(
    name: str, numbers: tuple[int, int], arguments: tuple[int, ...], error: int
) -> None:
    machine = seccomp.MACHINES[name]
    program = seccomp.program(machine, seccomp.FilterChoice(network=False, metadata=False))
    answer = 0x50000 | error if error else 0x7FFF0000
    assert judged(program, machine.arch, numbers[machine.column], *arguments) == answer


OF_DAEMON = [
    (NUMBERS["seccomp"], (1, 8), errno.EPERM),
    (NUMBERS["prctl"], (22, 2), errno.EPERM),
    (NUMBERS["prctl"], (4, 0), 0),
    (NUMBERS["utimensat"], (3, 0), errno.EPERM),
    (NUMBERS["ioctl"], (3, 0x5421), 0),
    (NUMBERS["ioctl"], (3, 0x40086604), errno.ENOTTY),
    (NUMBERS["fcntl"], (3, 1024), errno.EPERM),
    (NUMBERS["setsockopt"], (3, 1, 16), errno.EPERM),
    (NUMBERS["setsockopt"], (3, 1, 83), 0),
    (NUMBERS["setsockopt"], (3, 41, 16), 0),
    (NUMBERS["fcntl"], (3, 3), 0),
    (NUMBERS["recvmsg"], (5,), 0),
    (NUMBERS["recvmsg"], (6,), errno.EPERM),
    (NUMBERS["close"], (5,), errno.EPERM),
    (NUMBERS["close"], (6,), 0),
    (NUMBERS["dup3"], (6, 5), errno.EPERM),
    ((seccomp.NEWER, seccomp.NEWER), (), errno.ENOSYS),
    ((seccomp.NEWER + 99, seccomp.NEWER + 99), (), errno.ENOSYS),
    ((0, 63), (1,), 0),
]


@pytest.mark.parametrize("name", seccomp.MACHINES)
@pytest.mark.parametrize(("numbers", "arguments", "error"), OF_DAEMON)
def test_the_filter_of_the_daemon(
    name: str, numbers: tuple[int, int], arguments: tuple[int, ...], error: int
) -> None:
    machine = seccomp.MACHINES[name]
    program = seccomp.guarding(machine, 1, [5])
    answer = 0x50000 | error if error else 0x7FFF0000
    assert judged(program, machine.arch, numbers[machine.column], *arguments) == answer


def test_what_is_newer_than_the_tables_is_refused() -> None:
    # so that a new kernel's calls are of no use to an attacker in control of the daemon
    assert max(number for numbers in NUMBERS.values() for number in numbers) == seccomp.NEWER - 1


FAMILIES = [
    (1, 0),
    (2, 0),
    (16, 0),
    (10, errno.EAFNOSUPPORT),
    (40, errno.EAFNOSUPPORT),
    (17, errno.EAFNOSUPPORT),
]


@pytest.mark.parametrize("name", seccomp.MACHINES)
@pytest.mark.parametrize(("family", "error"), FAMILIES)
def test_sockets_of_some_families_alone(name: str, family: int, error: int) -> None:
    # docs/plugins.md: "it has IPv4 alone"
    machine = seccomp.MACHINES[name]
    program = seccomp.program(machine, seccomp.FilterChoice(True, seccomp._ALLOW, families=(1, 2, 16)))
    answer = 0x50000 | error if error else 0x7FFF0000
    assert judged(program, machine.arch, NUMBERS["socket"][machine.column], family) == answer
    assert judged(program, machine.arch, (0, 63)[machine.column], family) == 0x7FFF0000


# Issue: "The seccomp filter of WebAssembly's hosts is an allow-list (unlisted calls give ENOSYS, never a
# kill)"

UNLISTED: dict[str, Callable[[], object]] = {
    "a program": lambda: os.execv("/bin/true", ["true"]),
    "a signal": lambda: os.kill(os.getpid(), 0),
    "a mount": lambda: syscalls.cover("/tmp", "x"),
    "a trace": lambda: syscalls._syscall(NUMBERS["ptrace"][seccomp.MACHINES[os.uname().machine].column]),
    "a link": lambda: os.symlink("x", f"/tmp/cortexfs-test-{os.getpid()}"),
    "another filter": lambda: seccomp.close(network=True, unix=True),
    "a number of tomorrow": lambda: syscalls._syscall(1000),
}


@pytest.mark.parametrize("what", UNLISTED)
def test_calls_that_are_not_listed_are_not_there(what: str) -> None:
    def work() -> None:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.allow_only(view.WASM_CALLS)
        os.stat("/")
        UNLISTED[what]()

    assert in_child(work) == errno.ENOSYS


def test_a_wasm_plugins_host_has_that_filter() -> None:
    with Forks() as others:
        others.plugin = hostcalls.Plugin("w", "1", "wasm", "m")
        host = others.spawn(hostcalls.Identity(NOBODY, NOBODY, ()))
        attempt = "try: os.execv('/bin/true', ['true'])\nexcept OSError as error: answer = error.errno"
        assert host.ask(attempt) == errno.ENOSYS


# mov eax, 20 (getpid); int 0x80; ret
OLD_CALL = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="of x86 alone")
def test_calls_of_another_architecture_end_the_process() -> None:
    def old() -> None:
        exec(OLD_CALL, {})

    def x32() -> None:
        syscalls._syscall(0x40000000 + 39)

    def filtered(work: Callable[[], None]) -> int:
        def both() -> None:
            seccomp.restrict(network=True, metadata=True)
            work()

        return in_child(both)

    assert filtered(x32) == -signal.SIGSYS
    if in_child(old):
        pytest.skip("this kernel runs no 32-bit programs")
    assert filtered(old) == -signal.SIGSYS
