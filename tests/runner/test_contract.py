"""The table in C and the table in Python are the same; and the runner survives untrusted bytes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cortexfs.core import frames, wire
from cortexfs.core.errors import Fault
from cortexfs.run.output import JsonlVoice, TextVoice
from cortexfs.run.runner import farewell
from cortexfs.version import VERSION
from tests.runner import fake
from tests.runner.test_ending import last_words

HEADER_FILE = Path(__file__).parents[2] / "runner" / "wire.h"
SOAK = "CTX_SOAK" in os.environ
KINDS = ["STDIN", "STDOUT", "STDERR", "WANT", "LAST_WORDS", "REPLACE", "EXIT"]


def in_c(name: str) -> str:
    """Returns the value of a #define or an enumerator."""
    found = re.search(rf"\b{name}(?: = |[ ])(\([^)]*\)|'.'|\"[^\"]*\"|\d+)", HEADER_FILE.read_text())
    assert found, name
    return found[1]


# wire.py: "holds the same table in C; a test compares them"
@pytest.mark.parametrize("name", KINDS)
def test_kinds_are_the_same(name: str) -> None:
    assert in_c(name) == f"'{chr(getattr(wire, name))}'"


def test_constants_are_the_same() -> None:
    assert int(in_c("PROTOCOL")) == wire.PROTOCOL
    assert in_c("MAGIC") == f'"{wire.MAGIC.decode()}"'
    assert in_c("SOCKET_NAME") == f'"{wire.SOCKET_NAME}"'
    assert int(in_c("HEADER_SIZE")) == wire.HEADER.size
    assert in_c("MAX_MESSAGE") == f"(1 << {wire.MAX_MESSAGE.bit_length() - 1})"
    flags = ("TTY_STDIN", "TTY_STDOUT", "TTY_STDERR", "PIPE_STDIN")
    assert [int(in_c(name)) for name in flags] == [getattr(wire, name) for name in flags]


# abi.md 1.20
def test_version(runner: Path) -> None:
    said = subprocess.run([runner, "--version"], capture_output=True, check=True)
    expected = f"cortexfs-object-runner {VERSION} protocol {wire.PROTOCOL}\n"
    assert (said.stdout.decode(), said.stderr) == (expected, b"")


def payloads(kind: int, size: int) -> st.SearchStrategy[bytes]:
    return st.builds(wire.message, st.just(kind), st.binary(max_size=size))


# REPLACE is left out, as it runs a program.
messages = st.one_of(
    payloads(wire.STDOUT, 300),
    payloads(wire.STDERR, 300),
    payloads(ord("?"), 300),
    st.builds(lambda n: wire.message(wire.WANT, wire.U32.pack(n)), st.integers(0, 0xFFFFFFFF)),
    st.builds(
        lambda out, err: wire.message(wire.LAST_WORDS, last_words(out, err)),
        st.binary(max_size=50),
        st.binary(max_size=50),
    ),
    payloads(wire.WANT, 6),
    payloads(wire.LAST_WORDS, 9),
    payloads(wire.EXIT, 2),
    st.binary(max_size=20),
)
SIZES = {wire.WANT: (4, 4), wire.EXIT: (1, 1), wire.REPLACE: (1, 8192)}


@dataclass
class Meaning:
    """The meaning of the bytes of a daemon that vanishes after them, worked out in a simple way."""

    status: int = 69
    out: bytes = b""
    err: bytes = b""
    words: bytes = b""
    code: str = ""
    replaces: bool = False

    def lines(self, text: bytes) -> None:
        torn = bool(self.out and text) and not self.out.endswith(b"\n")
        self.out += b"\n" * torn + text

    def told(self, data: bytes) -> Meaning:
        while len(data) >= wire.HEADER.size:
            kind, size = wire.HEADER.unpack_from(data)
            least, most = SIZES.get(kind, (0, wire.MAX_MESSAGE))
            if not least <= size <= most:
                self.status, self.code = 70, "EPROTO"
                return self
            payload, data = data[5 : 5 + size], data[5 + size :]
            if self.heard(kind, payload, len(payload) == size):
                return self
        self.code = "" if self.words else "EHOSTDOWN"
        size = wire.U32.unpack(self.words[:4])[0] if self.words else 0
        self.lines(self.words[4 : 4 + size])
        self.err += self.words[4 + size :]
        return self

    def heard(self, kind: int, payload: bytes, whole: bool) -> bool:
        """Take one message, which may be cut short; returns True after the last message."""
        self.out += payload if kind == wire.STDOUT else b""
        self.err += payload if kind == wire.STDERR else b""
        if whole and kind == wire.LAST_WORDS:
            fits = len(payload) >= 4 and wire.U32.unpack(payload[:4])[0] <= len(payload) - 4
            self.words = payload if fits else b""
        self.replaces |= kind == wire.REPLACE
        if whole and kind == wire.EXIT:
            self.status = payload[0]
        return whole and kind == wire.EXIT


