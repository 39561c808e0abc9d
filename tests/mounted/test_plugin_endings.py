"""The end of the daemon as libraries see it: each state is dropped, and none holds it up."""

from __future__ import annotations

from pathlib import Path

from tests.mounted import plugins
from tests.mounted.ctx_mount import NOBODY, Ctx, wait_gone
from tests.waiting import until

DROPS = """
static void drop(void *self)
{
    FILE *file = fopen("%s", "a");
    (void)self;
    fprintf(file, "%%d\\n", (int)getuid());
    fclose(file);
}
"""
HANGS = """
static void drop(void *self)
{
    (void)self;
    for (;;)
        pause();
}
"""


def test_each_state_is_dropped_once_when_the_daemon_ends(fresh: Ctx, tmp_path: Path) -> None:
    # issue 5: "one state per library and caller identity, kept for the daemon's life, drop once at shutdown"
    said = fresh.work / "dropped"
    said.touch()
    said.chmod(0o666)
    for name, drop in (("tells", DROPS % said), ("hangs", HANGS)):
        fresh.ctx("plugin", "install", str(plugins.native(tmp_path, name, drop=drop)))
    until(said.read_text, f"{NOBODY}\n".__eq__)  # as whom it has described itself
    for name in ("tells", "hangs"):
        for uid in (None, NOBODY, NOBODY):
            assert fresh.call(name, uid=uid).status == 0
    assert said.read_text() == f"{NOBODY}\n"
    pid = fresh.pid
    fresh.ctx("umount", str(fresh.root))
    assert wait_gone(pid)
    assert sorted(said.read_text().split(), key=int) == ["0", str(NOBODY), str(NOBODY)]
