"""A call is shown for what it is, and a keyboard keeps its place, in a real browser (abi.md 13)."""

from __future__ import annotations

import pytest

from tests.waiting import until
from tests.web.acting import SCRIPTED, answer, go, part, play, question
from tests.web.browsing import Tab, WebProcess, opened

ID = 1234567890123456789  # which JavaScript holds as ...800
TURNED = "echo \u202e)x fr- mr( \u200b\u0336rm\u00a0 h\u00e9 \u05e9"


def focus(tab: Tab) -> str:
    """The element that has the focus, by its name."""
    found = tab.evaluate("(({ariaLabel, id, tagName}) => ariaLabel || id || tagName)(document.activeElement)")
    return str(found)


def test_a_number_keeps_its_digits(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.39. Found: another id was shown than the call had, and an edit made that its id
    go(tab, page, SCRIPTED, "digits")
    call = {"name": "msg.delete", "input": {"id": ID, "why": "x"}}
    play(tab, {"approval": call}, {"tool_call": call | {"call": "c1"}})
    second = opened(tab.context, page.url)
    part(second, page, "approvals")
    for each in (tab, second):  # one of them hears it of the other
        question(each, "msg.delete").wait_for()
        assert str(ID) in question(each, "msg.delete").get_by_label("Input").first.inner_text()
    asked = question(second, "msg.delete")
    asked.locator("summary", has_text="Edit").click()
    text = asked.get_by_role("textbox", name="Input")
    text.fill(text.input_value().replace('"x"', '"y"'))
    asked.get_by_role("button", name="Allow", exact=True).click()
    answer(tab).get_by_text(f'allow_once {{"id":{ID},"why":"y"}}').first.wait_for()
    answer(tab).get_by_text("tokens in").wait_for()
    tab.reload()
    answer(tab).get_by_label("Input").get_by_text(str(ID)).wait_for(state="attached")


@pytest.mark.parametrize("name", ["shell.exec", "other.tool"])
def test_what_turns_or_hides_text_is_spelled_out(tab: Tab, page: WebProcess, name: str) -> None:
    # abi.md 13.39, as in a terminal: another command was seen than would run
    go(tab, page, SCRIPTED, f"turned-{name}")
    play(tab, {"approval": {"name": name, "input": {"cmd": TURNED}, "reason": "a\u202eb"}})
    asked = question(tab, name)
    label = "Command" if name == "shell.exec" else "Input"
    seen = asked.get_by_label(label).first.inner_text()
    assert r"echo \u202e)x fr- mr( \u200b\u0336rm\u00a0 h" + "\u00e9 \u05e9" in seen
    asked.get_by_text(r"a\u202eb").wait_for()
    asked.locator("summary", has_text="Edit").click()
    text = asked.get_by_role("textbox", name="Input")
    text.fill(text.input_value().replace("echo", "cat"))
    asked.get_by_role("button", name="Allow", exact=True).click()
    edited = TURNED.replace("echo", "cat")  # what was not edited is as it was
    until(lambda: answer(tab).text_content(), lambda said: edited in said)


def test_a_decision_keeps_the_focus(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.14
    go(tab, page, SCRIPTED, "focus")
    for number in (1, 2):
        play(tab, {"approval": {"name": f"tool.{number}"}})
        question(tab, f"tool.{number}").get_by_role("button", name="Allow", exact=True).press("Enter")
        question(tab, f"tool.{number}").wait_for(state="detached")
        assert focus(tab) == "Conversation"
