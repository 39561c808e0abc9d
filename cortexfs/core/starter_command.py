"""The command line and the environment of the daemon's starter (host/starter.py).

Rules: nothing here imports msgspec, as commands of the shell read this, and the daemon before all else.
"""

from __future__ import annotations

from collections.abc import Mapping

# Of the daemon's environment, what a password manager needs (with XDG_*), and no other provider's key.
NEEDED = frozenset(("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ"))

# How the starter's command line begins, after the interpreter; its two channels and pairs of options follow.
STARTER = ["-I", "-m", "cortexfs.host.starter"]


def needed(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name in NEEDED or name.startswith("XDG_")}
