"""`ctx chat` on a terminal that goes away."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess

from tests.mounted.ctx_mount import Ctx
from tests.mounted.test_chat import environ
from tests.waiting import PATIENCE

QUIET = 0.3  # seconds; the chat waits up to 1 s for the place of the cursor, and then draws its greeting


def test_a_chat_that_was_ended_when_its_terminal_goes_away(ctx: Ctx) -> None:
    # issue: "nothing left behind": the chat waited for its last drawing, and took all of a core
    ours, theirs = pty.openpty()
    words = [str(ctx.python.parent / "ctx"), "chat", "debug/echo", "--scope", "temp"]
    chat = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environ(ctx, TERM="xterm"))
    try:
        os.close(theirs)
        said = b""
        while b"\x1b[6n" not in said or select.select([ours], [], [], QUIET)[0]:
            said += os.read(ours, 4096)
        chat.terminate()
        while b"\x1b[?2004l" not in said:  # it leaves its mode for input
            said += os.read(ours, 4096)
        os.close(ours)
        assert chat.wait(PATIENCE) in (1, 128 + signal.SIGTERM)
    finally:
        chat.kill()
        chat.wait(PATIENCE)
