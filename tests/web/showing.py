"""Plugins for tests that show panels and widgets on the page, and the means of a panel's own script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.mounted.ctx_mount import Ctx
from tests.shell import esmodules
from tests.web.acting import part
from tests.web.browsing import Tab, WebProcess

PAGE = """<!doctype html><html lang=en><title>A panel</title><p>It is here</p>
<script src=./panel.js></script></html>"""
SCRIPT = "window.began = typeof Cortex; document.querySelector('p').dataset.ran = 'yes';"
FILES = {"ui/main.html": PAGE, "ui/panel.js": SCRIPT, "ui/deep/more.css": "p { color: green }"}
PANEL = {"id": "main", "title": "A panel", "htmlPath": "./ui/main.html"}
TOOLS = {
    "echo": "return `heard ${args.text}`;",
    "rows": "return JSON.stringify([{a: 1, b: '<i>x</i>'}, {a: 2}]);",
}


def package(
    folder: Path,
    files: Mapping[str, str] | None = None,
    capabilities: tuple[str, ...] = (),
    events: tuple[str, ...] = (),
    **ui: Any,
) -> Path:
    """Write a plugin with these pages, and with tools that are named after it."""
    name = folder.name
    wanted = FILES if files is None else files
    tools = {f"{name.replace('-', '_')}_{tool}": body for tool, body in TOOLS.items()}
    for path, text in {**wanted, "mod.ts": esmodules.source(tools)}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    manifest = {
        "name": name,
        "version": "1.0.0",
        "description": "Shows something",
        "kind": "esm",
        "entryPoint": "./mod.ts",
        "runtime": "deno",
        "capabilities": ["tools", "ui:panel", "ui:widget", "config:schema", *capabilities],
        "events": list(events),
        "ui": {"panels": [PANEL], **ui},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def install(ctx: Ctx, folder: Path) -> str:
    ctx.ctx("plugin", "install", str(folder), "--yes")
    return folder.name


def panel(tab: Tab, page: WebProcess, plugin: str, title: str = "A panel", id_: str = "main") -> Any:
    """Open a plugin's panel anew, and return its frame, in which scripts run as the panel's own."""
    part(tab, page, "approvals")
    tab.get_by_role("heading", name="Approvals").wait_for()  # so the panel before is gone
    part(tab, page, f"plugins/{plugin}/panel%2F{id_}")
    shown = tab.get_by_title(title, exact=True)
    shown.wait_for()
    frame = shown.element_handle().content_frame()
    frame.wait_for_selector("body")
    return frame


def tried(frame: Any, body: str) -> Any:
    """Run a script in the panel, and return its result or the reason of its failure."""
    failed = "`refused: ${problem.name || problem}`"
    return frame.evaluate(f"async () => {{ try {{ {body} }} catch (problem) {{ return {failed} }} }}")
