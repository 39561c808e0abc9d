"""`make up` after everything is built: .ci/up in a checkout of the test's own."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from tests.mounted.ctx_mount import Ctx

UP = Path(__file__).parents[2] / ".ci" / "up"


def checkout(ctx: Ctx) -> Path:
    """A directory with the script and the programs; and an `id` that says that we are not root, who
    would install the runner into the system."""
    top = ctx.work / "checkout"
    (top / ".ci").mkdir(parents=True)
    (top / ".venv" / "bin").mkdir(parents=True)
    (top / "fake").mkdir()
    shutil.copy(UP, top / ".ci" / "up")
    for name in ("ctx", "cortexfs-object-runner"):
        (top / ".venv" / "bin" / name).symlink_to(Path(sysconfig.get_path("scripts")) / name)
    fake = top / "fake" / "id"
    fake.write_text("#!/bin/sh\necho 4711\n")
    fake.chmod(0o755)
    return top


def test_it_makes_first_calls_once(fresh: Ctx) -> None:
    fresh.umount()
    top = checkout(fresh)
    path = {"PATH": f"{top / 'fake'}:{fresh.environ['PATH']}"}
    first = fresh.run([str(top / ".ci" / "up")], env=path)
    assert (first.returncode, first.stderr) == (0, f"mounted at {fresh.root} (pid {fresh.pid})\n")
    assert f'$ {fresh.root}/tool/text.word_count "an object' in first.stdout
    assert "\n7 words\n" in first.stdout
    # issue: "and are what `make up` answers with when no other model is configured"
    assert f'$ {fresh.root}/model/debug/echo "hello, tree"\nhello, tree\n' in first.stdout
    assert "needs no provider" in first.stdout
    assert "Try next:" in first.stdout
    assert fresh.status["runs"] == "0 active, 2 total"
    # README: "Nothing is done twice"
    again = fresh.run([str(top / ".ci" / "up")], env=path)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"{fresh.root} is up already; make down ends it\n"
    assert fresh.status["runs"] == "0 active, 2 total"
    assert (top / ".venv" / ".root").read_text() == f"{fresh.root}\n"
