"""strangers.py: nothing that a peer sends along delays us, with and without the kernel's help.

The descriptors here are TCP sockets with SO_LINGER: closing the last reference takes an hour.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from cortexfs.peers import safe_sockets
from tests.waiting import PATIENCE


@pytest.fixture(params=["refused", "looked for"])
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if the kernel refuses descriptors (Linux 6.16), False if we have to look for them."""
    if request.param == "looked for":
        monkeypatch.setattr(safe_sockets, "REFUSED", False)
        monkeypatch.setattr(safe_sockets, "receive", safe_sockets._receive_looking)
    elif not safe_sockets.REFUSED:
        pytest.skip("needs Linux 6.16")
    return safe_sockets.REFUSED


@pytest.fixture
def pair(known: bool) -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    if known:
        assert safe_sockets.refuse_rights(ours)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def lingering() -> Iterator[socket.socket]:
    """A socket whose last close waits for a peer that never reads; the peer is reset in the end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    client.setblocking(False)
    try:
        while True:
            client.send(bytes(65536))
    except BlockingIOError:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    yield client
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def send(theirs: socket.socket, known: bool, linger: socket.socket, flags: int) -> None:
    """Send the descriptor along, and keep no reference to it."""
    along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", linger.fileno()))]
    if known:
        with pytest.raises(PermissionError):
            theirs.sendmsg([b"x"], along, flags)
        linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        theirs.close()
    else:
        theirs.sendmsg([b"x"], along, flags)
    linger.close()


def in_time(work: Callable[[], None]) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_bytes_arrive(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with pytest.raises(BlockingIOError):
        safe_sockets.receive(ours, 10)
    theirs.sendall(b"one two")
    assert safe_sockets.receive(ours, 4) + safe_sockets.receive(ours, 10) == b"one two"
    theirs.close()
    assert safe_sockets.receive(ours, 10) == b""
    safe_sockets.close(ours)
    safe_sockets.close(ours)
    assert ours.fileno() == -1


@pytest.mark.parametrize("flags", [0, socket.MSG_OOB], ids=["in turn", "out of band"])
def test_receiving_a_descriptor_neither_waits_nor_installs_it(
    pair: tuple[socket.socket, socket.socket], known: bool, lingering: socket.socket, flags: int
) -> None:
    ours, theirs = pair
    theirs.sendall(b"before")
    send(theirs, known, lingering, flags)
    before = len(os.listdir("/proc/self/fd"))

    def read() -> None:
        with pytest.raises(ConnectionAbortedError) if not known else pytest.MonkeyPatch.context():
            while safe_sockets.receive(ours, 100):
                pass
        safe_sockets.close(ours)

    assert in_time(read)
    assert len(os.listdir("/proc/self/fd")) == before - 1


@pytest.mark.parametrize("flags", [0, socket.MSG_OOB], ids=["in turn", "out of band"])
def test_closing_over_an_unread_descriptor_does_not_wait(
    pair: tuple[socket.socket, socket.socket], known: bool, lingering: socket.socket, flags: int
) -> None:
    ours, theirs = pair
    theirs.sendall(b"before")
    send(theirs, known, lingering, flags)
    assert in_time(lambda: safe_sockets.close(ours))
    assert ours.fileno() == -1


@pytest.mark.skipif(not safe_sockets.REFUSED, reason="needs Linux 6.16")
def test_what_a_listener_accepts_takes_no_descriptors() -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(f"\0{__name__}.{os.getpid()}")
        safe_sockets.refuse_rights(listener)
        listener.listen(1)
        client.connect(listener.getsockname())
        with pytest.raises(PermissionError):
            socket.send_fds(client, [b"x"], [0])
