"""Setting up in a real browser: plugins, their settings and secrets, keys, and controls (abi.md 13)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.shell import esmodules
from tests.waiting import until
from tests.web.acting import part
from tests.web.browsing import Tab, WebProcess

SECRET = "s3cret-of-the-plugin"
SETTINGS = [
    {"key": "word", "label": "The word", "type": "text", "defaultValue": "<b>hi</b>"},
    {"key": "token", "label": "Token", "type": "secret"},
    {"key": "loud", "label": "Loud", "type": "boolean", "defaultValue": False},
    {"key": "depth", "label": "Depth", "type": "number", "defaultValue": 2},
    {"key": "way", "label": "Way", "type": "select", "defaultValue": "a",
     "options": [{"label": "A", "value": "a"}, {"label": "B", "value": "b"}]},
]  # fmt: skip
BODY = """
const all = {};
for (const key of ["word", "loud", "depth", "way"]) all[key] = await ctx.config.get(key);
all.token = ((await ctx.config.get("token")) ?? "").length;
return JSON.stringify(all);
"""


@pytest.fixture(scope="module")
def package(ctx: Ctx) -> Path:
    """Write the sources of a plugin with settings of each kind."""
    folder = ctx.work / "told-plugin"
    folder.mkdir()
    (folder / "mod.ts").write_text(esmodules.source({"told": BODY}))
    manifest = {
        "name": "told-plugin",
        "version": "1.0.0",
        "description": "For tests of the page",
        "kind": "esm",
        "entryPoint": "./mod.ts",
        "runtime": "deno",
        "capabilities": ["tools", "fs:read", "config:schema"],
        "ui": {"settings": [{"section": "All", "fields": SETTINGS}]},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def installed(ctx: Ctx, package: Path) -> Iterator[str]:
    ctx.ctx("plugin", "install", str(package), "--yes")
    yield package.name
    ctx.ctx("plugin", "uninstall", package.name, "--purge")


def told(ctx: Ctx) -> dict[str, Any]:
    found = json.loads(ctx.call("told").output)
    assert isinstance(found, dict)
    return found


def test_a_plugin_is_reviewed_and_then_installed(tab: Tab, page: WebProcess, ctx: Ctx, package: Path) -> None:
    # abi.md 13.15
    part(tab, page, "plugins")
    tab.get_by_label("Directory or package").fill("/nothing/there")
    tab.get_by_role("button", name="Review").click()
    tab.get_by_role("alert").get_by_text("/nothing/there").wait_for()
    tab.get_by_label("Directory or package").fill(str(package))
    tab.get_by_role("button", name="Review").click()
    review = tab.get_by_role("region", name="Review")
    review.wait_for()
    assert "fs:read" in review.inner_text()
    assert not Path(ctx.tool("told")).exists()  # looking at a plugin installs nothing
    tab.get_by_role("button", name="Install", exact=True).click()
    tab.get_by_role("link", name="told-plugin", exact=True).click()
    tab.get_by_role("heading", name="told-plugin").wait_for()
    until(lambda: Path(ctx.tool("told")).exists())
    tab.get_by_role("button", name="Disable").click()
    tab.get_by_role("button", name="Enable").wait_for()
    until(lambda: not Path(ctx.tool("told")).exists())
    tab.get_by_role("button", name="Enable").click()
    tab.get_by_role("button", name="Disable").wait_for()
    until(lambda: Path(ctx.tool("told")).exists())
    tab.get_by_role("button", name="deny fs:read").click()
    until(
        lambda: ctx.ctx("plugin", "permissions", "told-plugin").stdout,
        lambda seen: "denied" in seen or " no " in seen,
    )
    ctx.ctx("plugin", "uninstall", "told-plugin", "--purge")


def test_settings_are_saved_and_a_secret_is_never_shown(
    tab: Tab, page: WebProcess, ctx: Ctx, installed: str
) -> None:
    # abi.md 13.15, 13.16
    part(tab, page, f"plugins/{installed}")
    assert tab.get_by_label("The word", exact=True).input_value() == "<b>hi</b>"
    tab.get_by_label("The word", exact=True).fill("two words; $HOME --json")
    tab.get_by_role("button", name="Save The word").click()
    until(lambda: told(ctx)["word"], lambda seen: seen == "two words; $HOME --json")
    tab.get_by_label("Loud", exact=True).check()
    tab.get_by_role("button", name="Save Loud").click()
    until(lambda: told(ctx)["loud"])
    tab.get_by_label("Depth", exact=True).fill("7")
    tab.get_by_role("button", name="Save Depth").click()
    until(lambda: told(ctx)["depth"], lambda seen: seen == 7)
    tab.get_by_label("Way", exact=True).select_option("b")
    tab.get_by_role("button", name="Save Way").click()
    until(lambda: told(ctx)["way"], lambda seen: seen == "b")
    seen: list[str] = []
    tab.on("response", lambda answer: seen.append(answer.text() if "/api/plugin" in answer.url else ""))
    tab.get_by_label("Token", exact=True).fill(SECRET)
    tab.get_by_role("button", name="Save Token").click()
    until(lambda: told(ctx)["token"], lambda seen: seen == len(SECRET))
    tab.get_by_role("button", name="Unset Token").wait_for()
    tab.reload()
    tab.get_by_role("button", name="Unset Token").wait_for()
    assert tab.get_by_label("Token", exact=True).input_value() == ""
    assert SECRET not in tab.content() + "".join(seen)
    tab.get_by_role("button", name="Save Token").click()  # an empty field changes nothing
    assert told(ctx)["token"] == len(SECRET)
    tab.get_by_role("button", name="Unset Token").click()
    until(lambda: told(ctx)["token"], lambda seen: seen == 0)


def test_secrets_are_in_no_argument(tab: Tab, page: WebProcess, ctx: Ctx, installed: str) -> None:
    # abi.md 13.16: the commands that the page runs are seen by everybody
    part(tab, page, f"plugins/{installed}")
    tab.get_by_label("Token", exact=True).fill(SECRET)
    tab.get_by_role("button", name="Save Token").click()
    seen: set[str] = set()

    def look() -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
        return any("plugin config" in line for line in seen)

    until(look)
    assert not [line for line in seen if SECRET in line]
    tab.get_by_role("button", name="Unset Token").wait_for()


def test_a_providers_key_is_kept(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.16
    where = ("--base-url", "http://127.0.0.1:1/v1", "--format", "openai.chat", "--model", "m1")
    ctx.ctx("provider", "add", "elsewhere", *where)
    part(tab, page, "models")
    tab.get_by_label("Provider", exact=True).select_option("elsewhere")
    tab.get_by_label("Key", exact=True).fill(SECRET)
    tab.get_by_role("button", name="Keep").click()
    tab.get_by_text("is kept").wait_for()
    assert tab.get_by_label("Key", exact=True).input_value() == ""
    kept = [path for path in (ctx.state / "secrets").rglob("*") if path.is_file()]
    assert any(SECRET.encode() in path.read_bytes() for path in kept)


def test_controls_are_edited_with_the_mounts_own_refusals(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.17
    part(tab, page, "agents")
    tab.get_by_role("link", name="Set up base").click()
    box = tab.get_by_role("textbox", name="label")
    box.wait_for()
    label = ctx.root / "agent/base.d/label"
    before = label.read_text()
    box = tab.get_by_role("textbox", name="model")
    box.fill("no/such model")
    tab.get_by_role("button", name="Save model", exact=True).click()
    tab.get_by_role("alert").get_by_text("Invalid argument").wait_for()
    box = tab.get_by_role("textbox", name="system.md")
    box.fill("Be brief. <script>")
    tab.get_by_role("button", name="Save system.md").click()
    system = ctx.root / "agent/base.d/system.md"
    until(system.read_text, lambda seen: seen == "Be brief. <script>\n")
    assert label.read_text() == before
    assert tab.get_by_role("textbox", name="status").count() == 0  # read-only ones have no box
