"""The progress line that a long command shows on a terminal, which is a pty of the test."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]
# Programs wait until their own line is painted, so that the tests do not depend on time.
SHOWS = """
import signal, sys
from cortexfs.cli import output, progress
progress.DELAY = progress.TICK = 0.001
painted = progress._Line.paint
count = 0
def counted(line, *_):
    global count
    count += 1
    painted(line)
progress._Line.paint = counted
def wait():
    seen = count
    while count < seen + 2:
        signal.pause()
"""


def shown(source: str, **environ: str) -> str:
    """Returns the whole output of a program to its terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SHOWS + source]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROJECT), "TERM": "xterm"} | environ
    with subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as program:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # the program has ended
            pass
        finally:
            os.close(ours)
    assert program.returncode == 0, said
    return said.decode()


def screen(said: str) -> list[str]:
    """Returns the lines of this output that are left on the screen."""
    lines = [""]
    for each in said.replace("\r\n", "\n").split("\n"):
        kept = each.rpartition("\x1b[K")[2] if each.endswith("\x1b[K") else each.rpartition("\r\x1b[K")[2]
        lines[-1] = kept
        lines.append("")
    return [line for line in lines if line]


def test_a_line_says_what_goes_on_and_is_gone_afterwards() -> None:
    said = shown(
        "with progress.shown('one') as now:\n    wait()\n    now('two')\n    wait()\noutput.say('done')\n"
    )
    assert "\rone (0 s)\x1b[K" in said
    assert "\rtwo (0 s)\x1b[K" in said
    assert screen(said) == ["done"]


def test_what_is_said_meanwhile_has_a_line_of_its_own() -> None:
    said = shown("with progress.shown('one'):\n    wait()\n    output.say('a sentence')\n    wait()\n")
    assert screen(said) == ["a sentence"]


def test_one_within_another_is_that_line() -> None:
    said = shown("with progress.shown('one'):\n    with progress.shown('two'):\n        wait()\n    wait()\n")
    assert said.index("\rtwo (") < said.rindex("\rone (")
    assert screen(said) == []


def test_it_goes_with_an_interrupt() -> None:
    said = shown(
        "try:\n"
        "    with progress.shown('one'):\n"
        "        wait()\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL\n"
        "    output.say('interrupted')\n"
    )
    assert screen(said) == ["interrupted"]


def test_a_line_is_as_short_as_the_terminal_and_moves_no_cursor() -> None:
    said = shown("with progress.shown('\\x1b[2J' + 'x' * 500):\n    wait()\n")
    assert "\x1b[2J" not in said
    assert all(len(line) <= 80 for line in said.replace("\x1b[K", "").split("\r"))


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"TERM": ""}, {"NO_COLOR": "1"}])
def test_a_terminal_that_clears_no_line_is_told_once(environ: dict[str, str]) -> None:
    # commands.md: "with `TERM=dumb` or `NO_COLOR` once, as a line that stays"
    wait = "    time.sleep(0.1)\n"
    source = (
        f"import time\nwith progress.shown('one') as now:\n{wait}    now('two')\n{wait}output.say('done')"
    )
    assert shown(source, **environ) == "one\r\ndone\r\n"


def test_nobody_else_gets_one() -> None:
    source = "with progress.shown('one'):\n    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)\n"
    env = {"PYTHONPATH": str(PROJECT), "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", SHOWS + source], env=env, capture_output=True, check=True)
    assert done.stderr == done.stdout == b""
