"""Plugins of tests that show panels and widgets on the page, and what a panel's own script can try."""

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
    """A plugin with tools that are called after it, and with these pages."""
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
    """Open a plugin's panel anew; its frame, in which scripts run as the panel's own."""
    part(tab, page, "approvals")
    tab.get_by_role("heading", name="Approvals").wait_for()  # and so the panel before is gone
    part(tab, page, f"plugins/{plugin}/panel%2F{id_}")
    shown = tab.get_by_title(title, exact=True)
    shown.wait_for()
    frame = shown.element_handle().content_frame()
    frame.wait_for_selector("body")
    return frame


def tried(frame: Any, body: str) -> Any:
    """What comes of it in the panel, or why nothing does."""
    failed = "`refused: ${problem.name || problem}`"
    return frame.evaluate(f"async () => {{ try {{ {body} }} catch (problem) {{ return {failed} }} }}")
