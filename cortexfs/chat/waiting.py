"""The line above the input line that says what a chat waits for.

This file must never know terminals.
"""

from __future__ import annotations

import time

from cortexfs.chat.state import Talk

SPIN = 0.16  # seconds between two pictures of the spinner
SPINNER, ASCII_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"


def line(talk: Talk, since: float, is_lost: bool, encoding: str) -> str:
    """Returns the line. It is empty if the chat waits for nothing, or only for the person."""
    if talk.question or talk.forms.first or not (talk.busy or is_lost):
        return ""
    seconds = int(time.monotonic() - since)
    frames = SPINNER if encoding.lower() in ("utf-8", "utf8") else ASCII_SPINNER
    mark = frames[int(time.monotonic() / SPIN) % len(frames)]
    behind = f", {talk.waiting} more to send" if talk.waiting else ""
    if is_lost:
        return f"{mark} the connection is lost; trying again ({seconds} s{behind})"
    doing = "cancelling" if talk.cancelling else talk.doing or "waiting"
    return f"{mark} {doing} ({seconds} s{behind}, Ctrl-C cancels)"
