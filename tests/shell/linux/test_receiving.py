"""Descriptors that come with a message, together with the kernel's report of its sender."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from cortexfs.linux import syscalls


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        yield ours, theirs


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_as_many_as_there_is_room_for_come_whole(
    pair: tuple[socket.socket, socket.socket], count: int
) -> None:
    # An odd number fills its room without the padding that glibc 2.35 looks for (Ubuntu 22.04).
    ours, theirs = pair
    socket.send_fds(ours, [b"x"], [0] * count)
    data, rights, flags, sender = syscalls.receive_signed(theirs, 1, count)
    assert (data, len(rights), flags & socket.MSG_CTRUNC) == (b"x", count, 0)
    assert sender == (os.getpid(), os.getuid())
    for each in rights:
        assert not os.get_inheritable(each)
        os.close(each)


@pytest.mark.parametrize(("most", "sent"), [(0, 1), (1, 2), (1, 3), (2, 3), (3, 4)])
def test_a_surplus_is_closed_and_told(
    pair: tuple[socket.socket, socket.socket], most: int, sent: int
) -> None:
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(ours, [b"x"], [0] * sent)
    _, rights, flags, _ = syscalls.receive_signed(theirs, 1, most)
    assert (len(rights), bool(flags & socket.MSG_CTRUNC)) == (most, True)
    for each in rights:
        os.close(each)
    assert len(os.listdir("/proc/self/fd")) == before
