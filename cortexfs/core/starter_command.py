"""The command line and the environment of the daemon's starter (host/starter.py).

Rules: nothing here imports msgspec, as shell commands import this module, and the daemon imports it first.
"""

from __future__ import annotations

from collections.abc import Mapping

# The daemon's variables that a password manager needs, besides XDG_*. They hold no other provider's key.
NEEDED = frozenset(("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ"))

# The starter's command line after the interpreter. Its two channels and its options follow.
STARTER = ["-I", "-m", "cortexfs.host.starter"]

# The kernel's names of hosts with their fork server, and of the starter; each has at most 15 bytes.
# By these names a daemon knows the runs of another one.
HOST_NAME, STARTER_NAME = PROCESS_NAMES = b"cortexfs-host", b"cortexfs-start"


def needed(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name in NEEDED or name.startswith("XDG_")}
