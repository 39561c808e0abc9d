"""`ctx` with any streams and any bytes: closed, full, without a reader, and not UTF-8."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shell.cli import test_cli

root = test_cli.root


def test_an_argument_that_is_not_utf_8_is_named(root: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cortexfs.cli.main", "ask", "--save", "x", "-s", b"caf\xe9"],
        env={"CTX_ROOT": str(root), "CTX_CONFIG": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    said = b"ctx ask: the argument 'caf\\udce9' is not UTF-8\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", said)


def test_a_closed_pipe_is_no_news(root: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "cortexfs.cli.main", "status"],
        env={"CTX_ROOT": str(root)},
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    # A shell reports the same of cat: 128 + SIGPIPE.
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("closed", "words", "status"),
    [("<&-", "chat openai/gpt-5", 0), ("2>&-", "verison", 2)],
)
def test_a_stream_that_the_caller_closed_is_nowhere(closed: str, words: str, status: int, root: Path) -> None:
    assert redirected(words, closed, root) == (status, b"", b"")


# abi.md 8.57; what is longer than a buffer fails while the command writes
@pytest.mark.parametrize("words", ["status", "--help", "ls --json", "completion bash"])
@pytest.mark.parametrize(
    ("away", "why"), [(">&-", b"Bad file descriptor"), (">/dev/full", b"No space left on device")]
)
def test_output_that_nothing_takes_is_an_error(away: str, why: bytes, words: str, root: Path) -> None:
    command = b"ctx" if words.startswith("-") else b"ctx " + words.split()[0].encode()
    said = command + b": standard output: " + why + b"\n"
    assert redirected(words, away, root) == (1, b"", said)


@pytest.mark.parametrize("words", ["status", "ls --json"])
def test_output_of_an_unbuffered_python_is_named_too(words: str, root: Path) -> None:
    # abi.md 8.57
    said = f"ctx {words.split()[0]}: standard output: No space left on device\n"
    assert redirected(words, ">/dev/full", root, PYTHONUNBUFFERED="1") == (1, b"", said.encode())


@pytest.mark.parametrize("away", ["2>/dev/full", "2>&1 | true"])
def test_an_error_that_nobody_can_read_has_its_status(away: str, root: Path) -> None:
    # abi.md 8.57
    words = f"exec 3>&1; (sleep 0.1; {shlex.quote(sys.executable)} -m cortexfs.cli.main verison; echo $? >&3)"
    done = subprocess.run(
        ["sh", "-c", f"{words} {away}"], env={"CTX_ROOT": str(root)}, capture_output=True, check=False
    )
    assert done.stdout == b"2\n"


def redirected(words: str, how: str, root: Path, **environ: str) -> tuple[int, bytes, bytes]:
    command = f"exec {shlex.quote(sys.executable)} -m cortexfs.cli.main {words} {how}"
    done = subprocess.run(
        ["sh", "-c", command], env={"CTX_ROOT": str(root), **environ}, capture_output=True, check=False
    )
    return done.returncode, done.stdout, done.stderr
