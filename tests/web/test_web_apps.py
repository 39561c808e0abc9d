"""MCP Apps on the page (abi.md 13.29, 13.30): the official example from npm, and the limits of an app."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_clients import from_npm
from tests.mounted.mcp_places import command, declare, tool_is
from tests.waiting import until
from tests.web.acting import part, question
from tests.web.browsing import Tab, WebProcess
from tests.web.test_web_looks import axe, violations

__all__ = ["axe"]
SERVER = "@modelcontextprotocol/server-basic-vanillajs"
VERSION = "2.0.3"
ASK = """([method, params]) => new Promise((done) => {
  const id = `test-${Math.random()}`;
  addEventListener("message", ({data}) => { if (data.id === id) done(data); });
  parent.postMessage({jsonrpc: "2.0", id, method, params}, "*");
})"""


@pytest.fixture(scope="module")
def served(ctx: Ctx) -> str:
    """Declare the server on a mount. Its tool tells the time, and its app shows the time."""
    program = from_npm("apps", f"{SERVER}@{VERSION}") / "node_modules" / SERVER / "dist/index.js"
    node = shutil.which("node")
    assert node
    declare(ctx, "clock", command(node, str(program), "--stdio"))
    tool_is(ctx, "clock.get-time")
    return "clock.get-time"


def app(tab: Tab, page: WebProcess, tool: str) -> Any:
    """Run the tool in its app like a person, and return the app's frame."""
    part(tab, page, f"tools/{tool}")
    tab.get_by_role("button", name="Run in its app").click()
    shown = tab.locator("section[aria-label=App] iframe")
    shown.wait_for()
    frame = shown.element_handle().content_frame()
    frame.wait_for_selector("button")
    return frame


def test_an_app_shows_what_its_tool_says(tab: Tab, page: WebProcess, served: str, axe: str) -> None:
    # abi.md 13.29, 13.30, 13.14
    frame = app(tab, page, served)
    assert frame.evaluate("[self.origin, typeof window.Cortex]") == ["null", "undefined"]
    time = frame.locator("#server-time")
    until(time.inner_text, lambda seen: "T" in seen and "Z" in seen)
    before = time.inner_text()
    frame.get_by_role("button", name="Get Server Time").click()
    asked = question(tab, "get-time")
    asked.get_by_role("button", name="Allow while it is open").click()
    until(time.inner_text, lambda seen: "Z" in seen and seen != before)
    assert violations(tab, axe) == []


def test_an_app_asks_for_its_own_servers_tools_alone(tab: Tab, page: WebProcess, served: str) -> None:
    # abi.md 13.30
    frame = app(tab, page, served)
    for method, params in (
        ("tools/call", {"name": "fs.read", "arguments": {}}),
        ("tools/call", {"name": "--help", "arguments": {}}),
        ("tools/call", {"name": {"a": 1}}),
        ("tools/call", None),
        ("tools/list", {}),
        ("resources/read", {"uri": "file:///etc/passwd"}),
        ("resources/list", {}),
        ("sampling/createMessage", {}),
        ("ui/open-link", {"url": "http://127.0.0.1:1/"}),
        ("ui/message", {"role": "user", "content": []}),
        ("toString", {}),
    ):
        said = frame.evaluate(ASK, [method, params])
        assert "error" in said, (method, said)
        assert "root:" not in str(said)
    assert question(tab, "fs.read").count() == 0
    said = frame.evaluate(ASK, ["ui/request-display-mode", {"mode": "fullscreen"}])
    assert said["result"] == {"mode": "inline"}
    refused = "fetch('https://example.com').then(() => 'there', () => 'refused')"
    assert frame.evaluate(refused) == "refused"
    tab.faults.clear()


def test_an_app_that_floods_is_refused_or_closed(tab: Tab, page: WebProcess, served: str) -> None:
    # abi.md 13.32
    frame = app(tab, page, served)
    said = frame.evaluate("""() => new Promise((done) => {
      const heard = [];
      addEventListener("message", ({data}) => {
        if (data.error) heard.push(data.error.message);
        if (heard.length === 20) done(heard);
      });
      for (let id = 0; id < 40; id++) parent.postMessage(
        {jsonrpc: "2.0", id: `flood-${id}`, method: "resources/read", params: {uri: "ui://none"}}, "*");
    })""")  # fmt: skip
    assert "too much is asked at once" in said
    long = "{jsonrpc: '2.0', method: 'ping', of: 'x'.repeat(1 << 19)}"
    frame.evaluate(f"() => {{ parent.postMessage({long}, '*'); }}")
    tab.get_by_role("alert").get_by_text("said more than a page may say").wait_for()
    assert tab.locator("section[aria-label=App] iframe").count() == 0


def test_a_tool_without_an_app_has_no_button(tab: Tab, page: WebProcess, served: str) -> None:
    part(tab, page, "tools/fs.read")
    tab.get_by_role("button", name="Run", exact=True).wait_for()
    assert tab.get_by_role("button", name="Run in its app").count() == 0


def test_an_app_goes_with_its_server(tab: Tab, page: WebProcess, ctx: Ctx, served: str) -> None:
    # abi.md 13.31
    app(tab, page, served)
    ctx.ctx("mcp", "remove", "clock")
    shown = tab.get_by_role("region", name="App")
    shown.get_by_role("alert").get_by_text("the MCP server clock is not there any more").wait_for()
    assert shown.locator("iframe").count() == 0