@settings(max_examples=20_000 if SOAK else 80, deadline=None, derandomize=not SOAK)
@given(parts=st.lists(messages, max_size=8), cuts=st.lists(st.integers(1, 40), max_size=6))
def test_whatever_a_daemon_says(
    binaries: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[bytes],
    cuts: list[int],
) -> None:
    hears(binaries["sanitized"], tmp_path_factory.mktemp("said"), b"".join(parts), cuts)


def conversations() -> list[bytes]:
    """Returns the corpus: messages of daemons, from the start of a run to its end."""
    found = []
    for voice in (JsonlVoice("fs.read"), TextVoice("fs.read", terminal_out=True, terminal_err=True)):
        voice.run = "r1"
        delta = voice.say(frames.Delta(run="r1", text="one\ntwo"))
        progress = voice.say(frames.Progress(run="r1", message="half"))
        want = wire.message(wire.WANT, wire.U32.pack(1 << 20))
        failed = voice.end("error", "EIO", "the disk is full"), farewell(Fault("EIO", ""))
        found += [
            voice.start() + delta * 3 + voice.end("ok") + farewell(None),
            voice.start() + want + progress + delta + b"".join(failed),
            voice.start() + delta,  # then the daemon is killed
        ]
    return found


def changed(data: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    for how, at, byte in edits:
        at %= len(data) + 1
        part = data[at : at + byte]
        flipped = bytes(each ^ 1 << byte % 8 for each in part[:1]) + part[1:]
        data = data[:at] + {"flip": flipped, "double": part * 2, "drop": b""}[how] + data[at + byte :]
    return data


edits = st.tuples(st.sampled_from(["flip", "double", "drop"]), st.integers(0, 2000), st.integers(0, 255))


# The exec socket is "fuzzed for minutes (hypothesis, and the runner under ASan/UBSan with a corpus)".
@settings(max_examples=20_000 if SOAK else 40, deadline=None, derandomize=not SOAK)
@given(
    said=st.sampled_from(conversations()),
    changes=st.lists(edits, max_size=5),
    cuts=st.lists(st.integers(1, 40), max_size=6),
)
def test_whatever_becomes_of_what_daemons_say(
    binaries: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    said: bytes,
    changes: list[tuple[str, int, int]],
    cuts: list[int],
) -> None:
    hears(binaries["sanitized"], tmp_path_factory.mktemp("said"), changed(said, changes), cuts)


def hears(runner: Path, folder: Path, data: bytes, cuts: list[int]) -> None:
    """Check that the runner acts on these bytes as they mean, in whatever pieces they arrive."""
    meaning = Meaning().told(data)
    assume(not meaning.replaces)
    with fake.place(folder, runner) as place:
        call = place.call()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the runner may have exited by now
            for cut in cuts:
                call.peer.send(data[:cut])
                data = data[cut:]
            call.peer.sendall(data)
        ended = call.vanish()
    shutil.rmtree(folder)
    assert (ended.status, ended.err) == (meaning.status, meaning.err)
    if meaning.code:
        at = ended.out.rindex(f'{{"type":"error","code":"{meaning.code}"'.encode())
        meaning.lines(ended.out[at:])
    assert ended.out == meaning.out


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed; the sanitizers ran")
def test_valgrind_finds_nothing(binaries: dict[str, Path], tmp_path: Path) -> None:
    checked = ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full"]
    with fake.place(tmp_path, binaries["debug"]) as place:
        call = place.call(*["x" * 50_000] * 3, prefix=checked, stdin=subprocess.PIPE, env={"PATH": "/bin"})
        call.want(10)
        assert call.process.stdin is not None
        os.write(call.process.stdin.fileno(), b"input")
        assert call.hear() == (wire.STDIN, b"input")
        call.say(wire.LAST_WORDS, last_words(b"out\n", b"err\n"))
        call.say(wire.STDOUT, b"x" * 100_000)
        assert call.process.stdout is not None
        assert os.read(call.process.stdout.fileno(), 1) == b"x"
        call.process.send_signal(signal.SIGINT)
        assert call.hear() is None
        ended = call.vanish()
    assert (ended.status, ended.err) == (69, b"err\n")
    assert ended.out == b"x" * 99_999 + b"\nout\n"
