"""Decisions about plugins with a manifest.json, in a running mount: permissions, settings, dependencies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent, call, results, run, say, script
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.plugins import CALLING, broken, said, tools
from tests.mounted.test_manifestjson_plugins import plugin, saying
from tests.shell import wat
from tests.shell.host.net.test_wasm_http import requested, server
from tests.waiting import PATIENCE

__all__ = ["server"]  # a fixture

VARIABLES = {"CORTEX_PLUGIN_ASKING_THEME": "dark", "CORTEX_WASM_WIDTH": "80", "CORTEX_WASM_THEME": "light"}


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        ctx.umount()
        ctx.environ |= VARIABLES
        ctx.mount()
        yield ctx


def effects(ctx: Ctx, tool: str) -> list[list[str]]:
    lines = (ctx.root / "tool" / f"{tool}.d" / "effects").read_text().splitlines()
    return [line.split() for line in lines]


def test_capabilities_gate_requests_while_it_runs(mount: Ctx, tmp_path: Path, server: str) -> None:
    # abi.md 9.31, 9.26
    texts = wat.Texts()
    source = wat.text({"fetching": requested(texts, f"{server}/a")}, texts)
    folder = plugin(tmp_path, "fetching", source, capabilities=["tools", "network:fetch"])
    mount.ctx("plugin", "install", str(folder))
    # policy.md: policy learns of a network request as with tools of any other origin
    assert effects(mount, "fetching") == [["network_request", "-", "reversible", "on_risk", "not_supported"]]
    assert "403 host: 127.0.0.1 is a private address" in mount.call("fetching").message
    done = mount.ctx("plugin", "permissions", "fetching", "--private", "127.0.0.0/8")
    assert f"changed the permissions of fetching; the change is in effect at {mount.root}" in done.stderr
    for uid in (0, NOBODY):
        assert said(mount, "fetching", uid).startswith("200 GET /a ")
    mount.ctx("plugin", "permissions", "fetching", "--set", "network:fetch=deny")
    assert "403 host: network:fetch permission denied" in mount.call("fetching").message
    assert effects(mount, "fetching") == []
    mount.ctx("plugin", "permissions", "fetching", "--set", "net:outbound=grant")
    assert said(mount, "fetching").startswith("200 GET /a ")
    assert [row[0] for row in effects(mount, "fetching")] == ["network_request"]
    # "tools: Register tools in the agent tool registry"
    mount.ctx("plugin", "permissions", "fetching", "--set", "tools=deny")
    assert "fetching" not in tools(mount)
    assert broken(mount) == ""
    mount.ctx("plugin", "uninstall", "fetching", "--purge")
    mount.ctx("plugin", "install", str(folder))
    assert "403 host: 127.0.0.1 is a private address" in mount.call("fetching").message
    mount.ctx("plugin", "uninstall", "fetching", "--purge")


def test_effects_are_confirmed_as_those_of_any_tool(mount: Ctx, tmp_path: Path) -> None:
    # "so that policy and confirmation treat both systems alike"
    mount.ctx("plugin", "install", str(saying(tmp_path, "plain")))
    (mount.config / "policy.toml").write_text('mode = "open"\n')
    with agent(mount, "user", "plain") as path:
        task = script([call("plain")], say("done"))
        assert results(run(mount, path, task, uid=NOBODY).frames)[0]["output"] == "hello"
        # policy.md: delete_file is at the level `block`, whatever the mode
        mount.ctx("plugin", "permissions", "plain", "--set", "fs:delete=grant")
        assert [row[0] for row in effects(mount, "plain")] == ["delete_file"]
        (result,) = results(run(mount, path, task, uid=NOBODY).frames)
        assert "hello" not in str(result), result
        mount.ctx("plugin", "permissions", "plain", "--set", "fs:delete=default")
        assert results(run(mount, path, task, uid=NOBODY).frames)[0]["output"] == "hello"
    (mount.config / "policy.toml").unlink()
    mount.ctx("plugin", "uninstall", "plain", "--purge")


def test_settings_are_what_host_get_config_says(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.37
    texts = wat.Texts()
    keys = ("theme", "width", "depth", "none")
    bodies = {
        f"get-{key}": wat.answered(f"(call $config {texts(key)} {wat.BUFFER} {wat.WORD})") for key in keys
    }
    folder = plugin(tmp_path, "asking", wat.text(bodies, texts), config={"settings": {"depth": 3}})
    mount.ctx("plugin", "install", str(folder))
    # the plugin's own variable comes before the variable for all plugins
    assert said(mount, "get-theme", NOBODY) == "dark"
    assert said(mount, "get-width") == "80"
    assert said(mount, "get-depth") == "3"
    assert said(mount, "get-none") == "0"  # the number of bytes written
    done = mount.ctx("plugin", "config", "asking", "depth", "4")
    assert f"set depth of asking; the change is in effect at {mount.root}" in done.stderr
    assert said(mount, "get-depth", NOBODY) == "4"
    mount.ctx("plugin", "config", "asking", "depth", "--unset")
    assert said(mount, "get-depth") == "3"
    mount.ctx("plugin", "uninstall", "asking", "--purge")


def test_what_a_plugin_needs_has_to_be_there(mount: Ctx, tmp_path: Path) -> None:
    top = saying(tmp_path, "top", dependencies={"below": "^1.0"})
    refused = mount.ctx("plugin", "install", str(top), check=False)
    assert refused.returncode == 1
    assert "it is not enabled: top needs below ^1.0, which is not installed; install it" in refused.stderr
    assert "top" not in tools(mount)
    mount.ctx("plugin", "install", str(saying(tmp_path, "below")))
    mount.ctx("plugin", "enable", "top")
    assert said(mount, "top") == "hello"
    mount.ctx("plugin", "disable", "below")
    assert "top" not in tools(mount)
    assert "top needs below ^1.0, which is not enabled; enable it with" in broken(mount)
    mount.ctx("plugin", "enable", "below")
    assert said(mount, "top") == "hello"
    for name in ("top", "below"):
        mount.ctx("plugin", "uninstall", name, "--purge")


def test_a_setting_that_breaks_it_does_not_leave_the_old_one(mount: Ctx, tmp_path: Path) -> None:
    # a user who takes a permission away means it, even if the plugin does not start without it
    texts = wat.Texts()
    # the plugin traps when there is no such setting
    check = f"(if (call $config {texts('need')} {wat.BUFFER} {wat.WORD}) (then unreachable))"
    source = wat.text(
        {"strict": f"(call $say {texts('x')} {wat.OUT})"},
        texts,
        more=f'(func (export "plugin_init") {check})',
    )
    folder = plugin(tmp_path, "strict", source, config={"settings": {"need": "a"}})
    mount.ctx("plugin", "install", str(folder))
    assert said(mount, "strict") == "x"
    mount.ctx("plugin", "config", "strict", "need", '""')
    assert "WASM trap" in broken(mount)
    assert "strict" not in tools(mount)
    mount.ctx("plugin", "config", "strict", "need", "--unset")
    assert said(mount, "strict") == "x"
    mount.ctx("plugin", "uninstall", "strict", "--purge")


def test_decisions_and_versions_change_under_calls_that_never_stop(mount: Ctx, tmp_path: Path) -> None:
    # docs/manifest-json.md: "calls that begin now have hosts of their own"; the others end as they began
    made = {says: saying(tmp_path / says, "busy", says) for says in ("one", "two")}
    mount.ctx("plugin", "install", str(made["one"]))
    command = [sys.executable, "-c", CALLING, mount.tool("busy")]
    callers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, user=uid, group=uid, cwd=mount.work)
        for uid in (0, NOBODY)
    ]
    try:
        for words in (
            ("permissions", "busy", "--set", "network:fetch=grant"),
            ("permissions", "busy", "--set", "network:fetch=default"),
            ("install", str(made["two"])),
        ):
            mount.ctx("plugin", *words)
        assert said(mount, "busy") == "two"
    finally:
        for caller in callers:
            caller.terminate()
    for caller in callers:
        lines = caller.communicate(timeout=PATIENCE)[0].splitlines()
        assert {*lines} <= {"0 one", "0 two"}, lines
        assert lines
    mount.ctx("plugin", "uninstall", "busy", "--purge")
