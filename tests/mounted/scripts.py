"""Scripts for tests: a user's own, in a folder of that user's."""

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
    """The file of a script."""
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
    """`ctx` as a user who has no state or configuration; its status and all that it says."""
    own = {"CTX_STATE": f"/nowhere/{uid}", "CTX_CONFIG": "/nowhere", "CTX_OUTPUT": "text"}
    done = ctx.run([str(ctx.python), "-I", "-m", "cortexfs.cli.main", *map(str, words)], uid=uid, env=own)
    return done.returncode, done.stdout + done.stderr


def called(
    ctx: Ctx, name: str, *words: str, uid: int | None = NOBODY, home: int | None = NOBODY
) -> tuple[int, str]:
    """A call of a user's own tool, or of everybody's; its status and all that it says, as text."""
    place = f"home/{home}/tool" if home is not None else "tool"
    line = ["sh", "-c", 'exec "$@"', "sh", str(ctx.root / place / name), *words]  # which says why it cannot
    done = ctx.run(line, uid=uid, env={"CTX_OUTPUT": "text"})
    return done.returncode, done.stdout + done.stderr
