"""The end of the daemon, which drops each state of each library, and the end of a plugin's version."""

from __future__ import annotations

from pathlib import Path

from tests.mounted import plugins
from tests.mounted.ctx_mount import NOBODY, Ctx, wait_gone
from tests.mounted.plugins import broken, origin, said
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
    dropped = fresh.work / "dropped"
    dropped.touch()
    dropped.chmod(0o666)
    for name, drop in (("tells", DROPS % dropped), ("hangs", HANGS)):
        fresh.ctx("plugin", "install", str(plugins.native(tmp_path, name, drop=drop)))
    until(dropped.read_text, f"{NOBODY}\n{NOBODY}\n".__eq__)  # its trial and its description ran as nobody
    dropped.write_text("")
    for name in ("tells", "hangs"):
        for uid in (None, NOBODY, NOBODY):
            assert fresh.call(name, uid=uid).status == 0
    assert dropped.read_text() == ""
    pid = fresh.pid
    fresh.ctx("umount", str(fresh.root))
    assert wait_gone(pid)
    assert sorted(dropped.read_text().split(), key=int) == ["0", str(NOBODY)]


def test_a_broken_new_version_leaves_the_old_one_serving(fresh: Ctx, tmp_path: Path) -> None:
    folder = plugins.python(tmp_path, "module", "one")
    fresh.ctx("plugin", "install", str(folder))
    good = (folder / "lib" / "module_plugin.py").read_text()
    module = folder / "lib" / "module_plugin.py"
    module.write_text("raise ImportError('no pen')\n")
    done = fresh.ctx("plugin", "install", str(folder), check=False)
    # abi.md 11.26: it was tried, and is not installed
    assert (done.returncode, "no pen" in done.stderr) == (2, True)
    assert (said(fresh, "module"), origin(fresh, "module")) == ("one 0", "plugin:module@1.0")
    # abi.md 11.26: and one that breaks only here is taken back
    (fresh.work / "pens").mkdir()
    (fresh.work / "pens").chmod(0o777)
    module.write_text(f"{good}\nopen({str(fresh.work / 'pens/only')!r}, 'x')\n")
    done = fresh.ctx("plugin", "install", str(folder), check=False)
    assert (done.returncode, "pens/only" in done.stderr) == (2, True)
    assert (said(fresh, "module"), origin(fresh, "module")) == ("one 0", "plugin:module@1.0")
    assert broken(fresh) == ""
    fresh.ctx("plugin", "install", str(plugins.python(tmp_path, "module", "two", version="1.1")))
    assert (said(fresh, "module"), origin(fresh, "module")) == ("two 0", "plugin:module@1.1")
    assert broken(fresh) == ""
