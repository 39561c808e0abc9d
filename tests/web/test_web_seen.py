"""A call is shown exactly as it will run, and a keyboard keeps its place, in a real browser (abi.md 13)."""

from __future__ import annotations

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.waiting import until
from tests.web.acting import ECHO, SCRIPTED, answer, go, part, play, question, say
from tests.web.browsing import Tab, WebProcess, opened

ID = 1234567890123456789  # JavaScript would round it to ...800
PILE = "e" + "\u0301" * 4
TURNED = f"echo \u202e)x fr- mr( \u200b\u0336rm\u00a0 h\u00e9 \u05e9 r\u0336m\u2800 {PILE}\u0301"


def focus(tab: Tab) -> str:
    """Returns the accessible name of the focused element."""
    found = tab.evaluate("(({ariaLabel, id, tagName}) => ariaLabel || id || tagName)(document.activeElement)")
    return str(found)


def test_a_number_keeps_its_digits(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.39. Found: another id was shown than the call had, and an edit made that its id
    go(tab, page, SCRIPTED, "digits")
    call = {"name": "msg.delete", "input": {"id": ID, "why": "x"}}
    play(tab, {"approval": call}, {"tool_call": call | {"call": "c1"}})
    second = opened(tab.context, page.url)
    part(second, page, "approvals")
    for each in (tab, second):  # the second tab learns of it through the daemon
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
    struck = rf" r\u0336m\u2800 {PILE}\u0301"
    assert r"echo \u202e)x fr- mr( \u200b\u0336rm\u00a0 h" + "\u00e9 \u05e9" + struck in seen
    asked.get_by_text(r"a\u202eb").wait_for()
    asked.locator("summary", has_text="Edit").click()
    text = asked.get_by_role("textbox", name="Input")
    text.fill(text.input_value().replace("echo", "cat"))
    asked.get_by_role("button", name="Allow", exact=True).click()
    edited = TURNED.replace("echo", "cat")  # the part that was not edited is unchanged
    until(lambda: answer(tab).text_content(), lambda said: edited in said)


def test_a_decision_keeps_the_focus(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.14
    go(tab, page, SCRIPTED, "focus")
    for number in (1, 2):
        play(tab, {"approval": {"name": f"tool.{number}"}})
        question(tab, f"tool.{number}").get_by_role("button", name="Allow", exact=True).press("Enter")
        question(tab, f"tool.{number}").wait_for(state="detached")
        assert focus(tab) == "Conversation"


def test_what_cannot_be_looked_at_is_not_called_empty(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # Found: without a mount the page showed no tools, no models, no sessions, and nothing to decide
    part(tab, page, "status")
    ctx.umount()
    try:
        for view in ("tools", "models", "sessions", "talk"):
            part(tab, page, view)
            tab.get_by_role("alert").get_by_text("see: ctx status").or_(
                tab.get_by_role("alert").get_by_text("mount one with: ctx mount")
            ).wait_for()
        part(tab, page, "approvals")
        tab.get_by_role("alert").get_by_text("no mount is at").wait_for()
        assert not tab.get_by_text("Nothing waits to be decided.").is_visible()
    finally:
        ctx.mount()
    tab.get_by_text("Nothing waits to be decided.").wait_for()
    part(tab, page, "plugins/none")
    tab.get_by_role("alert").get_by_text("there is no plugin none").wait_for()


def test_a_list_of_sessions_says_that_it_ends(tab: Tab, page: WebProcess) -> None:
    row = {"object": ECHO, "space": "private", "state": "done", "updated": 0, "messages": 2, "cwd": ""}
    rows = [row | {"session": f"s-{number}"} for number in range(500)]
    tab.route("**/api/sessions", lambda route: route.fulfill(json=rows))
    for view in ("sessions", "talk"):
        part(tab, page, view)
        tab.get_by_text("The newest 500 are listed").wait_for()


def test_another_link_leads_where_this_one_does(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.2. Found: behind ssh -L it had the port of the other machine
    token = tab.evaluate("new Promise(go => setTimeout(() => go(localStorage.getItem('cortexfs.token'))))")
    headers = {"Host": "localhost:9", "Authorization": f"Bearer {token}"}
    answered = tab.context.request.post(f"{page.url}api/ticket", data={}, headers=headers)
    assert answered.json()["link"].startswith("http://localhost:9/#ticket=")


def test_a_conversation_is_printed_whole(tab: Tab, page: WebProcess) -> None:
    # Found: only one screen of it was printed
    go(tab, page, ECHO, "printed")
    say(tab, "\n\n".join(f"line {number}" for number in range(200)))
    answer(tab).get_by_text("tokens in").wait_for()
    tab.emulate_media(media="print")
    ends = [answer(tab).get_by_text(f"line {number}", exact=True) for number in (0, 199)]
    first, last = (each.bounding_box() for each in ends)
    assert first["y"] >= 0
    assert last["y"] < tab.evaluate("document.documentElement.scrollHeight")
    assert not tab.get_by_role("textbox", name="Message").is_visible()


def test_each_paragraph_has_its_own_direction(tab: Tab, page: WebProcess) -> None:
    go(tab, page, ECHO, "directions")
    say(tab, "\u05e9\u05dc\u05d5\u05dd\n\nhello")
    answer(tab).get_by_text("tokens in").wait_for()
    place = """text => { const range = document.createRange();
        const all = [...document.querySelectorAll(".answer p")];
        range.selectNodeContents(all.find(each => each.textContent === text));
        return range.getBoundingClientRect().left; }"""
    assert tab.evaluate(place, "\u05e9\u05dc\u05d5\u05dd") > tab.evaluate(place, "hello") + 100
