"""Scripts for tests, which belong to a user and are in a folder of that user."""

from __future__ import annotations

import os
from pathlib import Path

from tests.mounted.ctx_mount import NOBODY, Ctx

GREET = """\
#!/bin/sh
# tool: Greet somebody.
# arg who string: whom
# flag loud: in capitals
echo "$@, says $(id -u) in $PWD"
"""


def placed(ctx: Ctx, name: str = "greet.sh", text: str = GREET, uid: int = NOBODY) -> Path:
    """Write a script, and return its path."""
    folder = ctx.work / f"of-{uid}"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_text(text)
    for one in (folder, path):
        os.chown(one, uid, uid)
        one.chmod(0o755)
    return path


def as_user(ctx: Ctx, *words: str | Path, uid: int = NOBODY) -> tuple[int, str]:
    """Run `ctx` as a user without state or configuration. Returns its status and its whole output."""
    own = {"CTX_STATE": f"/nowhere/{uid}", "CTX_CONFIG": "/nowhere", "CTX_OUTPUT": "text"}
    done = ctx.run([str(ctx.python), "-I", "-m", "cortexfs.cli.main", *map(str, words)], uid=uid, env=own)
    return done.returncode, done.stdout + done.stderr


def called(
    ctx: Ctx, name: str, *words: str, uid: int | None = NOBODY, home: int | None = NOBODY
) -> tuple[int, str]:
    """Call a user's own tool, or a tool for all users. Returns its status and its whole output, as text."""
    place = f"home/{home}/tool" if home is not None else "tool"
    line = ["sh", "-c", 'exec "$@"', "sh", str(ctx.root / place / name), *words]  # sh reports a failed exec
    done = ctx.run(line, uid=uid, env={"CTX_OUTPUT": "text"})
    return done.returncode, done.stdout + done.stderr
