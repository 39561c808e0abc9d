"""Approvals in a real browser: one list for the questions of all sessions (abi.md 13)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.mounted.talking import SCRIPT, Talk, history, talk, text
from tests.waiting import until
from tests.web.acting import ECHO, SCRIPTED, answer, go, part, play, question, say
from tests.web.browsing import Tab, WebProcess, opened

COMMAND = "rm -rf ./build\n" + "# a line\n" * 40 + "echo 'the last line'"
EXEC = {
    "name": "shell.exec",
    "input": {"cmd": COMMAND},
    "effects": ["process.spawn", "fs.write /"],
    "reason": "it writes",
}


@pytest.fixture
def asking(ctx: Ctx) -> Iterator[Talk]:
    """A person in a terminal whose message leads to a question."""
    with talk(ctx, SCRIPT) as client:
        yield client


def ask(asking: Talk, session: str, **approval: Any) -> None:
    asking.play({"approval": approval}, session=session)
    asking.until("approval")


def test_all_that_a_call_is_about_is_shown_and_allowed(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.11
    go(tab, page, SCRIPTED, "decide")
    play(tab, {"approval": EXEC})
    asked = question(tab, "shell.exec")
    asked.get_by_label("Command").wait_for()
    assert asked.get_by_label("Command").inner_text() == COMMAND
    assert asked.get_by_label("Effects").inner_text().split("\n") == EXEC["effects"]
    assert asked.get_by_text("it writes").is_visible()
    titled = f"{SCRIPTED} decide - Talk - CortexFS"  # abi.md 13.41
    until(tab.title, lambda seen: seen == f"(1) {titled}")
    asked.get_by_role("button", name="Allow", exact=True).click()
    answer(tab).get_by_text("allow_once").wait_for()
    until(tab.title, lambda seen: seen == titled)
    assert question(tab, "shell.exec").count() == 0


def test_an_edited_call_is_allowed_as_it_was_edited(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.11
    go(tab, page, SCRIPTED, "edit")
    play(tab, {"approval": EXEC})
    asked = question(tab, "shell.exec")
    asked.locator("summary", has_text="Edit").click()
    asked.get_by_role("textbox", name="Input").fill('{"cmd": ')
    asked.get_by_role("button", name="Allow", exact=True).click()
    asked.get_by_role("alert").get_by_text("JSON").wait_for()
    asked.get_by_role("textbox", name="Input").fill('{"cmd": "true"}')
    asked.get_by_role("button", name="Allow for this session").click()
    asked.get_by_role("alert").get_by_text("once only").wait_for()
    asked.get_by_role("button", name="Allow", exact=True).click()
    answer(tab).get_by_text('allow_once {"cmd":"true"}').wait_for()


@pytest.mark.parametrize(
    ("button", "decision"), [("Deny", "deny"), ("Allow for this session", "allow_session")]
)
def test_other_answers(tab: Tab, page: WebProcess, button: str, decision: str) -> None:
    # abi.md 13.11
    go(tab, page, SCRIPTED, f"answer-{decision}")
    play(tab, {"approval": EXEC})
    question(tab, "shell.exec").get_by_role("button", name=button).click()
    answer(tab).get_by_text(decision).wait_for()


def test_questions_of_all_sessions_are_in_one_place(
    tab: Tab, page: WebProcess, ctx: Ctx, asking: Talk
) -> None:
    # abi.md 13.11: also those of a terminal's session
    ask(asking, "one", name="first.tool", input={"a": 1}, reason="because")
    ask(asking, "two", name="second.tool", input={"b": "<b>x</b>"})
    part(tab, page, "approvals")
    tab.get_by_role("link", name="Approvals (2)").wait_for()
    until(tab.title, lambda seen: seen == "(2) Approvals - CortexFS")
    first, second = question(tab, "first.tool"), question(tab, "second.tool")
    first.get_by_role("link", name=f"{SCRIPTED} one").wait_for()
    assert "<b>x</b>" in second.get_by_label("Input").first.inner_text()
    second.get_by_role("button", name="Deny").click()
    second.wait_for(state="detached")
    assert text(asking.until("done")) == "deny"
    first.get_by_role("button", name="Allow", exact=True).click()
    tab.get_by_text("Nothing waits to be decided.").wait_for()
    assert text(asking.until("done")) == "allow_once"


def test_a_question_that_is_answered_elsewhere_goes(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.11
    go(tab, page, SCRIPTED, "elsewhere")
    play(tab, {"approval": EXEC | {"call": "c1"}})
    second = opened(tab.context, page.url)
    part(second, page, "approvals")
    asked = question(second, "shell.exec")
    asked.wait_for()
    run = next(frame["run"] for frame in history(ctx, "elsewhere", SCRIPT) if frame["type"] == "approval")
    with talk(ctx, SCRIPT) as client:
        client.ask("approve", run=run, call="c1", decision="deny")
        asked.wait_for(state="detached")
    answer(tab).get_by_text("deny").wait_for()
    question(tab, "shell.exec").wait_for(state="detached")


def test_a_change_is_shown_as_a_diff(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.11
    file = ctx.work / "app.py"
    file.write_text("one\ntwo\nthree\n")
    go(tab, page, SCRIPTED, "diff")
    change = {"path": str(file), "old": "two", "new": "2 <script>"}
    play(tab, {"approval": {"name": "fs.replace", "input": change}})
    diff = question(tab, "fs.replace").get_by_label("Change")
    diff.wait_for()
    assert diff.locator(".removed").inner_text().strip() == "-two"
    assert diff.locator(".added").inner_text().strip() == "+2 <script>"
    assert " one" in diff.inner_text()
    question(tab, "fs.replace").get_by_role("button", name="Deny").click()
    answer(tab).get_by_text("deny").wait_for()


NOTICED = """window.noticed = [];
document.hasFocus = () => false;
window.Notification = class extends Notification {
    constructor(title, options) { super(title, options); window.noticed.push([title, options.body]); }
};"""


def test_a_person_who_looks_elsewhere_is_notified(tab: Tab, page: WebProcess, asking: Talk) -> None:
    # abi.md 13.11
    tab.context.grant_permissions(["notifications"], origin=page.url)
    tab.add_init_script(NOTICED)
    part(tab, page, "approvals")
    tab.reload()
    tab.get_by_role("heading", name="Approvals").wait_for()
    assert tab.get_by_role("button", name="Notify me").count() == 0  # it is allowed already
    ask(asking, "noticed", name="some.tool")
    until(lambda: tab.evaluate("noticed"), lambda seen: seen == [["Allow some.tool?", f"{SCRIPTED} noticed"]])
    question(tab, "some.tool").get_by_role("button", name="Deny").click()
    asking.until("done")


def test_the_page_holds_a_session_without_tabs(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.12: a call is not denied as its tab was closed
    go(tab, page, SCRIPTED, "held")
    play(tab, {"approval": EXEC})
    question(tab, "shell.exec").wait_for()
    other = opened(tab.context, "about:blank")
    tab.close()
    ctx.at_rest(1)
    other.goto(page.url)
    part(other, page, "approvals")
    question(other, "shell.exec").get_by_role("button", name="Allow", exact=True).click()
    until(lambda: text(history(ctx, "held", SCRIPT)), lambda seen: seen == "allow_once")


def test_an_idle_tab_costs_the_daemon_nothing(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.12: a session in which nothing goes on is not held
    part(tab, page, "status")
    before = sockets(page.process.pid)
    go(tab, page, ECHO, "idle")
    until(lambda: sockets(page.process.pid), lambda seen: seen == before + 1)  # the tab's connection
    say(tab, "something")
    answer(tab).get_by_text("tokens in").wait_for()
    until(lambda: sockets(page.process.pid), lambda seen: seen == before + 1)
    part(tab, page, "status")
    until(lambda: sockets(page.process.pid), lambda seen: seen == before)


def sockets(pid: int) -> int:
    """Counts the Unix sockets that a process has to others, apart from those of its event loop."""
    inodes = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if words[5] == "03" and len(words) == 7:
            inodes.add(words[6])
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            link = str(descriptor.readlink())
            found += link.startswith("socket:") and link[8:-1] in inodes
    return found


def test_a_second_click_answers_no_second_question(tab: Tab, page: WebProcess, asking: Talk) -> None:
    # abi.md 13.35
    part(tab, page, "approvals")
    for number in (1, 2):
        ask(asking, f"twice-{number}", **EXEC | {"reason": f"question {number}"})
    both = question(tab, "shell.exec")
    until(both.count, lambda seen: seen == 2)
    tab.evaluate(
        """() => {
            const all = [...document.querySelectorAll(".asked")];
            window.place = all[0].parentElement;
            new MutationObserver(() => { window.seen ??= window.place.style.pointerEvents; })
                .observe(window.place, {childList: true, subtree: true});
        }"""
    )
    both.first.get_by_role("button", name="Deny").click()
    until(both.count, lambda seen: seen == 1)
    assert tab.evaluate("window.seen") == "none"
    both.first.get_by_role("button", name="Deny").click()  # waits until a click has an effect
    until(both.count, lambda seen: seen == 0)
