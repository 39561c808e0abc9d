"""Bad ends of a call: no daemon, a dead daemon, full and closed outputs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from cortexfs.core import wire
from tests.runner import fake
from tests.runner.conftest import ROOT_ONLY

TEXT = {"CTX_OUTPUT": "text"}
JSONL = {"CTX_OUTPUT": "jsonl"}
NO_DAEMON = 'the CortexFS daemon does not answer; start it with "ctx mount"'


def last_words(out: bytes, err: bytes) -> bytes:
    return wire.U32.pack(len(out)) + out + err


def frames(out: bytes) -> list[dict[str, str]]:
    return [json.loads(line) for line in out.splitlines()]


def failed(code: str, message: str) -> list[dict[str, str]]:
    """abi.md 4.20."""
    error = {"type": "error", "code": code, "message": message}
    return [error, {"type": "done", "status": "error", "code": code}]


# abi.md 4.24: a daemon lost during a call
def test_connection_refused(place: fake.Place) -> None:
    place.listener.close()
    ended = place.start().ended()
    assert (ended.status, ended.err) == (69, b"")
    assert frames(ended.out) == failed("EHOSTDOWN", NO_DAEMON)


# abi.md 4.21
def test_connection_refused_in_text_mode(place: fake.Place) -> None:
    place.listener.close()
    ended = place.start(env=TEXT).ended()
    assert ended == fake.Ended(69, b"", f"object: EHOSTDOWN: {NO_DAEMON}\n".encode())


def test_a_terminal_means_text(place: fake.Place) -> None:
    place.listener.close()
    master, slave = pty.openpty()
    try:
        call = place.start(stdout=slave)
        assert call.ended().err.startswith(b"object: EHOSTDOWN: ")
        call = place.start(stdout=slave, env=JSONL)
        assert call.ended().err == b""
        assert os.read(master, 1000).startswith(b'{"type":"error"')
    finally:
        os.close(slave)
        os.close(master)


def test_an_unknown_mode_is_no_mode(place: fake.Place) -> None:
    place.listener.close()
    assert place.start(env={"CTX_OUTPUT": "xml"}).ended().out.startswith(b"{")


def test_a_copy_of_an_object(place: fake.Place) -> None:
    (place.path / wire.SOCKET_NAME).unlink()
    ended = place.start().ended()
    assert ended.status == 127
    assert [frame.get("code") for frame in frames(ended.out)] == ["ENOENT", "ENOENT"]
    ended = place.start(env=TEXT).ended()
    assert (ended.status, ended.out) == (127, b"")
    assert ended.err.startswith(b"object: ENOENT: no CortexFS object is here, and a copy of one")


def test_an_object_that_is_not_there(place: fake.Place) -> None:
    ended = place.start(name=place.path / "gone", env=TEXT).ended()
    assert ended.status == 127
    assert ended.err.startswith(b"gone: ENOENT: ")


def test_a_name_with_control_characters_does_not_reach_the_terminal(place: fake.Place) -> None:
    ended = place.start(name=place.path / "a\x1b[31m\x7f\nb", env=TEXT).ended()
    assert ended.err.startswith(b"a?[31m??b: ENOENT: ")


# abi.md 4.23: 13
@ROOT_ONLY
def test_a_socket_that_may_not_be_used(open_place: fake.Place) -> None:
    (open_place.path / wire.SOCKET_NAME).chmod(0o700)
    ended = open_place.start(user=65534, group=65534, extra_groups=[], env=TEXT).ended()
    assert (ended.status, ended.out) == (13, b"")
    assert ended.err.startswith(b"object: EACCES: you may not use this object")


def test_a_daemon_that_vanishes_before_any_word(place: fake.Place) -> None:
    ended = place.call().vanish()
    assert ended.status == 69
    assert frames(ended.out) == failed("EHOSTDOWN", NO_DAEMON)


def test_a_daemon_that_vanishes_inside_a_line(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.STDOUT, b'{"type":"del')
    lines = call.vanish().out.splitlines()
    assert lines[0] == b'{"type":"del'
    assert frames(b"\n".join(lines[1:])) == failed("EHOSTDOWN", NO_DAEMON)


# wire.py: "LAST_WORDS ... printed if the connection breaks"
def test_last_words(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.LAST_WORDS, last_words(b"first\n", b""))
    call.say(wire.LAST_WORDS, last_words(b"out\n", b"err\n"))
    call.say(wire.STDOUT, b"line\n")
    assert call.vanish() == fake.Ended(69, b"line\nout\n", b"err\n")


@pytest.mark.parametrize(("words", "out"), [(b"bye\n", b"torn\nbye\n"), (b"", b"torn")])
def test_last_words_after_a_torn_line(place: fake.Place, words: bytes, out: bytes) -> None:
    call = place.call()
    call.say(wire.LAST_WORDS, last_words(words, b"err\n"))
    call.say(wire.STDOUT, b"torn")
    assert call.vanish() == fake.Ended(69, out, b"err\n")


def test_last_words_cut_short_do_not_replace_whole_ones(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.LAST_WORDS, last_words(b"whole\n", b""))
    call.peer.sendall(wire.message(wire.LAST_WORDS, last_words(b"half\n", b""))[:-2])
    assert call.vanish() == fake.Ended(69, b"whole\n", b"")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\1\0\0",
        wire.U32.pack(6) + b"short",
        wire.U32.pack(0xFFFFFFFF) + b"x",
        last_words(b"x" * 4093, b""),
        last_words(b"x" * 1000, b"y" * 1_000_000),
    ],
)
def test_last_words_that_do_not_fit_are_forgotten(place: fake.Place, payload: bytes) -> None:
    call = place.call()
    call.say(wire.LAST_WORDS, last_words(b"before\n", b""))
    call.say(wire.LAST_WORDS, payload)
    assert frames(call.vanish().out) == failed("EHOSTDOWN", NO_DAEMON)


def test_the_longest_last_words(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.LAST_WORDS, last_words(b"x" * 4000, b"y" * 92))
    assert call.vanish() == fake.Ended(69, b"x" * 4000, b"y" * 92)


def test_an_exit_forgets_the_last_words(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.LAST_WORDS, last_words(b"out\n", b"err\n"))
    assert call.exit(0) == fake.Ended(0, b"", b"")


# abi.md 4.22
def test_a_closed_stdout_is_sigpipe(place: fake.Place) -> None:
    call = place.call()
    assert call.process.stdout is not None
    call.process.stdout.close()
    call.process.stdout = None
    call.say(wire.STDOUT, b"x")
    assert call.ended() == fake.Ended(-signal.SIGPIPE, b"", b"")
    assert call.hear() is None


# abi.md 4.22: also of a tool that says nothing for long
def test_a_closed_stdout_of_a_silent_run(place: fake.Place) -> None:
    call = place.call()
    assert call.process.stdout is not None
    call.process.stdout.close()
    call.process.stdout = None
    assert call.ended() == fake.Ended(-signal.SIGPIPE, b"", b"")
    assert call.hear() is None


def test_a_reader_that_left_after_the_last_line(place: fake.Place) -> None:
    call = place.call(stdin=subprocess.DEVNULL)
    assert call.process.stdout is not None
    call.process.send_signal(signal.SIGSTOP)  # so the runner finds both at once
    call.process.stdout.close()
    call.process.stdout = None
    call.say(wire.EXIT, b"\x05")
    call.process.send_signal(signal.SIGCONT)
    assert call.ended().status == 5


def test_a_closed_stdout_with_sigpipe_ignored(place: fake.Place) -> None:
    call = place.call(restore_signals=False)
    assert call.process.stdout is not None
    call.process.stdout.close()
    call.process.stdout = None
    call.say(wire.STDOUT, b"x")
    assert call.ended() == fake.Ended(1, b"", b"object: write error: Broken pipe\n")


def test_a_full_disk(place: fake.Place) -> None:
    with open("/dev/full", "wb") as full:
        call = place.call(stdout=full)
    call.say(wire.STDOUT, b"x")
    assert call.ended() == fake.Ended(1, b"", b"object: write error: No space left on device\n")


def test_a_full_stderr_does_not_end_the_run(place: fake.Place) -> None:
    with open("/dev/full", "wb") as full:
        call = place.call(stderr=full)
    call.say(wire.STDERR, b"x")
    call.say(wire.STDOUT, b"result\n")
    assert call.exit(0).out == b"result\n"


def test_usage(runner: Path) -> None:
    done = subprocess.run([runner], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"usage: cortexfs-object-runner OBJECT [ARGUMENT]...\n"
