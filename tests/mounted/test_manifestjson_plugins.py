"""Plugins with a manifest.json in a running mount belong to the same plugin system."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import wasmtime

from tests.mounted.agents import agent, call, results, run, say, script
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.plugins import broken, origin, said, tools
from tests.mounted.test_user_daemon import as_user, home
from tests.shell import wat

__all__ = ["home"]  # a fixture

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    """A mount without plugins. Each test uninstalls the plugins that it installed."""
    with mounted(python) as ctx:
        yield ctx


def plugin(where: Path, name: str, source: str | bytes, **changes: Any) -> Path:
    """Write a plugin's directory, as its author would."""
    folder = where / name
    folder.mkdir(parents=True, exist_ok=True)
    data = wasmtime.wat2wasm(source) if isinstance(source, str) else source
    (folder / "plugin.wasm").write_bytes(data)
    manifest = {
        "name": name,
        "version": "1.0.0",
        "description": "For tests",
        "kind": "wasm",
        "entryPoint": "plugin.wasm",
        "runtime": "wasm",
        "capabilities": ["tools"],
    }
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest | changes))
    return folder


def saying(where: Path, name: str, says: str = "hello", /, **changes: Any) -> Path:
    """Write a plugin with one tool, which has the plugin's name and answers `says`."""
    texts = wat.Texts()
    return plugin(where, name, wat.text({name: f"(call $say {texts(says)} {wat.OUT})"}, texts), **changes)


def row(ctx: Ctx, name: str) -> dict[str, Any]:
    listed = json.loads(ctx.ctx("plugin", "list", "--json").stdout)
    return next(one for one in listed if one["name"] == name)


def test_a_directory_becomes_tools(mount: Ctx, tmp_path: Path) -> None:
    folder = saying(tmp_path, "dir-wasm")
    done = mount.ctx("plugin", "install", str(folder))
    assert f"installed dir-wasm 1.0.0, unsigned; the change is in effect at {mount.root}" in done.stderr
    assert said(mount, "dir-wasm") == said(mount, "dir-wasm", NOBODY) == "hello"
    assert origin(mount, "dir-wasm") == "plugin:dir-wasm@1.0.0"
    one = row(mount, "dir-wasm")
    assert (one["boundary"], one["status"], one["tools"]) == ("wasm", "loaded", ["dir-wasm"])
    mount.ctx("plugin", "disable", "dir-wasm")
    assert "dir-wasm" not in tools(mount)
    mount.ctx("plugin", "enable", "dir-wasm")
    assert said(mount, "dir-wasm") == "hello"
    mount.ctx("plugin", "uninstall", "dir-wasm")
    assert (tools(mount), row(mount, "dir-wasm")["status"]) != ([], "loaded")
    mount.ctx("plugin", "uninstall", "dir-wasm", "--purge")
    assert not (mount.state / "plugins" / "dir-wasm").exists()
    assert "dir-wasm" not in tools(mount)


def test_a_signed_package_goes_all_the_way(mount: Ctx, tmp_path: Path) -> None:
    folder, key, package = saying(tmp_path, "cpx-wasm"), tmp_path / "key", tmp_path / "x.cpx"
    mount.ctx("plugin", "pack", str(folder), str(package))
    refused = mount.ctx("plugin", "install", str(package), check=False)
    assert "the package is unsigned" in refused.stderr
    mount.ctx("plugin", "keygen", str(key))
    mount.ctx("plugin", "sign", str(folder), "--key", str(key), "--publisher", "example.dev")
    mount.ctx("plugin", "pack", str(folder), str(package))
    mount.ctx("plugin", "install", str(package), "--yes")
    assert said(mount, "cpx-wasm", NOBODY) == "hello"
    assert row(mount, "cpx-wasm")["publisher"] == "example.dev"
    mount.ctx("plugin", "trust", "remove", "example.dev")
    assert "its publisher example.dev is not trusted any more" in broken(mount)
    assert "cpx-wasm" not in tools(mount)
    mount.ctx("plugin", "uninstall", "cpx-wasm", "--purge")


