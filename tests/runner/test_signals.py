"""abi.md 4.31."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from cortexfs.core import wire
from tests.runner import fake
from tests.waiting import PATIENCE


def ignoring(name: str) -> list[str]:
    return ["sh", "-c", f'trap "" {name}; exec "$@"', "sh"]


def connected(place: fake.Place, **options: object) -> fake.Call:
    """Returns a call whose runner is past its greeting."""
    call = place.call(**options)
    call.seen(b"ready\n")
    return call


def wait_until_connecting(pid: int) -> None:
    """Wait until the process blocks in connect(2)."""
    deadline = time.monotonic() + PATIENCE
    stat = Path(f"/proc/{pid}/wchan")
    while "unix_wait_for_peer" not in stat.read_text():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_first_sigint_half_closes_and_waits_for_the_end(place: fake.Place) -> None:
    call = connected(place)
    call.process.send_signal(signal.SIGINT)
    assert call.hear() is None
    call.say(wire.STDOUT, b"last frame\n")
    assert call.exit(130) == fake.Ended(130, b"last frame\n", b"")


def test_an_exit_after_sigint_is_honoured(place: fake.Place) -> None:
    call = connected(place)
    call.process.send_signal(signal.SIGINT)
    assert call.hear() is None
    assert call.exit(0).status == 0


def test_second_sigint_exits_at_once(place: fake.Place) -> None:
    call = connected(place)
    call.process.send_signal(signal.SIGINT)
    assert call.hear() is None
    call.process.send_signal(signal.SIGINT)
    assert call.ended().status == 130


def test_sigint_while_input_is_being_sent(place: fake.Place) -> None:
    source = os.open("/dev/zero", os.O_RDONLY)
    call = connected(place, stdin=source)
    os.close(source)
    call.want(0xFFFFFFFF)
    assert call.hear() is not None
    call.process.send_signal(signal.SIGINT)
    while call.hear():
        pass
    call.say(wire.STDOUT, b"stopped\n")
    assert call.exit(130) == fake.Ended(130, b"stopped\n", b"")


def test_sigint_while_stdout_is_full_loses_nothing(place: fake.Place) -> None:
    call = connected(place)
    data = os.urandom(150_000)  # more than the pipe's 64 KiB, and less than socket and pipe together hold
    call.say(wire.STDOUT, data)
    call.process.send_signal(signal.SIGINT)
    assert call.hear() is None
    assert call.exit(130) == fake.Ended(130, data, b"")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_and_sighup_cancel_and_exit(place: fake.Place, number: int, status: int) -> None:
    call = connected(place)
    call.process.send_signal(number)
    assert call.hear() is None
    assert call.ended() == fake.Ended(status, b"", b"")


def test_sigterm_after_sigint(place: fake.Place) -> None:
    call = connected(place)
    call.process.send_signal(signal.SIGINT)
    assert call.hear() is None
    call.process.send_signal(signal.SIGTERM)
    assert call.ended().status == 143


def test_sigkill_ends_the_connection(place: fake.Place) -> None:
    call = connected(place)
    call.process.kill()
    assert call.hear() is None


# nohup and background jobs of scripts ignore signals, and ignored dispositions are inherited: signal(7)
@pytest.mark.parametrize(
    ("name", "number"), [("INT", signal.SIGINT), ("HUP", signal.SIGHUP), ("TERM", signal.SIGTERM)]
)
def test_signals_ignored_on_entry_stay_ignored(place: fake.Place, name: str, number: int) -> None:
    call = connected(place, prefix=ignoring(name))
    for _ in range(3):
        call.process.send_signal(number)
    call.seen(b"still here\n")
    assert call.exit(0) == fake.Ended(0, b"", b"")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_before_the_connection_exits_at_once(
    runner: Path, tmp_path: Path, number: int, status: int
) -> None:
    with fake.place(tmp_path, runner) as place:
        place.listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(tmp_path / wire.SOCKET_NAME))  # fills the backlog
            call = place.start()
            wait_until_connecting(call.process.pid)
            call.process.send_signal(number)
            assert call.ended() == fake.Ended(status, b"", b"")


# Nobody reads the greeting, so the socket's buffer is full and the runner waits in sendmsg(2).
def test_sigint_inside_the_greeting_exits_at_once(place: fake.Place) -> None:
    call = place.start(*["x" * 100_000] * 12)
    call.accept(place.listener)
    call.peer.recv(1)
    call.process.send_signal(signal.SIGINT)
    assert call.ended().status == 130


def test_stopping_and_continuing_changes_nothing(place: fake.Place) -> None:
    call = connected(place)
    call.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, call.process.pid, os.WSTOPPED | os.WNOWAIT)
    call.process.send_signal(signal.SIGCONT)
    call.seen(b"back\n")
    assert call.exit(0).status == 0
