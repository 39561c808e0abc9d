"""The hooks that a plugin receives in a running mount, from its installation to its removal."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cortexfs.core.hooks import LIFECYCLE
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted, wait_gone
from tests.mounted.plugins import said, tools
from tests.mounted.test_esm import plugin
from tests.mounted.test_user_daemon import USER, as_user, home

__all__ = ["home"]  # a fixture

HOOKS = (*LIFECYCLE["install"], *LIFECYCLE["remove"])
# Each hook writes a line about its call into the state of its user.
NOTE = """
const note = async (ctx, line) =>
  await ctx.state.set("log", ((await ctx.state.get("log")) ?? "") + line + "\\n");
"""
HEARING = "\n".join(
    [
        *(f"export const {name} = (ctx) => note(ctx, '{name}');" for name in HOOKS),
        "export const onConfigChange = (key, value, ctx) => note(ctx, `onConfigChange ${key}=${value}`);",
    ]
)
SOURCE = NOTE + HEARING
FIRST, AGAIN, LAST = list(LIFECYCLE["install"]), list(LIFECYCLE["enable"]), list(LIFECYCLE["remove"])


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        yield ctx


def kept(mount: Ctx, name: str, uid: int = 0) -> Path:
    return Path(f"{mount.state}-kept") / name / str(uid) / "state.sqlite"


def heard(mount: Ctx, name: str, uid: int = 0) -> list[str]:
    return logged(kept(mount, name, uid))


def logged(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT value FROM kept WHERE kind = 'state' AND key = 'log'").fetchall()
    return str(rows[0][0]).splitlines() if rows else []


def called(mount: Ctx, uid: int | None = None) -> int:
    """Returns the pid of the process that answers a call."""
    return int(said(mount, "call", uid))


def test_the_whole_life(mount: Ctx, tmp_path: Path) -> None:
    # Of the originals: "Install onInstall->onLoad->onActivate; Enable onLoad->onActivate; Disable
    # onDeactivate->onUnload; Remove onDeactivate->onUnload->onUninstall; config change
    # onConfigChange(key,value,ctx) per key"
    folder = plugin(
        tmp_path, "living", {"call": "return Deno.pid"}, SOURCE, config={"settings": {"a": 1, "b": 2}}
    )
    mount.ctx("plugin", "install", str(folder))
    process, others = called(mount), called(mount, NOBODY)
    assert heard(mount, "living") == (lines := FIRST)

    mount.ctx("plugin", "disable", "living")
    assert wait_gone(process)
    assert "call" not in tools(mount)
    assert heard(mount, "living") == (lines := [*lines, *LIFECYCLE["disable"]])

    mount.ctx("plugin", "enable", "living")
    process = called(mount)
    assert heard(mount, "living") == (lines := [*lines, *AGAIN])

    mount.ctx("plugin", "config", "living", "a", "3")
    assert process == called(mount)
    assert heard(mount, "living") == (lines := [*lines, "onConfigChange a=3"])

    mount.umount()
    assert wait_gone(process)
    mount.mount()
    process = called(mount)
    assert heard(mount, "living")[len(lines) :] in ([*LIFECYCLE["disable"], *AGAIN], AGAIN)
    lines = heard(mount, "living")

    done = mount.ctx("plugin", "uninstall", "living")
    assert "hooks" not in done.stderr
    assert wait_gone(process)
    assert heard(mount, "living") == (lines := [*lines, *LAST])
    assert wait_gone(others)
    assert LAST[-1] not in heard(mount, "living", NOBODY)  # hooks run for each user separately

    mount.ctx("plugin", "uninstall", "living", "--purge")  # a second time is harmless
    assert not kept(mount, "living").exists()
    assert "living" not in mount.ctx("plugin", "list").stdout


def test_another_version_is_no_other_installation(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.40: "before the first onLoad that a user's state knows of"; "each setting that is another than
    # last time"
    fields: dict[str, Any] = {"config": {"settings": {"a": 1, "b": 1}}}
    mount.ctx(
        "plugin", "install", str(plugin(tmp_path, "growing", {"call": "return Deno.pid"}, SOURCE, **fields))
    )
    process = called(mount)
    fields = {"config": {"settings": {"a": 1, "b": 2}}, "version": "2.0.0"}
    mount.ctx(
        "plugin", "install", str(plugin(tmp_path, "growing", {"call": "return Deno.pid"}, SOURCE, **fields))
    )
    assert wait_gone(process)
    called(mount)
    changed = [*LIFECYCLE["disable"], *AGAIN, "onConfigChange b=2"]
    assert heard(mount, "growing") == [*FIRST, *changed]
    mount.ctx("plugin", "uninstall", "growing", "--purge")


def test_what_was_uninstalled_is_installed_anew(mount: Ctx, tmp_path: Path) -> None:
    mount.ctx("plugin", "install", str(plugin(tmp_path, "anew", {"call": "return Deno.pid"}, SOURCE)))
    called(mount)
    mount.ctx("plugin", "uninstall", "anew")
    mount.ctx("plugin", "uninstall", "anew")  # no hook runs twice
    assert heard(mount, "anew") == [*FIRST, *LAST]
    mount.ctx("plugin", "enable", "anew")
    called(mount)
    assert heard(mount, "anew") == [*FIRST, *LAST, *FIRST]
    mount.ctx("plugin", "uninstall", "anew", "--purge")


def test_one_that_is_disabled_hears_of_its_end(mount: Ctx, tmp_path: Path) -> None:
    mount.ctx("plugin", "install", str(plugin(tmp_path, "dormant", {"call": "return Deno.pid"}, SOURCE)))
    process = called(mount)
    mount.ctx("plugin", "disable", "dormant")
    assert wait_gone(process)
    done = mount.ctx("plugin", "uninstall", "dormant")
    assert "hooks" not in done.stderr
    assert heard(mount, "dormant") == [*FIRST, *LIFECYCLE["disable"], *AGAIN, *LAST]
    mount.ctx("plugin", "uninstall", "dormant", "--purge")


def test_a_plugin_that_root_never_called_is_not_run_to_be_removed(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 4.39
    mount.ctx("plugin", "install", str(plugin(tmp_path, "foreign", {"call": "return Deno.pid"}, SOURCE)))
    called(mount, NOBODY)
    mount.ctx("plugin", "uninstall", "foreign")
    assert not kept(mount, "foreign").exists()
    mount.ctx("plugin", "uninstall", "foreign", "--purge")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("throw new Error('not so fast')", "onUninstall: not so fast"),
        ("await new Promise(() => {})", "onUninstall: timed out"),
        ("for (;;);", "onUninstall: timed out"),
        ("Deno.exit(4)", "ended with exit status: 4"),
    ],
)
def test_a_last_hook_that_fails_or_hangs_holds_nothing_up(
    body: str, told: str, mount: Ctx, tmp_path: Path
) -> None:
    source = NOTE + HEARING.replace("(ctx) => note(ctx, 'onUninstall')", f"async () => {{ {body} }}")
    mount.ctx("plugin", "install", str(plugin(tmp_path, "stubborn", {"call": "return Deno.pid"}, source)))
    process = called(mount)
    done = mount.ctx("plugin", "uninstall", "stubborn", "--purge")
    assert "although not all of its last hooks succeeded" in done.stderr
    assert told in done.stderr, done.stderr
    assert wait_gone(process)
    assert "call" not in tools(mount)
    assert not kept(mount, "stubborn").exists()


def test_without_a_mount_it_goes_as_well(fresh: Ctx, tmp_path: Path) -> None:
    fresh.ctx("plugin", "install", str(plugin(tmp_path, "orphan", {"call": "return Deno.pid"}, SOURCE)))
    called(fresh)
    fresh.umount()
    done = fresh.ctx("plugin", "uninstall", "orphan", "--purge")
    assert "no CortexFS is mounted" in done.stderr
    assert not kept(fresh, "orphan").exists()


def test_a_hook_may_be_missing_and_a_failing_first_one_is_a_broken_plugin(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.40: "An error of these is a plugin that does not load"
    for name in FIRST:
        source = f"export const {name} = () => {{ throw new Error('no {name}') }};"
        folder = plugin(tmp_path, "failing", {"call": "return 1"}, source)
        refused = mount.ctx("plugin", "install", str(folder), check=False)
        assert f"no {name} (mod.ts, line 1) (in {name})" in refused.stderr
        assert "failing is not installed, and nothing has changed: " in refused.stderr  # abi.md 11.26
        assert not (mount.state / "plugins/failing").exists()


def test_in_a_daemon_of_its_users_own(home: Path, python: Path) -> None:
    # abi.md 9.40, 9.16; here who describes a plugin is its user
    declared = [{"name": "tell-all", "description": "Tells what it has heard"}]
    tells = "export const tellAll = async (args, ctx) => (await ctx.state.get('log')).split('\\n').join(' ');"
    folder = plugin(
        home, "living", {}, f"{SOURCE}\n{tells}", capabilities=["cli:commands"], cliCommands=declared
    )
    done = as_user(
        home,
        python,
        f"""
        user: $CTX mount ctx
        user: $CTX plugin install {folder}
        user: ls .local/state/cortexfs-kept/living/{USER}
        user: $CTX tell-all
        user: $CTX plugin uninstall living
        user: $CTX tell-all
        user: $CTX umount ctx
        """,
    )
    parts = [part.strip() for part in done.stdout.split("-> ")]
    statuses = [int(part.split()[0]) for part in parts[1:]]
    assert statuses == [0, 0, 0, 0, 0, 69, 0], done.stdout
    assert "installed\n" in parts[2], done.stdout  # onInstall runs before any call
    assert "onInstall onLoad onActivate" in parts[3], done.stdout
    kept = home / ".local/state/cortexfs-kept/living" / str(USER) / "state.sqlite"
    assert logged(kept)[-1] == "onUninstall"
