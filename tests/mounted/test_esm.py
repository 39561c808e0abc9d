"""JavaScript plugins in a running mount: installed, called, granted, denied, set and killed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.test_manifestjson_plugins import blocks, row
from tests.mounted.test_plugins import said, tools
from tests.shell import esmodules


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        yield ctx


def plugin(where: Path, name: str, bodies: dict[str, str], more: str = "", **changes: Any) -> Path:
    """A plugin's directory, as its author has it."""
    folder = where / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mod.ts").write_text(esmodules.source(bodies, more))
    manifest = {
        "name": name,
        "version": "1.0.0",
        "description": "For tests",
        "kind": "esm",
        "entryPoint": "./mod.ts",
        "runtime": "deno",
        "capabilities": ["tools"],
    }
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest | changes))
    return folder


def test_the_tool_of_the_manual_works(mount: Ctx, tmp_path: Path) -> None:
    # "a section in docs/plugins.md with a tool in twelve lines run by a test"
    (source,) = blocks("ts")
    (tmp_path / "mod.ts").write_text(source)
    (tmp_path / "manifest.json").write_text(next(text for text in blocks("json") if '"shout"' in text))
    tested = mount.ctx("plugin", "test", str(tmp_path), "--run", check=False).stdout
    assert "fail:" not in tested
    mount.ctx("plugin", "install", str(tmp_path))
    assert mount.call("shout", "--text", "hello", uid=NOBODY).output == "HELLO"
    assert mount.call("shout").code == "EINVAL"
    one = row(mount, "shout")
    assert (one["boundary"], one["status"], one["tools"]) == ("esm", "loaded", ["shout"])
    mount.ctx("plugin", "uninstall", "shout", "--purge")
    assert "shout" not in tools(mount)
