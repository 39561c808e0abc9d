"""Deno's messages, in words that help the plugin's author or its caller.

Rules: no sentence names a flag that is not ours, or a place where only the host has the plugin's files.
This file must never know when Deno says it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_SYNTAX = re.compile(r"SyntaxError: (.+?)\n.*?\bat file://(\S+?):(\d+):(\d+)", re.DOTALL)
# Errors that the language itself throws are bugs, where `throw new Error` is an answer (abi.md 4.62).
_BUG = re.compile(r"(Type|Reference|Range|Syntax|URI)Error\b")
_FLAG = re.compile(r", run again with the --allow-(\w+) flag")
# By the flag that Deno would need.
_CAPABILITIES = {
    "read": "it takes fs:read in the capabilities of its manifest",
    "write": "it takes fs:write in the capabilities of its manifest",
    "run": "it takes shell:run in the capabilities of its manifest",
    "net": "it takes network:fetch in the capabilities of its manifest",
}
# The same if the plugin has such a capability: the place is outside of it.
_LIMITS = {
    "read": "it may read only below the caller's directory",
    "write": "it may write only below the caller's directory",
    "net": "a private address takes: ctx plugin permissions NAME --private NETWORK",
}
_ADD = re.compile(r"\s*hint: If you want to use [^`]*`deno add (\S+?)`(?: or `deno add (\S+?)`)?")
_NONE = "it takes a permission that no capability gives"


def in_our_words(message: str, granted: Collection[str] = ()) -> str:
    """Returns the message with the missing capability in place of Deno's flag, and with the import to write
    in place of a command. Of a capability whose flag is in `granted`, the message has the limit."""
    known = _CAPABILITIES | {flag: limit for flag, limit in _LIMITS.items() if flag in granted}
    message = _ADD.sub(lambda found: f"; import it as {' or '.join(filter(None, found.groups()))}", message)
    return _FLAG.sub(lambda flag: f"; {known.get(flag[1], _NONE)}", message)


def syntax_error(message: str, folder: str) -> str:
    """Returns where a file of this folder is no JavaScript or TypeScript, and why; "" for any other error."""
    found = _SYNTAX.search(message)
    if not found or not found[2].startswith(f"{folder}/"):
        return ""
    why, path, line, column = found.groups()
    return f"{path.removeprefix(f'{folder}/')}:{line}:{column}: it cannot be read: {why}"


def steps(stack: str, folder: str) -> list[str]:
    """Returns the first line of a stack and its steps in files of this folder; empty if there are none."""
    first, *lines = stack.split("\n") if stack else [""]
    own = [line.strip() for line in lines if f"file://{folder}/" in line]
    return [first, *own] if own else []


def bug(stack: str, folder: str) -> str:
    """Returns the end of the message of an error that is a bug: its place."""
    return place(stack, folder) if _BUG.match(stack) else ""


def place(stack: str, folder: str) -> str:
    """Returns the innermost file and line of this folder, as the end of a message."""
    found = re.search(rf"file://{re.escape(folder)}/(\S+?):(\d+):\d+", "\n".join(steps(stack, folder)[1:]))
    return f" ({found[1]}, line {found[2]})" if found else ""
