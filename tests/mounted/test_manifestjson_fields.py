"""The effects of the fields of a manifest.json in a running mount, with real Deno (abi.md 9)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.plugins import said, tools
from tests.mounted.test_esm import plugin


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        yield ctx


FIELDS: list[dict[str, Any]] = [
    {"key": "title", "label": "Title", "type": "text", "defaultValue": "none", "description": "Of the page"},
    {"key": "most", "label": "At most", "type": "number", "defaultValue": 10},
    {"key": "strict", "label": "Strict", "type": "boolean", "defaultValue": False},
    {
        "key": "unit",
        "label": "Unit",
        "type": "select",
        "defaultValue": "words",
        "options": [{"label": "Words", "value": "words"}, {"label": "Lines", "value": "lines"}],
    },
    {"key": "token", "label": "Token", "type": "secret", "defaultValue": ""},
]


def test_settings_are_read_as_their_types_have_them(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.19, 9.20, 9.23
    keys = json.dumps([*(field["key"] for field in FIELDS), "tags", "nothing"])
    body = f"return JSON.stringify(await Promise.all({keys}.map((key) => ctx.config.get(key))))"
    folder = plugin(
        tmp_path,
        "set",
        {"read-all": body},
        capabilities=["tools", "config:schema"],
        ui={"settings": [{"section": "All", "fields": FIELDS}]},
        config={"settings": {"most": 20, "tags": ["a", {"b": None}]}},
    )
    mount.ctx("plugin", "install", str(folder))
    assert json.loads(said(mount, "read-all")) == ["none", 20, False, "words", "", ["a", {"b": None}], None]
    given = {"title": "1", "most": "2.5", "strict": "yes", "unit": "lines", "token": "true", "tags": "{}"}
    for key, value in given.items():
        mount.ctx("plugin", "config", "set", key, value)
    assert json.loads(said(mount, "read-all", NOBODY)) == ["1", 2.5, True, "lines", "true", {}, None]
    for key, value in (("most", "many"), ("strict", "2"), ("unit", "bytes")):
        assert mount.ctx("plugin", "config", "set", key, value, check=False).returncode == 2
    assert json.loads(said(mount, "read-all")) == ["1", 2.5, True, "lines", "true", {}, None]
    # abi.md 9.21
    mount.ctx("plugin", "config", "set", "token", "very-s3cret")
    assert json.loads(said(mount, "read-all"))[4] == "very-s3cret"
    shown = mount.ctx("plugin", "config", "set")
    assert "very-s3cret" not in shown.stdout + shown.stderr
    # abi.md 9.19
    assert "Title: Of the page\n" in shown.stdout
    files = [path for path in mount.state.rglob("*") if path.is_file()]
    assert not [path for path in files if b"very-s3cret" in path.read_bytes()]
    mount.ctx("plugin", "uninstall", "set", "--purge")


def test_the_tools_are_those_of_the_module(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.14
    told = [{"name": "told-only", "description": "Is told", "params": []}]
    mount.ctx("plugin", "install", str(plugin(tmp_path, "telling", {"is-there": "return 1"}, tools=told)))
    assert {"is-there", "told-only"} & {*tools(mount)} == {"is-there"}
    mount.ctx("plugin", "uninstall", "telling", "--purge")


EXPORTS = """
export const providers = {parrot: () => ({complete: async () => "polly"})};
export const cliCommands = [{name: "say-hello", description: "Greets"}];
export default () => "hello";
export const middlewarePre = () => ({abort: {reason: "no", message: "no"}});
export const middlewarePost = () => ({modifyOutput: "changed"});
"""
PROVIDES = {"providers": [{"kind": "parrot", "label": "Polly", "defaultModel": "grey"}]}


def offered(mount: Ctx) -> set[str]:
    models = os.listdir(mount.root / "model")
    commands = (mount.root / ".commands").read_text()
    found = {"tools": "is-there" in tools(mount), "config:provider": "parrot" in models}
    return {
        name for name, is_there in (found | {"cli:commands": "say-hello" in commands}).items() if is_there
    }


@pytest.mark.parametrize("capability", ["events:listener", "tools", "config:provider", "cli:commands"])
def test_an_export_counts_with_its_capability_alone(capability: str, mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.40, 9.26
    changes: dict[str, Any] = {"capabilities": [capability]}
    if capability == "config:provider":
        changes["config"] = PROVIDES
    mount.ctx(
        "plugin", "install", str(plugin(tmp_path, "exporting", {"is-there": "return 1"}, EXPORTS, **changes))
    )
    assert offered(mount) == {capability} - {"events:listener"}
    if capability == "tools":
        assert said(mount, "is-there") == "1"  # no middleware was asked
    # abi.md 9.26
    mount.ctx("plugin", "permissions", "exporting", "--set", f"{capability}=deny")
    assert offered(mount) == set()
    mount.ctx("plugin", "permissions", "exporting", "--set", "tools=grant")
    assert offered(mount) == {"tools"}
    mount.ctx("plugin", "uninstall", "exporting", "--purge")


def test_a_provider_shows_its_label(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.22
    folder = plugin(tmp_path, "providing", {}, EXPORTS, capabilities=["config:provider"], config=PROVIDES)
    mount.ctx("plugin", "install", str(folder))
    assert "Polly: the model grey" in mount.ctx("ls", "model/parrot/grey").stdout
    mount.ctx("plugin", "uninstall", "providing", "--purge")


def test_dependencies_are_loaded_first_and_miss_nothing(mount: Ctx, tmp_path: Path) -> None:
    # abi.md 9.11, 9.12
    top = plugin(
        tmp_path,
        "top",
        {"on-top": "return 1"},
        dependencies={"below": "^1.0.0"},
        peerDependencies={"peer": ">=2.0.0"},
    )
    why = mount.ctx("plugin", "install", str(top), check=False)
    assert (why.returncode, "top needs below ^1.0.0, which is not installed" in why.stderr) == (1, True)
    mount.ctx("plugin", "install", str(plugin(tmp_path, "below", {"is-below": "return 1"}, version="1.2.3")))
    mount.ctx("plugin", "install", str(plugin(tmp_path, "peer", {"is-peer": "return 1"}, version="1.9.0")))
    why = mount.ctx("plugin", "enable", "top", check=False)
    assert "top needs peer >=2.0.0, and peer 1.9.0 is installed" in why.stderr
    mount.ctx("plugin", "install", str(plugin(tmp_path, "peer", {"is-peer": "return 1"}, version="2.0.0")))
    mount.ctx("plugin", "enable", "top")
    assert {"on-top", "is-below", "is-peer"} <= {*tools(mount)}
    mount.ctx("plugin", "disable", "below")
    assert "on-top" not in tools(mount)
    for name in ("top", "below", "peer"):
        mount.ctx("plugin", "uninstall", name, "--purge")
