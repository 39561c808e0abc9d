"""Questions of MCP servers to a person, and the prompts that servers offer, as forms (abi.md 13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.mounted import mcp_places
from tests.mounted.agents import agent, call, script
from tests.mounted.agents import say as says
from tests.mounted.ctx_mount import Ctx
from tests.waiting import until
from tests.web.acting import ECHO, answer, go, log, part, question, say
from tests.web.browsing import Tab, WebProcess
from tests.web.test_web_looks import axe, violations

__all__ = ["axe"]
place = mcp_places.place
TOOL = "conf.test_elicitation"


@pytest.fixture(scope="module")
def ctx(place: Ctx) -> Ctx:
    return place


@pytest.fixture(scope="module", autouse=True)
def clerk(ctx: Ctx) -> Iterator[str]:
    with agent(ctx, "clerk", "conf.*") as path:
        yield path


def asked(tab: Tab, page: WebProcess, ctx: Ctx, tool: str, /, **given: object) -> Any:
    """Allow the call of a tool, and return the form of the tool's question, which names its server."""
    session = tool.rpartition(".")[2]
    go(tab, page, "agent/clerk", f"{session}/{str(ctx.work).replace('/', '%2F')}")
    say(tab, script(call(tool, "c", **given), says("thanks")))
    question(tab, tool).get_by_role("button", name="Allow", exact=True).click()
    found = tab.get_by_role("region", name=f"Question of {tool}")
    found.wait_for()
    return found


def told(tab: Tab, text: str) -> None:
    """Wait for the end of the answer, and for this text in the result of the call."""
    last = answer(tab).last
    last.get_by_text("thanks").wait_for()
    last.locator("summary").first.click()
    last.get_by_text(text).wait_for()


def test_a_form_is_filled_in(tab: Tab, page: WebProcess, ctx: Ctx, clerk: str, axe: str) -> None:
    # abi.md 13.20
    form = asked(tab, page, ctx, TOOL, message="Who <b>are</b> you?")
    form.get_by_text("Who <b>are</b> you?").wait_for()
    form.get_by_label("username").fill("ann")
    until(tab.title, lambda seen: seen.startswith("(1) "))
    assert violations(tab, axe) == []
    tab.set_viewport_size({"width": 320, "height": 600})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 320
    part(tab, page, "approvals")
    form.get_by_label("username").fill("bob")
    form.get_by_label("username").press("Tab")
    tab.keyboard.type("b@example.org")
    tab.keyboard.press("Enter")
    form.wait_for(state="detached")
    go(tab, page, clerk, "test_elicitation")
    told(tab, 'action=accept, content={"username": "bob", "email": "b@example.org"}')
    assert '\\"answered\\":true' in ctx.ctx("resume", clerk, "--session", "test_elicitation").stdout


def test_fields_of_every_kind(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.20
    form = asked(tab, page, ctx, "conf.test_elicitation_sep1034_defaults")
    form.get_by_label("age").fill("31")
    form.get_by_label("status").select_option(label="pending")
    form.get_by_label("verified").uncheck()
    form.get_by_role("button", name="Answer").click()
    told(tab, '"age": 31, "score": 95.5, "status": "pending", "verified": false')
    form = asked(tab, page, ctx, "conf.test_elicitation_sep1330_enums")
    form.get_by_label("titledSingle", exact=True).select_option(label="Choice 2")
    form.get_by_label("legacyEnum").select_option(label="Option Three")
    form.get_by_role("button", name="Add titledMulti").click()
    form.get_by_role("combobox", name="titledMulti").select_option(label="Choice 3")
    form.get_by_role("button", name="Answer").click()
    told(tab, '"titledSingle": "value2", "legacyEnum": "opt3", "titledMulti": ["value3"]')


def test_a_question_is_declined(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.20
    form = asked(tab, page, ctx, TOOL, message="again?")
    form.get_by_role("button", name="Decline").click()
    form.wait_for(state="detached")
    told(tab, "action=decline, content=null")


def test_an_address_is_opened_by_the_person_alone(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.20: it is shown whole, and nothing of it is fetched before
    urls: list[str] = []
    tab.context.on("request", lambda request: urls.append(request.url))
    tab.context.route("https://login.example/**", lambda route: route.fulfill(body="log in here"))
    address = "https://login.example/a?b=<c>"
    form = asked(tab, page, ctx, "conf.test_elicitation_url", url=address)
    assert form.locator("code").inner_text() == address
    link = form.get_by_role("link", name="Open login.example")
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    assert not [url for url in urls if "login" in url]
    with tab.context.expect_page() as opened:
        link.click()
    opened.value.get_by_text("log in here").wait_for()
    assert opened.value.evaluate("window.opener") is None
    told(tab, "action=accept")
    for bad in ("javascript:window.hurt=1", "file:///etc/passwd"):
        form = asked(tab, page, ctx, "conf.test_elicitation_url", url=bad)
        form.get_by_text("This cannot be answered").wait_for()
        assert form.get_by_role("link").count() == 1  # the link to the session
        form.get_by_role("button", name="Decline").click()
        form.wait_for(state="detached")


def test_a_prompt_goes_into_the_message(tab: Tab, page: WebProcess, axe: str) -> None:
    # abi.md 13.21
    go(tab, page, ECHO, "prompts")
    tab.locator("summary", has_text="Prompts").click()
    tab.get_by_label("Prompt", exact=True).select_option(label="conf.test_prompt_with_arguments")
    tab.get_by_label("arg1 (needed)", exact=True).fill("<one>")
    tab.get_by_label("arg2 (needed)", exact=True).fill("two")
    assert violations(tab, axe) == []
    tab.get_by_role("button", name="Use this prompt").click()
    box = tab.get_by_role("textbox", name="Message")
    until(box.input_value, lambda seen: "arg1='<one>', arg2='two'" in seen)
    tab.get_by_role("button", name="Send").click()
    log(tab).get_by_text("tokens in").wait_for()
    assert "<one>" in answer(tab).inner_text()
