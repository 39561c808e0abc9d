"""Steps of a person that several tests of the page take."""

from __future__ import annotations

import json
from typing import Any

from tests.web.browsing import Tab, WebProcess

ECHO = "model/debug/echo"
SCRIPTED = "model/debug/script"


def go(tab: Tab, page: WebProcess, object_: str, session: str) -> None:
    """Open a conversation, and wait until it is shown."""
    tab.get_by_role("link", name="Talk", exact=True).wait_for()
    tab.goto(f"{page.url}#/talk/private/{object_.replace('/', '%2F')}/{session}")
    tab.get_by_role("heading", name=session.partition("/")[0]).wait_for()


def part(tab: Tab, page: WebProcess, path: str) -> None:
    """Open a part of the page, and wait until it is shown."""
    tab.get_by_role("link", name="Talk", exact=True).wait_for()
    tab.goto(f"{page.url}#/{path}")
    tab.locator("main h1").first.wait_for()


def say(tab: Tab, text: str) -> None:
    tab.get_by_role("textbox", name="Message").fill(text)
    tab.get_by_role("button", name="Send").click()


def play(tab: Tab, *steps: dict[str, Any]) -> None:
    """Send a message for debug/script."""
    say(tab, json.dumps(steps))


def log(tab: Tab) -> Any:
    return tab.get_by_role("log", name="Conversation")


def answer(tab: Tab) -> Any:
    return log(tab).get_by_role("article", name="Answer")


def answered(tab: Tab) -> None:
    """Waits for the end of all answers. The text of an answer is shown before its end."""
    tab.locator("button:disabled", has_text="Stop").wait_for()


def question(tab: Tab, name: str) -> Any:
    return tab.get_by_role("region", name=f"Question about {name}")
