"""The runner copies bytes: standard input, output and error, in any state of theirs."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from cortexfs.core import wire
from tests.runner import fake
from tests.waiting import PATIENCE

CLOSED = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh"]


def test_output_error_and_status(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.STDOUT, b"one\n")
    call.say(wire.STDERR, b"two\n")
    call.say(wire.STDOUT)
    call.say(wire.STDOUT, b"three")
    assert call.exit(13) == fake.Ended(13, b"one\nthree", b"two\n")


@pytest.mark.parametrize("status", [0, 1, 2, 69, 70, 130, 255])
def test_any_exit_status(place: fake.Place, status: int) -> None:
    assert place.call().exit(status).status == status


def test_messages_byte_by_byte(place: fake.Place) -> None:
    call = place.call()
    data = wire.message(wire.STDOUT, b"abc") + wire.message(wire.LAST_WORDS, b"\0\0\0\0never")
    data += wire.message(wire.STDERR, b"def") + wire.message(wire.EXIT, b"\7")
    for byte in data:
        call.peer.send(bytes([byte]))
    assert call.ended() == fake.Ended(7, b"abc", b"def")


def test_many_messages_at_once(place: fake.Place) -> None:
    call = place.call()
    lines = [f"{i}\n".encode() for i in range(5000)]
    call.peer.sendall(
        b"".join(wire.message(wire.STDOUT, line) for line in lines) + wire.message(wire.EXIT, b"\0")
    )
    assert call.ended().out == b"".join(lines)


def test_the_largest_message(place: fake.Place, tmp_path: Path) -> None:
    payload = os.urandom(wire.MAX_MESSAGE)
    with open(tmp_path / "out", "wb") as out:
        call = place.call(stdout=out)
    call.say(wire.STDOUT, payload)
    assert call.exit().status == 0
    assert (tmp_path / "out").read_bytes() == payload


@pytest.mark.parametrize("size", [wire.MAX_MESSAGE + 1, 0xFFFFFFFF])
def test_a_message_over_the_limit_is_a_broken_protocol(place: fake.Place, size: int) -> None:
    call = place.call(env={"CTX_OUTPUT": "text"})
    call.peer.sendall(wire.HEADER.pack(wire.STDOUT, size) + b"x")
    ended = call.ended()
    assert (ended.status, ended.out) == (70, b"")
    assert ended.err == b'object: EPROTO: the daemon sent a message of over 1 MiB; run "ctx restart"\n'


@pytest.mark.parametrize(
    "message",
    [
        wire.message(wire.WANT, b"\1\0\0"),
        wire.message(wire.WANT, b"\1\0\0\0\0"),
        wire.message(wire.EXIT),
        wire.message(wire.EXIT, b"\0\0"),
        wire.message(wire.REPLACE),
        wire.message(wire.REPLACE, b"/bin/true"),
        wire.message(wire.REPLACE, b"/bin/true\0" + b"x\0" * 64),
        wire.message(wire.REPLACE, b"/bin/true\0" + b"x" * 8192 + b"\0"),
    ],
)
def test_messages_of_an_impossible_form(place: fake.Place, message: bytes) -> None:
    call = place.call()
    call.peer.sendall(message)
    ended = call.ended()
    assert ended.status == 70
    assert ended.out.startswith(b'{"type":"error","code":"EPROTO","message":"')
    assert ended.out.endswith(b'"}\n{"type":"done","status":"error","code":"EPROTO"}\n')


def test_unknown_kinds_are_skipped(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.STDOUT, b"a")
    call.say(ord("?"), os.urandom(100_000))
    call.say(0)
    call.say(wire.STDOUT, b"b")
    assert call.exit() == fake.Ended(0, b"ab", b"")


# abi.md 4.2
def test_standard_input_is_left_alone_until_it_is_wanted(place: fake.Place, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\ntwo\n")
    with open(tmp_path / "lines", "rb") as lines:
        call = place.call(stdin=lines)
        call.seen(b"x")
        assert call.exit().status == 0
        assert os.lseek(lines.fileno(), 0, os.SEEK_CUR) == 0


# wire.py: "STDIN is sent only after WANT, with at most as many bytes as WANT allows"
def test_credit_is_never_exceeded(place: fake.Place, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"0123456789")
    with open(tmp_path / "lines", "rb") as lines:
        call = place.call(stdin=lines)
        call.want(4)
        assert call.hear() == (wire.STDIN, b"0123")
        call.seen(b"x")
        assert os.lseek(lines.fileno(), 0, os.SEEK_CUR) == 4
        call.want(100)
        assert call.hear() == (wire.STDIN, b"456789")
        assert call.hear() == (wire.STDIN, b"")
        call.want(100)
        call.exit()
        assert call.hear() is None


def test_a_large_input_arrives_whole(place: fake.Place, tmp_path: Path) -> None:
    data = os.urandom(3_000_001)
    (tmp_path / "in").write_bytes(data)
    with open(tmp_path / "in", "rb") as source:
        call = place.call(stdin=source)
    call.want(0xFFFFFFFF)
    call.want(0xFFFFFFFF)
    received = bytearray()
    while (message := call.hear()) and message[1]:
        received += message[1]
    assert received == data
    assert message == (wire.STDIN, b"")


def test_input_comes_as_it_is_typed(place: fake.Place) -> None:
    call = place.call(stdin=subprocess.PIPE)
    assert call.process.stdin is not None
    call.want(1000)
    for line in (b"one\n", b"two\n"):
        os.write(call.process.stdin.fileno(), line)
        assert call.hear() == (wire.STDIN, line)
    call.process.stdin.close()
    call.process.stdin = None
    assert call.hear() == (wire.STDIN, b"")
    assert call.exit().status == 0


def test_what_cannot_be_read_has_ended(place: fake.Place, tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        call = place.call(stdin=directory)
    finally:
        os.close(directory)
    call.want(10)
    assert call.hear() == (wire.STDIN, b"")


def test_an_input_open_for_writing_only_has_ended(place: fake.Place, tmp_path: Path) -> None:
    with open(tmp_path / "w", "wb") as write_only:
        call = place.call(stdin=write_only)
    call.want(10)
    assert call.hear() == (wire.STDIN, b"")


def test_closed_descriptors_become_dev_null(place: fake.Place) -> None:
    call = place.call("x", prefix=CLOSED)
    call.want(10)
    assert call.hear() == (wire.STDIN, b"")
    call.say(wire.STDERR, b"lost")
    assert call.exit(4) == fake.Ended(4, b"", b"")


@pytest.mark.parametrize("number", ["0", "2"])
def test_one_closed_descriptor(place: fake.Place, number: str) -> None:
    call = place.call(prefix=["sh", "-c", f'exec "$@" {number}<&-', "sh"])
    call.say(wire.STDOUT, b"out")
    call.say(wire.STDERR, b"err")
    assert call.exit(4) == fake.Ended(4, b"out", b"" if number == "2" else b"err")


def test_output_that_a_closed_descriptor_loses_is_an_error(place: fake.Place) -> None:
    # abi.md 8.57
    closed = ["sh", "-c", 'exec "$@" >&-', "sh"]
    silent = place.call(prefix=closed)
    assert silent.exit(0) == fake.Ended(0, b"", b"")
    call = place.call(prefix=closed)
    call.say(wire.STDOUT, b"lost")
    assert call.ended() == fake.Ended(1, b"", b"object: write error: Bad file descriptor\n")


# O_NONBLOCK belongs to the open file, so any process that shares the file may have set it.
def test_nonblocking_output(place: fake.Place) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    call = place.call(stdout=writer, stderr=writer)
    os.close(writer)
    data = os.urandom(700_000)
    call.peer.settimeout(None)
    sent = 0
    received = bytearray()
    whole = wire.message(wire.STDOUT, data[:350_000]) + wire.message(wire.STDERR, data[350_000:])
    call.peer.setblocking(False)
    while len(received) < len(data):
        if sent < len(whole):
            try:
                sent += call.peer.send(whole[sent:])
                continue
            except BlockingIOError:
                pass
        received += os.read(reader, 1 << 16)
    os.close(reader)
    call.peer.setblocking(True)
    assert received == data
    assert call.exit().status == 0


def test_nonblocking_input(place: fake.Place) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    call = place.call(stdin=reader)
    os.close(reader)
    call.want(100)
    call.seen(b"nothing there yet")
    os.write(writer, b"now")
    assert call.hear() == (wire.STDIN, b"now")
    os.close(writer)
    assert call.hear() == (wire.STDIN, b"")
    assert call.exit().status == 0


# Two peers that both only write must not wait for each other for ever.
def test_output_flows_while_the_daemon_takes_no_input(place: fake.Place, tmp_path: Path) -> None:
    size = 2_000_000
    with open(tmp_path / "in", "wb") as source:
        source.truncate(size)
    with open(tmp_path / "in", "rb") as source, open(tmp_path / "out", "wb") as out:
        call = place.call(stdin=source, stdout=out)
    call.want(size + 1)
    for _ in range(8):
        call.say(wire.STDOUT, b"x" * (1 << 18))
    received = 0
    while (message := call.hear()) and message[1]:
        received += len(message[1])
    assert received == size
    assert call.exit().status == 0
    assert (tmp_path / "out").stat().st_size == 8 << 18


def test_a_daemon_that_reads_no_more_is_still_heard(place: fake.Place, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 1_000_000)
    with open(tmp_path / "in", "rb") as source:
        call = place.call(stdin=source)
        call.peer.shutdown(socket.SHUT_RD)
        call.want(1_000_000)
        for _ in range(5):
            call.seen(b"enough\n")
        assert call.exit(0).status == 0
        assert os.lseek(source.fileno(), 0, os.SEEK_CUR) <= 1 << 16  # the rest is left for other readers


# wire.py: a greeting that is refused is answered like any other call
def test_an_answer_before_the_greeting_was_read(place: fake.Place) -> None:
    call = place.start(*["x" * 100_000] * 12)
    call.accept(place.listener)
    call.peer.sendall(wire.message(wire.STDERR, b"too much\n") + wire.message(wire.EXIT, b"\2"))
    call.peer.shutdown(socket.SHUT_RDWR)
    assert call.ended() == fake.Ended(2, b"", b"too much\n")


# wire.py: "REPLACE ... become this program (the interactive client)"
def test_replace_becomes_a_program(place: fake.Place) -> None:
    call = place.call(stdin=subprocess.PIPE, env={"HOME": "/h"}, umask=0o27)
    cat, sh = shutil.which("cat"), shutil.which("sh")
    call.say(wire.REPLACE, f"{sh}\0-c\0echo $HOME; umask; exec {cat}\0".encode())
    out, err = call.process.communicate(b"typed\n", timeout=PATIENCE)
    assert (out, err, call.process.returncode) == (b"/h\n0027\ntyped\n", b"", 0)
    assert call.hear() is None


def test_replace_passes_the_standard_descriptors_and_no_other(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.REPLACE, f"{shutil.which('ls')}\0/proc/self/fd\0".encode())
    assert call.ended().out.split() == [b"0", b"1", b"2", b"3"]  # 3 is the directory that ls reads


def test_replace_with_the_most_arguments(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.REPLACE, f"{shutil.which('echo')}\0".encode() + b"x\0" * 63)
    assert call.ended().out.split() == [b"x"] * 63


def test_replace_by_nothing(place: fake.Place) -> None:
    call = place.call()
    call.say(wire.REPLACE, b"/no/such/program\0")
    ended = call.ended()
    assert (ended.status, ended.out) == (70, b"")
    assert ended.err == f"object: /no/such/program: {os.strerror(errno.ENOENT)}\n".encode()
