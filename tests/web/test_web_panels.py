"""Panels and widgets of plugins in a real browser (abi.md 13.29 to 13.33), and the example of docs/web.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.mounted.talking import said
from tests.places import PROJECT
from tests.waiting import until
from tests.web.acting import part
from tests.web.browsing import Tab, WebProcess
from tests.web.showing import install, package, panel, tried
from tests.web.test_web_looks import axe, violations

__all__ = ["axe"]

NAMES = {"json": "manifest.json", "ts": "mod.ts", "html": "ui/main.html", "js": "ui/main.js"}
PLUGIN = "shown-plugin"
SETTINGS = [
    {"key": "word", "label": "Word", "type": "text", "defaultValue": "first"},
    {"key": "depth", "label": "Depth", "type": "number", "defaultValue": 2},
    {"key": "token", "label": "Token", "type": "secret"},
]
SECRET = "s3cret-of-a-panel"
HOSTILE = "<img src=x onerror=document.title='owned'>\"'"
WIDGETS: list[dict[str, Any]] = [
    {"id": "t", "title": "Rows of a tool", "type": "table", "config": {
        "source": {"tool": "shown_plugin_rows"}, "refreshSeconds": 5}},
    {"id": "c", "title": "A chart", "type": "chart", "config": {
        "kind": "line", "labels": ["x", "y", "z"], "series": [{"label": "of it", "data": [1, -2, 3.5]}]}},
    {"id": "p", "title": "A pie", "type": "chart", "config": {
        "kind": "pie", "labels": ["x", "y"], "series": [{"data": [1, 0]}]}},
    {"id": "h", "title": HOSTILE, "type": "html", "config": {"html": "<p>Words of a widget</p>"}},
    {"id": "f", "title": "A file", "type": "html", "config": {"path": "ui/main.html"}},
    {"id": "n", "title": "Nothing", "type": "table", "config": {}},
    {"id": "o", "title": "Another's", "type": "table", "config": {"source": {"tool": "fs.read"}}},
]  # fmt: skip


@pytest.fixture(scope="module")
def shown(ctx: Ctx) -> Iterator[str]:
    """Install a plugin that uses every kind of panel and widget."""
    folder = package(
        ctx.work / PLUGIN,
        capabilities=("events:listener",),
        events=("config:change", "tool:post-execute", "session:start", "llm:post-call"),
        widgets=WIDGETS,
        settings=[{"section": "All", "fields": SETTINGS}],
    )
    yield install(ctx, folder)
    ctx.ctx("plugin", "uninstall", PLUGIN, "--purge")


def example() -> dict[str, str]:
    """Returns the files of the plugin that docs/web.md shows."""
    text = (PROJECT / "docs/web.md").read_text()
    found = re.findall(r"^```(json|ts|html|js)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in found] == [*NAMES]
    return {NAMES[kind]: body for kind, body in found}


def test_the_example_works_as_it_stands(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.29, 13.30, 13.33
    folder = ctx.work / "word-counter"
    for name, body in example().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(body)
    install(ctx, folder)
    part(tab, page, "plugins/word-counter")
    tab.get_by_role("link", name="Word counter", exact=True).click()
    frame = tab.frame_locator('iframe[title="Word counter"]')
    frame.get_by_label("Text").fill("to be or not to be")
    frame.get_by_role("button", name="Count").click()
    frame.get_by_text("6 words").wait_for()
    tab.get_by_text("word-counter: counted").wait_for()
    part(tab, page, "plugins/word-counter")
    chart = tab.get_by_role("img", name="Lengths, as a chart")
    until(lambda: chart.locator("rect").count(), lambda seen: seen == 4)
    tab.get_by_role("cell", name="to be or not to be").wait_for()
    ctx.ctx("plugin", "uninstall", "word-counter", "--purge")


def test_a_panel_has_its_script_before_its_own(tab: Tab, page: WebProcess, shown: str) -> None:
    # abi.md 13.29
    frame = panel(tab, page, shown)
    frame.wait_for_selector("p[data-ran=yes]")
    assert frame.evaluate("[window.began, document.compatMode]") == ["object", "CSS1Compat"]
    answer = tried(frame, """const said = await Cortex.fetch("tools/shown_plugin_echo",
        {method: "POST", body: JSON.stringify({text: "ok"})});
        return [said.ok, await said.json()];""")  # fmt: skip
    assert answer[0]
    assert answer[1].pop("durationMs") >= 0
    assert answer[1] == {"toolName": "shown_plugin_echo", "success": True, "output": "heard ok"}
    tab.get_by_role("link", name=shown).click()
    tab.get_by_role("heading", name=shown).wait_for()


def test_settings_are_kept_within_their_types(tab: Tab, page: WebProcess, ctx: Ctx, shown: str) -> None:
    # abi.md 13.30
    frame = panel(tab, page, shown)
    assert tried(frame, "return [await Cortex.getConfig('word'), await Cortex.getConfig('depth')]") == [
        "first",
        2,
    ]
    assert tried(frame, "await Cortex.setConfig('depth', 7); return await Cortex.getConfig()") == {
        "word": "first",
        "depth": 7,
    }
    frame.evaluate("async (secret) => await Cortex.setConfig('token', secret)", SECRET)
    assert tried(frame, "return String(await Cortex.getConfig('token'))") == "undefined"
    for path in ("config", "settings", f"/api/plugins/{shown}/config"):
        read = tried(frame, f"return await (await Cortex.fetch('{path}')).text()")
        assert "depth" in read
        assert SECRET not in read
    refused = ("'unknown', 1", "'depth', 'no number'", f"'word', 'x'.repeat({30 << 10})")
    for words in refused:
        assert tried(frame, f"await Cortex.setConfig({words}); return 'set'") == "refused: Error", words
    kept = json.loads(ctx.ctx("plugin", "config", shown, "--json").stdout)
    assert kept["depth"] == 7
    assert kept["token"] != SECRET
    for key in ("depth", "token"):
        ctx.ctx("plugin", "config", shown, key, "--unset")


def test_events_go_to_the_plugins_own_frames(tab: Tab, page: WebProcess, shown: str) -> None:
    # abi.md 13.30
    frame = panel(tab, page, shown)
    frame.evaluate("""() => { window.heard = [];
        for (const name of ["mine", "config:change", "tool:pre-execute", "tool:post-execute"])
            Cortex.onEvent(name, (data) => heard.push([name, data])); }""")  # fmt: skip
    other = tab.context.new_page()
    other.goto(f"{page.url}#/widgets")
    inner = other.frame_locator('iframe[title="A file"]')
    inner.get_by_text("It is here").wait_for()
    inner.locator("body").evaluate("() => Cortex.emit('mine', {n: 1})")
    until(lambda: frame.evaluate("heard"), lambda seen: ["mine", {"n": 1}] in seen)
    tried(frame, "await Cortex.setConfig('word', 'second')")
    frame.evaluate(
        "Cortex.fetch('tools/shown_plugin_echo', {method: 'POST', body: '{\"text\": \"a\"}'}).then(() => 0)"
    )
    until(lambda: [name for name, _ in frame.evaluate("heard")], lambda seen: "tool:post-execute" in seen)
    heard = frame.evaluate("heard")
    assert ["config:change", {"key": "word", "value": "second"}] in heard
    assert "tool:pre-execute" not in [name for name, _ in heard]  # not in the events of its manifest
    frame.evaluate("Cortex.setConfig('word', 'first')")
    other.close()


def test_a_panel_hears_of_the_mount_what_its_plugin_hears(
    tab: Tab, page: WebProcess, ctx: Ctx, shown: str
) -> None:
    # abi.md 13.37
    said(ctx, "before it is opened", session="unheard-of")
    frame = panel(tab, page, shown)
    frame.evaluate("""() => { window.heard = [];
        for (const name of ["session:start", "llm:pre-call", "llm:post-call", "tool:post-execute"])
            Cortex.onEvent(name, (data) => heard.push([name, data])); }""")  # fmt: skip
    said(ctx, "two words", session="heard-of")
    assert ctx.call("fs.list", "--path", "/").status == 0
    until(lambda: [name for name, _ in frame.evaluate("heard")], lambda seen: "tool:post-execute" in seen)
    heard = frame.evaluate("heard")
    assert heard[0] == ["session:start", {"sessionId": "heard-of"}]
    assert heard[1][0] == "llm:post-call"
    assert heard[1][1]["model"] == "echo"
    assert [name for name, _ in heard].count("tool:post-execute") == 1
    assert heard[2][1]["toolName"] == "fs.list"
    assert "llm:pre-call" not in [name for name, _ in heard]  # not in the events of its manifest
    frame.evaluate("Cortex.emit('llm:post-call', {forged: true})")
    said(ctx, "once more", session="heard-of")
    until(
        lambda: [name for name, _ in frame.evaluate("heard")], lambda seen: seen.count("llm:post-call") == 2
    )
    assert "forged" not in str(frame.evaluate("heard"))


def test_widgets_are_on_a_page_and_beside_their_plugin(tab: Tab, page: WebProcess, shown: str) -> None:
    # abi.md 13.33, 13.10
    part(tab, page, "plugins")
    tab.get_by_role("link", name="Widgets").click()
    for place in ("widgets", f"plugins/{shown}"):
        part(tab, page, place)
        table = tab.get_by_role("region", name="Rows of a tool").last
        table.get_by_role("cell", name="<i>x</i>").wait_for()
        tab.get_by_role("img", name="A chart, as a chart").wait_for()
        assert tab.locator("polyline").get_attribute("points").count(",") == 3
        pieces = tab.get_by_role("img", name="A pie, as a chart").locator("path")
        pieces.nth(1).wait_for(state="attached")
        assert pieces.count() == 2
        tab.locator("iframe").nth(1).wait_for()
        tab.get_by_role("heading", name=HOSTILE).wait_for()
        framed = tab.frame_locator(f"iframe[title={json.dumps(HOSTILE)}]")
        framed.get_by_text("Words of a widget").wait_for()
        tab.get_by_text("There is nothing to show.").wait_for()
        tab.get_by_role("alert").get_by_text("fs.read is no tool of shown-plugin").wait_for()
        part_ = "Widgets" if place == "widgets" else f"{shown} - Plugins"
        assert tab.title() == f"{part_} - CortexFS"  # abi.md 13.41


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_here(tab: Tab, page: WebProcess, shown: str, axe: str, scheme: str) -> None:
    # abi.md 13.14
    tab.emulate_media(color_scheme=scheme)
    for view in ("widgets", f"plugins/{shown}", f"plugins/{shown}/panel%2Fmain", "plugins"):
        part(tab, page, "approvals")
        tab.get_by_role("heading", name="Approvals").wait_for()
        part(tab, page, view)
        if view != "plugins":
            tab.locator("iframe").first.wait_for()
        assert violations(tab, axe) == [], view


def test_the_command_lists_what_is_shown_and_why_not(ctx: Ctx, shown: str, tmp_path: Path) -> None:
    # abi.md 13.31
    rows = {row["part"]: row for row in json.loads(ctx.ctx("plugin", "ui", shown, "--json").stdout)}
    assert rows["panel/main"]["fault"] is None
    assert rows["widget/t"]["config"]["source"]["tool"] == "shown_plugin_rows"
    assert "A pie" in ctx.ctx("plugin", "ui").stdout
    listed = ctx.ctx("plugin", "ui", shown, "panel/main").stdout
    assert "deep/more.css" in listed
    assert "mod.ts" not in listed
    missing = ctx.ctx("plugin", "ui", shown, "panel/mian", check=False)
    assert missing.returncode
    assert "panel/main" in missing.stderr
    broken = package(tmp_path / "broken-plugin", files={}, widgets=[
        {"id": "w", "title": "W", "type": "html", "config": {"path": "ui/none.html"}}])  # fmt: skip
    said = ctx.ctx("plugin", "review", str(broken), check=False).stdout
    assert "fail: panel main" in said  # abi.md 9.47, 9.52
    assert "fail: widget w" in said
