"""The page is usable for everybody: axe finds no fault on any view, and a keyboard alone is enough."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.mounted.mcp_clients import from_npm
from tests.mounted.talking import said
from tests.waiting import until
from tests.web.acting import ECHO, SCRIPTED, answer, go, part, play, question, say
from tests.web.browsing import Tab, WebProcess

AXE = "axe-core@4.14.1"
AXE_DIGEST = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
VIEWS = (
    "talk", "approvals", "tools", "tools/fs.read", "tools/fs.write", "agents", "models", "plugins",
    "sessions", "status", "nothing", "agents/agent%2Fbase", "plugins/faulty",
)  # fmt: skip
MARKDOWN = """# A title

Some *words* with `code`, and a [link](https://example.com).

> a quotation

1. one
2. two

| a | b |
|---|---|
| 1 | 2 |

```python
print("code")
```
"""


@pytest.fixture(scope="module")
def axe() -> str:
    """Returns the checks of axe-core, pinned by their digest."""
    script = (from_npm("axe", AXE) / "node_modules/axe-core/axe.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == AXE_DIGEST
    return script.decode()


def violations(tab: Tab, axe: str) -> list[Any]:
    """Returns the complaints of axe, with the elements."""
    tab.evaluate(f"(() => {{ {axe} }})()")
    found = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(tab: Tab, page: WebProcess, ctx: Ctx, axe: str, scheme: str) -> None:
    # abi.md 13.14
    tab.emulate_media(color_scheme=scheme)
    said(ctx, "a session to be listed", session="listed")
    for view in VIEWS:
        part(tab, page, view)
        until(lambda: tab.locator("main").inner_text())
        assert violations(tab, axe) == [], view
    go(tab, page, ECHO, f"axe-{scheme}")
    say(tab, MARKDOWN)
    answer(tab).get_by_text("tokens in").wait_for()
    assert violations(tab, axe) == []
    go(tab, page, SCRIPTED, f"axe-{scheme}")
    call = {"name": "fs.read", "input": {"path": "/x"}, "call": "c1"}
    result = {"name": "fs.read", "call": "c1", "output": "no", "is_error": True}
    change = {"path": str(ctx.work / "none"), "content": "a\nb\n"}
    asked = {"name": "fs.write", "input": change, "effects": ["fs.write /"], "reason": "why"}
    play(
        tab,
        {"delta": "so"},
        {"tool_call": call},
        {"tool_result": result},
        {"progress": "far"},
        {"approval": asked},
    )
    question(tab, "fs.write").wait_for()
    answer(tab).locator("summary").first.click()
    question(tab, "fs.write").locator("summary").click()
    assert violations(tab, axe) == []
    part(tab, page, "approvals")
    question(tab, "fs.write").wait_for()
    assert violations(tab, axe) == []
    question(tab, "fs.write").get_by_role("button", name="Deny").click()
    question(tab, "fs.write").wait_for(state="detached")


def test_a_keyboard_is_enough(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.14
    tab.get_by_role("heading", name="Talk").wait_for()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Go to the content"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"
    go(tab, page, SCRIPTED, "keys")
    until(lambda: tab.evaluate("document.activeElement.ariaLabel"), lambda seen: seen == "Message")
    tab.keyboard.type('[{"approval": {"name": "by.keys"}}]')  # the box has the focus
    tab.keyboard.press("Enter")
    allow = question(tab, "by.keys").get_by_role("button", name="Allow", exact=True)
    allow.wait_for()
    for _ in range(30):
        if allow.evaluate("each => each === document.activeElement"):
            break
        tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Enter")
    answer(tab).get_by_text("allow_once").wait_for()


def test_the_focus_is_in_what_is_shown(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.14. Found: it was at the beginning of the document after each step
    part(tab, page, "agents")
    tab.get_by_role("link", name="Set up base").press("Enter")
    tab.get_by_role("heading", name="base", exact=True).wait_for()
    assert tab.evaluate("document.activeElement.id") == "main"
    part(tab, page, "tools/text.word_count")
    tab.locator("main textarea").first.fill("two words")
    run = tab.get_by_role("button", name="Run", exact=True)
    run.press("Enter")
    tab.get_by_role("status").get_by_text("the run ended: ok").wait_for()
    assert run.evaluate("button => button === document.activeElement")
    go(tab, page, SCRIPTED, "stopped")
    play(tab, {"hang": True})
    stop = tab.get_by_role("button", name="Stop")
    until(stop.is_enabled)
    stop.press("Enter")
    answer(tab).get_by_text("Stopped.").wait_for()
    until(lambda: tab.evaluate("document.activeElement.ariaLabel"), lambda seen: seen == "Message")


def test_a_part_that_comes_late_is_not_shown(tab: Tab, page: WebProcess) -> None:
    # Found: on a slow connection the late part replaced the part that was chosen after it
    held: list[Any] = []
    tab.route("**/approvals.js", lambda route: held.append(route))
    tab.reload()
    tab.get_by_role("link", name="Approvals").click()
    tab.get_by_role("link", name="Models").click()
    tab.get_by_role("heading", name="Models").wait_for()
    until(lambda: bool(tab.wait_for_timeout(1) or held))
    for each in held:
        each.continue_()
    tab.evaluate("import('/approvals.js')")
    assert tab.locator("h1").all_inner_texts() == ["Models"]


BLOCKED = """Object.defineProperty(window, "localStorage", { get() {
    if (!document.cookie.includes("allowed")) throw new DOMException("denied", "SecurityError");
    return sessionStorage;
} });"""


def test_a_link_works_where_the_page_is_open(browser: Any, page: WebProcess) -> None:
    # abi.md 13.2. Found: nothing happened, and the ticket stayed in the address
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(page.url)
    tab.get_by_text("open the link that it prints").wait_for()
    tab.goto(page.link)
    tab.get_by_role("heading", name="Talk").wait_for()
    assert "ticket" not in tab.url
    context.close()


def test_a_browser_that_keeps_nothing_is_told_so(browser: Any, page: WebProcess) -> None:
    # abi.md 13.2. Found: the page told its user to open the link that was open
    context = browser.new_context()
    context.add_init_script(BLOCKED)
    tab = context.new_page()
    tab.goto(page.link)
    tab.get_by_text("lets the page keep nothing").wait_for()
    tab.evaluate("document.cookie = 'allowed=1'")  # the ticket is still unused
    tab.reload()
    tab.get_by_role("heading", name="Talk").wait_for()
    context.close()


def test_a_part_that_is_waited_for_says_so(tab: Tab, page: WebProcess) -> None:
    # Found: the page was blank for as long as a slow connection took
    held: list[Any] = []
    tab.route("**/api/status", lambda route: held.append(route))
    tab.get_by_role("link", name="Status").click()
    tab.get_by_text("One moment.").wait_for()
    held[0].continue_()
    tab.get_by_role("heading", name="Status").wait_for()
    assert tab.get_by_text("One moment.").count() == 0


def test_what_was_said_of_a_part_goes_with_it(tab: Tab, page: WebProcess) -> None:
    # Found: a notice covered the page until the next notice came
    part(tab, page, "models")
    tab.get_by_label("Add a provider").fill("not-known")
    tab.get_by_role("button", name="Add", exact=True).click()
    tab.get_by_role("status").get_by_text("not-known").wait_for()

    def seen_after_another() -> str:
        for name in ("Tools", "Approvals"):
            tab.get_by_role("link", name=name).click()
            tab.get_by_role("heading", name=name).wait_for()
        return str(tab.locator(".said").text_content())

    until(seen_after_another, lambda seen: not seen)
