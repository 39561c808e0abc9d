"""A real terminal for tests: tmux with its own socket, size and shell.

Tests press keys and wait for text that a person would see. No test sleeps, and each wait has a deadline."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.mounted.ctx_mount import wait_gone
from tests.waiting import until

PROMPT = "$ "


class Screen:
    """One window with a shell in it."""

    def __init__(self, name: str, environ: Mapping[str, str], cwd: Path, size: tuple[int, int]) -> None:
        self._tmux = ["tmux", "-u", "-L", name, "-f", os.devnull]
        self._environ = {
            **environ,
            "PS1": PROMPT,
            "TERM": "xterm-256color",
            "SHELL": "/bin/sh",
            "TMUX_TMPDIR": str(cwd),
        }
        width, height = size
        shell = ["env", f"PS1={PROMPT}", "bash", "--norc", "--noprofile", "--noediting"]
        self._run("new-session", "-d", "-x", str(width), "-y", str(height), "-c", str(cwd), *shell)
        self._run("set-option", "-g", "history-limit", "20000")
        self.wait(PROMPT.strip())

    def _run(self, *words: str, input: str | None = None) -> str:
        done = subprocess.run(
            [*self._tmux, *words], env=self._environ, input=input, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        server = int(self._run("display-message", "-p", "#{pid}"))
        self._run("kill-server")
        assert wait_gone(server)

    # -- input of a person

    def keys(self, *keys: str) -> None:
        self._run("send-keys", *keys)

    def type(self, text: str) -> None:
        """Type a line and press Enter."""
        self._run("send-keys", "-l", "--", text)
        self.keys("Enter")

    def paste(self, text: str) -> None:
        """Paste text as a terminal does while bracketed paste is on."""
        self._run("load-buffer", "-", input=text)
        self._run("paste-buffer", "-p", "-r")

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    # -- the screen as a person sees it

    @property
    def text(self) -> str:
        return self._run("capture-pane", "-p")

    @property
    def coloured(self) -> str:
        """The text with the sequences that colour it."""
        return self._run("capture-pane", "-p", "-e")

    @property
    def past(self) -> str:
        """The text with the lines that have scrolled away. Lines that the terminal wrapped are joined."""
        return self._run("capture-pane", "-p", "-J", "-S", "-")

    @property
    def last(self) -> str:
        """The last line that is not empty."""
        return next((line for line in reversed(self.text.splitlines()) if line.strip()), "")

    def wait(self, text: str, count: int = 1) -> None:
        """Wait until `text` is on the screen at least `count` times."""
        until(lambda: self.text, lambda seen: seen.count(text) >= count)

    def wait_gone(self, text: str) -> None:
        until(lambda: self.text, lambda seen: text not in seen)

    def wait_last(self, line: str) -> None:
        until(lambda: self.last.rstrip(), line.__eq__)


@contextlib.contextmanager
def screen(environ: Mapping[str, str], cwd: Path, size: tuple[int, int] = (80, 24)) -> Iterator[Screen]:
    shown = Screen(f"ctx-test-{os.getpid()}", environ, cwd, size)
    try:
        yield shown
    finally:
        shown.close()
