"""Takes the pictures of the page for the docs, of a real mount in a real browser: `make pictures`.

Rules: all that the pictures show has happened. They are light, narrow and small, as they are kept in git.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.mounted.ctx_mount import Ctx, interpreter, mounted
from tests.mounted.playing_provider import played
from tests.places import PROJECT
from tests.web.acting import answer, answered, go, part, question, say
from tests.web.browsing import Tab, WebProcess, browsing, person, web

FOLDER = PROJECT / "docs/pictures"
MAX_BYTES = 150_000  # of all pictures together
WINDOW = {"width": 1040, "height": 760}
CODER = "agent/coder"
CART = """def total(items, discount):
    prices = [item.price - discount for item in items]
    return sum(prices) - discount
"""
FOUND = """The discount is taken off **twice**:

| place | takes it off |
|---|---|
| `cart.py`, line 2 | each item |
| `cart.py`, line 3 | the sum |

I would take it off the sum alone. Shall I change line 2?"""
CHANGE = {"path": "cart.py", "old": "item.price - discount for", "new": "item.price for"}


def call(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool call in the form that a provider sends."""
    function = {"name": name.replace(".", "_"), "arguments": json.dumps(given)}
    return {"tool_calls": [{"index": 0, "id": f"call-{name}", "type": "function", "function": function}]}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    shop = Path(tempfile.gettempdir(), "shop")
    shop.mkdir()
    try:
        (shop / "cart.py").write_text(CART)
        with interpreter() as python, mounted(python, []) as ctx, played() as provider:
            provider.turns = [
                ["What changed in this release?"],
                [call("fs.read", {"path": "cart.py"})],
                [FOUND],
                [call("fs.replace", CHANGE)],
                ["Done."],
            ]
            prepare(ctx, provider.url)
            with web(ctx) as page, browsing() as browser, person(browser, page.link) as tab:
                tab.emulate_media(color_scheme="light", reduced_motion="reduce")
                tab.set_viewport_size(WINDOW)
                take(tab, page, str(shop))
    finally:
        shutil.rmtree(shop)


def prepare(ctx: Ctx, url: str) -> None:
    where = ("--base-url", url, "--format", "openai.chat", "--model", "large", "--tools")
    ctx.ctx("provider", "add", "acme", *where)
    tools = ("--tools", "fs.read", "--tools", "fs.replace")
    ctx.ctx("agent", "new", "coder", "--model", "acme/large", "--approval", "ask", *tools)


def take(tab: Tab, page: WebProcess, shop: str) -> None:
    """Take a conversation with a call and its result, and then a change that waits to be allowed."""
    place = shop.replace("/", "%2F")
    begin(tab, page, f"release-notes/{place}", "Write the notes of the release")
    answer(tab).get_by_text("What changed").wait_for()
    begin(tab, page, f"fix-the-cart/{place}", "Why does test_cart.py fail?")
    reading = question(tab, "fs.read").get_by_role("button", name="Allow", exact=True)
    answer(tab).get_by_text("Shall I change").or_(reading).wait_for()
    if reading.count():
        reading.click()
    answer(tab).get_by_text("Shall I change").wait_for()
    answered(tab)
    tab.reload()  # the list was made before the session
    tab.get_by_role("link", name="fix-the-cart", exact=True).wait_for()
    answer(tab).locator("summary").first.click()
    shot(tab, "talk")
    say(tab, "Yes, please")
    question(tab, "fs.replace").wait_for()
    part(tab, page, "approvals")
    tab.reload()
    question(tab, "fs.replace").wait_for()
    shot(tab, "approvals")
    question(tab, "fs.replace").get_by_role("button", name="Allow", exact=True).click()
    question(tab, "fs.replace").wait_for(state="detached")


def begin(tab: Tab, page: WebProcess, session: str, text: str) -> None:
    go(tab, page, CODER, session)
    say(tab, text)


def shot(tab: Tab, name: str) -> None:
    tab.screenshot(path=FOLDER / f"{name}.png", animations="disabled", caret="hide")


if __name__ == "__main__":
    main()
