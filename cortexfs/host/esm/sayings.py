"""The sentences of Deno, in words that help whoever wrote the plugin or calls it.

Rules: no sentence names a flag that is not ours, or a place where only the host has the plugin's files.
This file must never know when Deno says it.
"""

from __future__ import annotations

import re

_SYNTAX = re.compile(r"SyntaxError: (.+?)\n.*?\bat file://(\S+?):(\d+):(\d+)", re.DOTALL)
_FLAG = re.compile(r", run again with the --allow-(\w+) flag")
# By the flag that Deno would have.
_CAPABILITIES = {
    "read": "fs:read in the capabilities of its manifest",
    "write": "fs:write in the capabilities of its manifest",
    "run": "shell:run in the capabilities of its manifest",
    "net": "network:fetch in the capabilities of its manifest",
}
_ADD = re.compile(r"\s*hint: If you want to use [^`]*`deno add (\S+?)`(?: or `deno add (\S+?)`)?")
_NONE = "something else: no capability gives that"


def in_our_words(said: str) -> str:
    """Returns it with the capability that is missing in the place of Deno's flag, and with what a module has
    to write in the place of a command."""
    said = _ADD.sub(lambda found: f"; import it as {' or '.join(filter(None, found.groups()))}", said)
    return _FLAG.sub(lambda flag: f"; it takes {_CAPABILITIES.get(flag[1], _NONE)}", said)


def syntax_error(said: str, folder: str) -> str:
    """Returns where a file of this folder is no JavaScript or TypeScript, and why; "" for anything else."""
    found = _SYNTAX.search(said)
    if not found or not found[2].startswith(f"{folder}/"):
        return ""
    why, path, line, column = found.groups()
    return f"{path.removeprefix(f'{folder}/')}:{line}:{column}: it cannot be read: {why}"
