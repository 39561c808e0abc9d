"""The tools of docs/plugins.md in a running mount. The quotes are from the issue."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx

PAGE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()


def example(language: str, starts: str) -> str:
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if block.startswith(starts))


@pytest.mark.skipif(not shutil.which("jq"), reason="the example uses jq")
@pytest.mark.parametrize("boundary", ["process", "jsonl", "python"])
def test_the_tools_of_the_manual_work(ctx: Ctx, tmp_path: Path, boundary: str) -> None:
    # "docs/plugins.md: a tool in twelve lines for each boundary, run by the tests"
    manifest = example("toml", 'name = "greet"' if boundary == "python" else 'name = "hello"')
    if boundary == "jsonl":
        manifest = manifest.replace("[[native.tools]]", '[native]\nprotocol = "jsonl"\n[[native.tools]]')
    files = {
        "process": {"bin/hello": example("sh", "#!/bin/sh\nexec jq")},
        "jsonl": {"bin/hello": example("python", "#!/usr/bin/python3")},
        "python": {"lib/greet_plugin.py": example("python", "from cortexfs.sdk import tool\n\n\n@tool")},
    }[boundary]
    for name, text in {"manifest.toml": manifest, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    name = "greet" if boundary == "python" else "hello"
    assert "fail:" not in ctx.ctx("plugin", "test", str(tmp_path), "--run", "--yes").stdout
    ctx.ctx("plugin", "install", str(tmp_path))
    assert ctx.call(name, "--name", "Ann", uid=NOBODY).output == "Hello, Ann."
    ctx.ctx("plugin", "uninstall", name, "--purge")