def test_a_broken_new_version_leaves_the_old_one_serving(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 11.26
    mount.ctx("plugin", "install", str(saying(tmp_path, "module", "one")))
    installed = (mount.state / "plugins/module/.installed.json").read_text()
    for source, why in (
        (b"\0asm\1\0\0\0", "does not export plugin_get_abi_version"),
        # abi.md 9.32
        (wasmtime.wat2wasm(wat.text({}, abi="(i32.const 2)")), "ABI version 2 is not supported"),
    ):
        broken_one = plugin(tmp_path / "bad", "module", bytes(source), version="1.1.0")
        done = mount.ctx("plugin", "install", str(broken_one), check=False)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
        assert "module is not installed, and nothing has changed: it does not load: " in done.stderr
        assert (said(mount, "module"), origin(mount, "module")) == ("one", "plugin:module@1.0.0")
        assert (mount.state / "plugins/module/.installed.json").read_text() == installed
    mount.ctx("plugin", "install", str(saying(tmp_path, "module", "two", version="1.2.0")))
    assert (said(mount, "module"), origin(mount, "module")) == ("two", "plugin:module@1.2.0")  # abi.md 3.7
    assert broken(mount) == ""
    mount.ctx("plugin", "uninstall", "module", "--purge")


def test_what_changed_on_the_disk_is_refused_when_it_is_loaded(mount: Ctx, tmp_path: Path) -> None:
    mount.ctx("plugin", "install", str(saying(tmp_path, "flipped")))
    installed = mount.state / "plugins" / "flipped" / "plugin.wasm"
    installed.write_bytes(installed.read_bytes() + b"\0")
    assert mount.ctx("plugin", "enable", "flipped", check=False).returncode == 1
    assert 'it has changed since it was installed: "plugin.wasm"' in broken(mount)
    assert said(mount, "flipped") == "hello"  # the old plugin still runs
    mount.ctx("plugin", "uninstall", "flipped", "--purge")


KEEPING = {
    "keep": wat.then(
        "(call $set {key} {value})", "(i32.store (local.get $length) (i32.const 0))", "(i32.const 0)"
    ),
    "kept": wat.answered("(call $get {key} {buffer} {word})"),
}


def keeper(where: Path) -> Path:
    texts = wat.Texts()
    words = {"key": texts("k"), "value": texts("v"), "buffer": wat.BUFFER, "word": wat.WORD}
    bodies = {name: body.format(**words) for name, body in KEEPING.items()}
    return plugin(where, "keeper", wat.text(bodies, texts))


def test_state_lasts_for_its_user_until_it_is_purged(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.38
    folder = keeper(tmp_path)
    mount.ctx("plugin", "install", str(folder))
    assert said(mount, "keep") == ""
    assert said(mount, "kept") == "v"
    assert mount.call("kept", uid=NOBODY).output == "0"  # the state of another user is not seen
    mount.umount()
    mount.mount()
    assert said(mount, "kept") == "v"
    kept = mount.state.with_name(f"{mount.state.name}-kept") / "keeper"
    seen = {path.name: (path.stat().st_mode & 0o777, path.stat().st_uid) for path in kept.iterdir()}
    assert seen == {"0": (0o700, 0), str(NOBODY): (0o700, NOBODY)}
    mount.ctx("plugin", "uninstall", "keeper", "--purge")
    assert not kept.exists()
    mount.ctx("plugin", "install", str(folder))
    assert mount.call("kept").output == "0"
    mount.ctx("plugin", "uninstall", "keeper", "--purge")


def test_its_directories_are_the_daemons(mount: Ctx, tmp_path: Path) -> None:
    # no user can create the directory of another user
    mount.ctx("plugin", "install", str(saying(tmp_path, "place")))
    kept = mount.state.with_name(f"{mount.state.name}-kept")
    for folder in (kept, kept / "place"):
        assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o755, os.getuid())
    mount.ctx("plugin", "uninstall", "place", "--purge")


def test_the_tool_of_the_manual_works(mount: Ctx, tmp_path: Path) -> None:
    # "a section in docs/plugins.md with a tool in twelve lines run by a test"
    (source,) = (text for text in blocks("wat"))
    (tmp_path / "echo.wasm").write_bytes(wasmtime.wat2wasm(source))
    (tmp_path / "manifest.json").write_text(next(text for text in blocks("json") if "echo.wasm" in text))
    assert "fail:" not in mount.ctx("plugin", "test", str(tmp_path), "--run", "--yes").stdout
    mount.ctx("plugin", "install", str(tmp_path))
    assert mount.call("echo", uid=NOBODY).output == "{}"
    mount.ctx("plugin", "uninstall", "echo", "--purge")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_an_agent_uses_it_where_it_is_confined(mount: Ctx, tmp_path: Path) -> None:
    # the agent's view shows no file of the daemon, but its plugin runs and finds the state of its user
    mount.ctx("plugin", "install", str(keeper(tmp_path)))
    (mount.config / "policy.toml").write_text('mode = "open"\n')
    kept = mount.state.with_name(f"{mount.state.name}-kept") / "keeper"
    with agent(mount, "user", "keep", "kept", "shell.exec") as path:
        look = f"cat {kept}/{NOBODY}/state.sqlite; echo > {kept}/{NOBODY}/state.sqlite"
        steps = [[call("keep")], [call("kept")], [call("shell.exec", cmd=look)]]
        answer = run(mount, path, script(*steps, say("done")), uid=NOBODY, cwd=mount.base)
        _, got, looked = (result["output"] for result in results(answer.frames))
        assert got == "v", answer
        # The agent can read or change its user's plugin state only through the plugin.
        assert (looked.count("ermission denied"), looked.count("Read-only")) == (1, 1), looked
    (mount.config / "policy.toml").unlink()
    assert mount.call("kept", uid=NOBODY).output == "v"
    mount.ctx("plugin", "uninstall", "keeper", "--purge")


def test_a_users_own_daemon_has_it_too(home: Path, python: Path, tmp_path: Path) -> None:
    source = home.parent / "plugin"
    keeper(source)
    done = as_user(
        home,
        python,
        f"""
        user: $CTX mount ctx
        user: $CTX plugin install {source}/keeper
        user: ctx/tool/keep
        user: $CTX umount ctx
        user: $CTX mount ctx
        user: ctx/tool/kept
        other: ls .local/state/cortexfs-kept/keeper/*
        user: $CTX plugin uninstall keeper --purge
        user: $CTX umount ctx
        """,
    )
    parts = [part.strip() for part in done.stdout.split("-> ")]
    assert [int(part.split()[0]) for part in parts[1:]] == [0, 0, 0, 0, 0, 0, 2, 0, 0], done.stdout
    assert parts[5].endswith("\nv"), done.stdout
