"""Setting up agents, MCP servers and providers, checks and costs, in a real browser (abi.md 13)."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.mounted import mcp_places, outside
from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_login_places import logins
from tests.waiting import until
from tests.web.acting import part
from tests.web.browsing import Tab, WebProcess
from tests.web.test_web_looks import axe, violations

__all__ = ["axe"]
SECRET = "s3cret-of-the-server"


def test_an_agent_is_made_explained_and_removed(tab: Tab, page: WebProcess, ctx: Ctx, axe: str) -> None:
    # abi.md 13.25
    part(tab, page, "agents")
    tab.locator("summary", has_text="New agent").click()
    tab.get_by_label("Name", exact=True).fill("helper")
    tab.get_by_label("Model", exact=True).select_option("debug/echo")
    tab.get_by_label("Tools", exact=True).fill("no.such-tool")
    tab.get_by_label("System prompt").fill("Be kind; --not an option")
    assert violations(tab, axe) == []
    tab.get_by_role("button", name="Make").click()
    tab.get_by_role("alert").get_by_text("no.such-tool").wait_for()
    tab.get_by_label("Tools", exact=True).fill("fs.read")
    tab.get_by_role("button", name="Make").click()
    tab.get_by_role("link", name="Set up helper").click()
    tab.get_by_role("heading", name="helper").wait_for()
    assert "Be kind; --not an option" in (ctx.root / "agent/helper.d/system.md").read_text()
    explained = tab.get_by_role("region", name="Explanation")
    for tool, words in (("tool/fs.read", "Allowed"), ("tool/shell.exec", "Refused"), ("tool/none", "none")):
        tab.get_by_label("Tool, model or agent").fill(tool)
        tab.get_by_role("button", name="Explain").click()
        explained.get_by_text(words).first.wait_for()
    tab.get_by_label("Tool, model or agent").fill("tool/fs.read")
    tab.get_by_label("Tool, model or agent").press("Enter")
    explained.get_by_text("Rule:").wait_for()
    assert violations(tab, axe) == []
    tab.once("dialog", lambda dialog: dialog.accept())
    tab.get_by_role("button", name="Remove this agent").click()
    tab.get_by_role("heading", name="Agents").wait_for()
    until(lambda: not (ctx.root / "agent/helper").exists())


def test_mcp_servers_are_added_imported_and_removed(tab: Tab, page: WebProcess, ctx: Ctx, axe: str) -> None:
    # abi.md 13.26
    shutil.copy(mcp_places.CONFORMING, ctx.work)
    part(tab, page, "plugins")
    tab.locator("summary", has_text="Add an MCP server").click()
    tab.get_by_label("Its name here").fill("conf")
    tab.get_by_label("Command that starts it").fill(" ".join(mcp_places.program(ctx)))
    tab.get_by_label("Name of a variable").fill("API_TOKEN")
    tab.get_by_label("Its value").fill(SECRET)
    assert violations(tab, axe) == []
    tab.get_by_role("button", name="Add", exact=True).click()
    tab.get_by_role("button", name="Remove conf").wait_for()
    mcp_places.tool_is(ctx, "conf.test_simple_text")
    assert SECRET not in tab.content()
    assert "API_TOKEN" in ctx.ctx("mcp", "list", "--json").stdout
    tab.locator("summary", has_text="Import those").click()
    tab.get_by_label("Its file on this machine").fill("/nothing/there.json")
    tab.get_by_role("button", name="Import", exact=True).click()
    tab.get_by_role("alert").get_by_text("/nothing/there.json").wait_for()
    file = ctx.work / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"other": {"url": "http://127.0.0.1:1/mcp"}}}))
    tab.get_by_label("Its file on this machine").fill(str(file))
    tab.get_by_role("button", name="Import", exact=True).click()
    tab.get_by_role("button", name="Remove other").wait_for()
    tab.get_by_role("button", name="Log in at other").click()
    tab.get_by_role("region", name="Login").get_by_role("alert").wait_for()  # no server is there
    for name in ("other", "conf"):
        tab.once("dialog", lambda dialog: dialog.accept())
        tab.get_by_role("button", name=f"Remove {name}").click()
        tab.get_by_role("button", name=f"Remove {name}").wait_for(state="detached")
    mcp_places.tool_is(ctx, "conf.test_simple_text", there=False)


def test_a_login_at_an_mcp_server_ends_well(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.26
    with logins(ctx.work) as address:
        ctx.ctx("mcp", "add", "closed", "--url", address)
        part(tab, page, "plugins")
        tab.get_by_role("button", name="Log in at closed").click()
        with tab.context.expect_page() as opened:
            tab.get_by_role("region", name="Login").get_by_role("link").click()
        opened.value.close()
        tab.get_by_role("region", name="Login").get_by_text("logged in at closed").wait_for()
        mcp_places.tool_is(ctx, "closed.who")
        assert ctx.call("closed.who").output == "somebody who is logged in"
        ctx.ctx("mcp", "remove", "closed")


def counted(day: str, model: str, agent: str, cost: float | None) -> dict[str, object]:
    """Returns one line of `ctx log --usage --json`."""
    counts = {"calls": 1, "input_tokens": 1000, "output_tokens": 20}
    return {"day": day, "model": model, "agent": agent, "cost": cost, **counts}


def test_what_was_used_is_added_up(tab: Tab, page: WebProcess, ctx: Ctx, axe: str) -> None:
    # abi.md 13.27
    part(tab, page, "status")
    tab.get_by_text("No model was called yet.").wait_for()
    lines = [
        counted("2026-11-01", "acme/<large>", "", 0.5),
        counted("2026-11-02", "acme/<large>", "coder", 0.25),
        counted("2026-11-02", "free/small", "coder", None),
    ]
    told = {"currency": "EUR", "usage": lines, "limits": []}
    tab.route("**/api/usage", lambda route: route.fulfill(json=told))
    tab.reload()
    used = tab.get_by_role("region", name="Used")
    for by, rows in {
        "day": ["2026-11-01 1 1000 20 0.50 EUR", "2026-11-02 2 2000 40 0.25 EUR"],
        "model": ["acme/<large> 2 2000 40 0.75 EUR", "free/small 1 1000 20"],
        "agent": ["(none) 1 1000 20 0.50 EUR", "coder 2 2000 40 0.25 EUR"],
    }.items():
        tab.get_by_label("By", exact=True).select_option(by)
        seen = [" ".join(row.split()) for row in used.get_by_role("row").all_inner_texts()]
        assert seen[1:] == rows
    assert violations(tab, axe) == []
    tab.unroute("**/api/usage")
    with outside.katan() as url:
        ctx.ctx("provider", "add", "katan", "--base-url", f"{url}/v1", "--format", "openai.chat")
        secret = [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "provider", "secret", "set", "katan"]
        ctx.run(secret, input=outside.KEY + "\n", check=True)
        assert "hello" in ctx.ctx("send", "katan/echo-1", "hello", "--output", "text").stdout
        ctx.ctx("provider", "remove", "katan")
    tab.reload()
    tab.get_by_label("By", exact=True).select_option("model")
    until(lambda: used.get_by_role("row").all_inner_texts(), lambda seen: "katan/echo-1" in str(seen))


def test_the_doctor_is_asked(tab: Tab, page: WebProcess, ctx: Ctx, axe: str) -> None:
    # abi.md 13.27: the same checks as in a terminal, the worst first
    part(tab, page, "status")
    tab.get_by_role("button", name="Check", exact=True).click()
    tab.get_by_role("cell", name="mount answers").wait_for()
    listed = json.loads(ctx.ctx("doctor", "--json", check=False).stdout)
    assert tab.get_by_role("region", name="Checks").get_by_role("row").count() == len(listed) + 1
    assert violations(tab, axe) == []


def test_a_provider_is_added_by_its_name(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.15
    part(tab, page, "models")
    tab.get_by_label("Add a provider").fill("not-known")
    tab.get_by_role("button", name="Add", exact=True).click()
    tab.get_by_role("status").get_by_text("not-known").wait_for()
    tab.get_by_label("Add a provider").fill("ollama")
    tab.get_by_role("button", name="Add", exact=True).click()
    tab.get_by_role("cell", name="ollama").first.wait_for()
    ctx.ctx("provider", "remove", "ollama")


@pytest.mark.parametrize("width", [320])
def test_these_parts_are_as_wide_as_their_window(tab: Tab, page: WebProcess, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 700})
    for view in ("agents", "agents/agent%2Fbase", "plugins", "models", "status"):
        part(tab, page, view)
        for summary in tab.locator("main summary").all():
            summary.click()
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, view
