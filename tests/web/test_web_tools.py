"""Tools in a real browser: forms built from schemas, and output shown as it arrives (abi.md 13)."""

from __future__ import annotations

import base64
import json
import shlex
from typing import Any

import pytest

from tests.mounted import plugins
from tests.mounted.ctx_mount import Ctx
from tests.waiting import until
from tests.web.acting import part
from tests.web.browsing import Tab, WebProcess

SCRIPT = """#!/usr/bin/env python3
# tool: Show what it was given <b>whole</b>.
# arg who string: whom <i>exactly</i>
# flag count integer = 2: how often
# flag kind string: of which kind
# flag loud: in capitals
import sys, time
print(sys.argv[1:], flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def script(ctx: Ctx) -> None:
    """Write a tool of the user's own."""
    path = ctx.work / "shown"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    ctx.ctx("tool", "add", str(path))


def output(tab: Tab) -> Any:
    return tab.get_by_role("log", name="Output")


def test_a_tool_is_run_by_its_form(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.13
    tab.get_by_role("link", name="Tools", exact=True).click()
    tab.get_by_role("link", name="shown", exact=True).click()
    tab.get_by_text("<b>whole</b>").wait_for()
    tab.get_by_label("who (needed)").fill('it\'s "Ann"; $HOME')
    assert tab.get_by_label("count", exact=True).input_value() == "2"
    tab.get_by_label("loud").check()
    command = tab.locator("code").first.inner_text()
    tab.get_by_role("button", name="Run").click()
    output(tab).get_by_text("Ann").wait_for()
    seen = output(tab).inner_text()
    assert "$HOME" in seen
    words = shlex.split(command)
    assert words[:2] == ["ctx", "run"]
    assert ctx.ctx("run", "--text", *words[2:]).stdout == seen  # the command line with the same effect


def test_output_comes_as_it_is_written_and_can_be_stopped(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.13: a tool that never ends
    part(tab, page, "tools/bad.flood")
    tab.get_by_role("button", name="Run").click()
    output(tab).get_by_text("flood").wait_for()
    tab.get_by_text("only the end of it is shown").wait_for()
    tab.get_by_role("button", name="Stop").click()
    tab.get_by_text("Stopped.").wait_for()
    ctx.at_rest()


def test_past_runs_are_listed(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.28: those of its user, from wherever they were begun
    part(tab, page, "tools/shown")
    tab.get_by_label("who (needed)").fill("past")
    tab.get_by_role("button", name="Run").click()
    output(tab).get_by_text("past").wait_for()
    tab.reload()
    tab.locator("summary", has_text="Past runs").click()
    tab.get_by_role("region", name="Past runs").get_by_role("cell", name="ok").first.wait_for()


def test_a_tool_that_offers_it_is_run_dry(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.28
    ctx.ctx("plugin", "install", str(plugins.dry(ctx.base / "plugins", "offers", "supported")))
    part(tab, page, "tools/offers")
    for box, said in (("check", "would"), ("uncheck", "did")):
        getattr(tab.get_by_label("Dry run"), box)()
        tab.get_by_role("button", name="Run").click()
        output(tab).get_by_text(said, exact=True).wait_for()
        assert ("--dry-run" in tab.locator("code").first.inner_text()) == (said == "would")
    part(tab, page, "tools/shown")
    assert tab.get_by_label("Dry run").count() == 0


def test_a_fault_is_told_as_in_a_terminal(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.13
    part(tab, page, "tools/fs.read")
    tab.get_by_label("path (needed)").fill("/nothing/here")
    tab.get_by_role("button", name="Run").click()
    fault = tab.get_by_role("alert")
    until(fault.inner_text)
    assert fault.inner_text() == ctx.call("fs.read", "/nothing/here").message


def test_a_file_goes_into_a_field(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.13
    given = "from a file\nwith <lines>\n"
    part(tab, page, "tools/fs.write")
    target = ctx.work / "written.txt"
    tab.get_by_label("path (needed)", exact=True).fill(str(target))
    tab.get_by_label("File for content").set_input_files(
        {"name": "x", "mimeType": "text/plain", "buffer": given.encode()}
    )
    until(
        lambda: tab.get_by_label("content (needed)", exact=True).input_value(), lambda seen: "<lines>" in seen
    )
    tab.get_by_role("button", name="Run").click()
    until(lambda: target.exists() and target.read_text(), lambda seen: seen == given)


def test_forms_of_every_kind(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.13: nested objects, lists, choices, defaults, base64
    schema = {
        "type": "object",
        "required": ["name", "place", "tags"],
        "properties": {
            "name": {"type": "string", "enum": ["a", "b"]},
            "place": {
                "type": "object",
                "required": ["x"],
                "properties": {"x": {"type": "number"}, "y": {"type": "integer", "default": 7}},
            },
            "tags": {"type": "array", "items": {"type": "string"}, "default": ["one"]},
            "blob": {"type": "string", "contentEncoding": "base64"},
            "any": {"description": "anything"},
            "on": {"type": ["boolean", "null"], "default": True},
            "points": {
                "type": "array",
                "items": {"type": "object", "properties": {"z": {"type": "integer"}}},
            },
        },
    }
    fact = {"schema": schema, "description": "d", "effects": "", "status": "ready", "dry": False, "runs": []}
    given: list[Any] = []

    def ran(route: Any) -> None:
        given.append(route.request.post_data_json["input"])
        route.fulfill(
            status=200, content_type="text/event-stream", body='data: {"type":"done","status":"ok"}\n\n'
        )

    tab.route("**/api/tool?*", lambda route: route.fulfill(json=fact))
    tab.route("**/api/run", ran)
    part(tab, page, "tools/fs.read")
    tab.get_by_label("name (needed)").select_option(label="b")
    tab.get_by_label("x (needed)").fill("1.5")
    tab.get_by_role("button", name="Add tags").click()
    tab.get_by_label("tags 2 (needed)", exact=True).fill("two")
    tab.get_by_label("File for blob").set_input_files({"name": "b", "mimeType": "", "buffer": b"\x00\xff"})
    tab.get_by_role("button", name="Add points").click()
    tab.get_by_label("z").fill("3")
    tab.get_by_label("any").fill('{"deep": [1')
    tab.get_by_role("button", name="Run").click()
    tab.get_by_role("alert").get_by_text("any: this is no JSON").wait_for()
    tab.get_by_label("any").fill('{"deep": [1]}')
    tab.get_by_role("button", name="Run").click()
    until(lambda: tab.evaluate("1") and given)
    wanted = {
        "name": "b", "place": {"x": 1.5, "y": 7}, "tags": ["one", "two"], "any": {"deep": [1]}, "on": True,
        "blob": base64.b64encode(b"\x00\xff").decode(), "points": [{"z": 3}],
    }  # fmt: skip
    assert given == [wanted], json.dumps(given)


def test_hostile_names_are_text(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.10: a plugin's title, a tool's description, a session's name
    evil = "<img src=x onerror=window.hurt=1>"
    row = {"object": f"tool/{evil}", "status": evil, "origin": evil, "description": evil}
    plugin = {"name": evil, "version": evil, "status": evil}
    session = {
        "object": evil,
        "session": evil,
        "space": evil,
        "state": evil,
        "messages": evil,
        "updated": evil,
    }
    tab.route("**/api/objects", lambda route: route.fulfill(json=[row, row | {"object": f"model/{evil}"}]))
    tab.route("**/api/plugins", lambda route: route.fulfill(json=[plugin]))
    tab.route("**/api/sessions", lambda route: route.fulfill(json=[session]))
    tab.route("**/api/status", lambda route: route.fulfill(json={evil: evil}))
    for where in ("tools", "models", "agents", "plugins", "sessions", "status", "talk", f"plugins/{evil}"):
        part(tab, page, where)
    assert tab.locator("main img").count() == 0
    assert tab.evaluate("window.hurt") is None


def test_what_a_form_leaves_out_and_keeps(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.13. Found: no call without an object that may be missing and needs something, other digits
    inner = {"type": "object", "required": ["field"], "properties": {"field": {"type": "string"}}}
    properties = {"filter": inner, "id": {"type": "integer", "maximum": 2**63 - 1}, "any": {}}
    told = {"schema": {"properties": properties}, "description": "", "effects": "", "dry": False, "runs": []}
    tab.route("**/api/tool?*", lambda route: route.fulfill(json=told))
    part(tab, page, "tools/shown")
    line = tab.locator("code").first
    tab.get_by_label("id", exact=True).fill("9007199254740993")
    tab.get_by_label("any", exact=True).fill("[9007199254740995]")
    assert '{"id":9007199254740993,"any":[9007199254740995]}' in line.inner_text()
    with tab.expect_request("**/api/run") as sent:
        tab.get_by_role("button", name="Run", exact=True).click()
    assert '"input":{"id":9007199254740993,"any":[9007199254740995]}' in sent.value.post_data
    tab.get_by_role("button", name="Add filter").press("Enter")
    tab.get_by_label("field (needed)").fill("x")
    assert not tab.get_by_role("button", name="Add filter").is_enabled()
    assert '{"filter":{"field":"x"},' in line.inner_text()
    tab.get_by_role("button", name="Remove filter 1").press("Enter")
    assert "filter" not in line.inner_text()
