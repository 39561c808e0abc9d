"""Conversations in a real browser: a person's actions, and the attacks of a hostile model (abi.md 13)."""

from __future__ import annotations

import os
import signal

import pytest

from cortexfs.core.talk import refusals
from tests.mounted.ctx_mount import Ctx, wait_gone
from tests.mounted.talking import SCRIPT, history, said, talk, types
from tests.waiting import until
from tests.web.acting import ECHO, answer, answered, go, log, play, say
from tests.web.browsing import Tab, WebProcess, opened


def test_a_person_asks_and_sees_the_answer(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    tab.get_by_role("link", name="Talk", exact=True).click()
    tab.get_by_label("With").select_option(label="debug/echo")
    tab.get_by_label("Name").fill("first")
    tab.get_by_role("button", name="Begin").click()
    say(tab, "hello **there**")
    log(tab).locator("strong", has_text="there").wait_for()
    log(tab).get_by_text("2 tokens in").wait_for()
    assert types(history(ctx, "first"))[-1] == "done"
    tab.get_by_role("link", name="Sessions", exact=True).click()
    tab.get_by_role("link", name="first", exact=True).click()
    log(tab).locator("strong", has_text="there").wait_for()
    assert log(tab).get_by_role("article").count() == 2


def test_first_words_are_there_before_the_last(tab: Tab, page: WebProcess) -> None:
    go(tab, page, "model/debug/script", "words")
    play(tab, {"delta": "# Title\n\nsome *words*\n\nand mo"}, {"hang": True})
    answer(tab).get_by_text("and mo").wait_for()
    answer(tab).locator("em", has_text="words").wait_for()  # a complete block is rendered as Markdown already
    tab.get_by_role("button", name="Stop").click()
    answer(tab).get_by_text("Stopped.").wait_for()
    answer(tab).get_by_text("and mo").wait_for()


def test_reload_in_mid_stream_loses_nothing(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    go(tab, page, "model/debug/script", "reload")
    play(tab, {"delta": "before "}, {"approval": {"name": "go.on"}}, {"delta": " after"})
    answer(tab).get_by_text("before").wait_for()
    tab.reload()
    answer(tab).get_by_text("before").wait_for()
    tab.get_by_role("button", name="Allow", exact=True).click()
    answer(tab).get_by_text("before allow_once after").wait_for()
    answer(tab).get_by_text("tokens in").wait_for()
    assert types(history(ctx, "reload", SCRIPT)).count("done") == 1
    assert log(tab).get_by_role("article", name="You").count() == 1


def test_tabs_and_the_terminal_see_the_same(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    go(tab, page, ECHO, "shared")
    second = opened(tab.context, page.url)
    go(second, page, ECHO, "shared")
    say(tab, "from the first tab")
    answer(second).get_by_text("from the first tab").wait_for()
    said(ctx, "from a terminal", session="shared")
    for each in (tab, second):
        answer(each).get_by_text("from a terminal").wait_for()
        each.get_by_role("article", name="You").get_by_text("from a terminal").wait_for()
    assert second.faults == []


def test_a_session_is_found_by_what_was_said(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    said(ctx, "the heron stands in the reeds", session="found-by-text")
    said(ctx, "nothing of that kind", session="not-found")
    tab.reload()  # the list was made before them
    tab.get_by_role("link", name="not-found", exact=True).wait_for()
    tab.get_by_role("searchbox", name="Search").fill("heron reeds")
    tab.get_by_role("link", name="not-found", exact=True).wait_for(state="detached")
    tab.get_by_role("link", name="found-by-text", exact=True).wait_for()


def test_a_session_is_removed(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    said(ctx, "away with it", session="doomed")
    tab.get_by_role("link", name="Sessions", exact=True).click()
    tab.on("dialog", lambda dialog: dialog.accept())
    tab.get_by_role("button", name="Remove doomed").click()
    tab.get_by_role("link", name="doomed", exact=True).wait_for(state="detached")
    assert not [path for path in (ctx.root / "home").rglob("session/doomed") if path.exists()]


def test_a_session_is_renamed(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.34
    go(tab, page, ECHO, "unnamed")
    say(tab, "how do you do")
    answer(tab).get_by_text("how do you do").wait_for()
    answered(tab)
    tab.once("dialog", lambda dialog: dialog.accept("greeting"))
    tab.get_by_role("button", name="Rename").click()
    tab.get_by_role("heading", name="greeting").wait_for()
    answer(tab).get_by_text("how do you do").wait_for()
    say(tab, "once more")
    answer(tab).get_by_text("once more").wait_for()
    answered(tab)
    assert types(history(ctx, "greeting")).count("start") == 2
    with talk(ctx, "model/debug/echo.sock") as elsewhere:
        elsewhere.ask("resume", session="greeting")
        elsewhere.until("done")
        tab.once("dialog", lambda dialog: dialog.accept("other"))
        tab.get_by_role("button", name="Rename").click()
        tab.get_by_role("status").get_by_text("the session is in use").wait_for()
    tab.get_by_role("link", name="Sessions", exact=True).click()
    tab.once("dialog", lambda dialog: dialog.accept("hello"))
    tab.get_by_role("button", name="Rename greeting of model/debug/echo").click()
    tab.get_by_role("link", name="hello", exact=True).wait_for()
    assert not [path for path in (ctx.root / "home").rglob("session/greeting") if path.exists()]


def test_the_machine_of_a_teams_session_is_shown(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    said(ctx, "here", session="alone")
    there = [
        {
            "object": ECHO,
            "session": "plan+box",
            "space": "private",
            "state": "done",
            "updated": 0,
            "messages": 2,
            "size": 9,
            "machine": "box",
            "cwd": "/srv/plan",
            "path": "",
        }
    ]
    tab.get_by_role("link", name="Sessions", exact=True).click()
    tab.get_by_role("link", name="alone", exact=True).wait_for()
    assert tab.get_by_role("columnheader", name="Machine").count() == 0
    tab.route("**/api/sessions", lambda route: route.fulfill(json=there))
    tab.reload()
    row = tab.get_by_role("row").filter(has_text="plan+box")
    row.get_by_role("cell", name="box", exact=True).wait_for()
    row.get_by_role("cell", name="/srv/plan", exact=True).wait_for()
    tab.get_by_role("link", name="Talk", exact=True).click()
    tab.get_by_role("navigation", name="Conversations").get_by_text("box · done").wait_for()


def test_a_message_survives_a_page_that_ends(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # a draft stays in its field, and a failed send is not lost
    go(tab, page, ECHO, "survives")
    tab.get_by_role("textbox", name="Message").fill("a draft")
    until(lambda: tab.evaluate("sessionStorage.length"))
    tab.reload()
    until(lambda: tab.get_by_role("textbox", name="Message").input_value(), lambda seen: seen == "a draft")
    tab.context.set_offline(True)
    tab.get_by_role("button", name="Send").click()
    tab.locator(".pending", has_text="a draft").wait_for()
    tab.context.set_offline(False)
    tab.reload()
    answer(tab).get_by_text("a draft").wait_for()
    assert types(history(ctx, "survives")).count("start") == 1


def test_a_part_that_cannot_be_loaded_says_so(tab: Tab, page: WebProcess) -> None:
    # a browser does not request a failed module twice, and parts are loaded before they are opened
    tab.route("**/tools.js", lambda route: route.abort())
    tab.reload()
    tab.get_by_role("link", name="Tools", exact=True).click()
    tab.get_by_role("alert").get_by_text("Reload the page").wait_for()
    tab.unroute("**/tools.js")
    tab.reload()
    tab.get_by_role("heading", name="Tools").wait_for()


def test_calls_and_reasoning_are_folded(tab: Tab, page: WebProcess) -> None:
    go(tab, page, "model/debug/script", "calls")
    call = {"name": "fs.read", "input": {"path": "/nothing"}, "call": "c1"}
    result = {"name": "fs.read", "call": "c1", "output": "what it gave"}
    play(tab, {"delta": "I look. "}, {"tool_call": call}, {"tool_result": result}, {"delta": "I saw."})
    answer(tab).get_by_text("I saw.").wait_for()
    gave = answer(tab).get_by_text("what it gave")
    assert not gave.is_visible()
    answer(tab).locator("summary", has_text="fs.read").click()
    gave.wait_for()
    texts = answer(tab).inner_text()
    assert texts.index("I look.") < texts.index("what it gave") < texts.index("I saw.")


def test_what_failed_and_what_was_cut_stays_in_words_for_people(tab: Tab, page: WebProcess) -> None:
    # models.md: "One that was cut at `max_tokens` is no failure"
    go(tab, page, "model/debug/script", "cut")
    output = '<tool_output error="ENOENT" trust="untrusted">\nno such file\n</tool_output>'
    result = {"name": "fs.read", "call": "c1", "output": output, "is_error": True}
    play(tab, {"tool_result": result}, {"progress": "far"}, {"delta": "half"}, {"progress": refusals.CUT})
    answer(tab).get_by_text("tokens in").wait_for()
    texts = answer(tab).inner_text()
    assert "ENOENT: no such file" in texts
    assert "tool_output" not in texts
    assert refusals.CUT in texts
    assert "far" not in texts


HOSTILE = """<script>window.hurt = 1</script> <img src=x onerror="window.hurt = 1">

[click](javascript:window.hurt=1) [data](data:text/html,<script>1</script>) [own](/api/objects)
[hash](#/approvals)
![picture](https://evil.example/track.png) <https://evil.example/auto>

[a]: javascript:alert(1)
[ref][a] [vb](vbscript:x) [odd](  javascript:x) [mixed](JaVaScRiPt:x) [ent](&#106;avascript:x)

```html
<iframe src="https://evil.example"></iframe>
```
| a | b |
|---|---|
| <b onclick=1>x</b> | `<svg/onload=1>` |
"""


def test_a_hostile_models_markdown_is_text(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.10
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    go(tab, page, ECHO, "hostile")
    say(tab, HOSTILE)
    log(tab).get_by_text("tokens in").wait_for()
    said_ = answer(tab)
    assert said_.locator("script, img, iframe, svg, b, [onclick], [onerror]").count() == 0
    links = said_.get_by_role("link").evaluate_all("all => all.map(each => each.href)")
    assert links == ["https://evil.example/track.png", "https://evil.example/auto"]
    assert said_.get_by_role("link").first.get_attribute("rel") == "noopener noreferrer nofollow"
    assert tab.evaluate("window.hurt") is None
    tab.reload()
    log(tab).get_by_text("tokens in").wait_for()
    assert not [url for url in asked if "evil" in url]
    assert all(url.startswith((page.url, "data:")) for url in asked)


def test_text_cannot_become_markup(tab: Tab) -> None:
    # abi.md 13.5: not even by a fault of ours
    tab.get_by_role("link", name="Talk", exact=True).wait_for()
    refused = tab.evaluate(
        """() => ['innerHTML', 'outerHTML', 'srcdoc'].map((sink) => {
            const made = document.createElement(sink === 'srcdoc' ? 'iframe' : 'p');
            document.body.append(made);
            try { made[sink] = '<b>x</b>'; return 'taken'; } catch (problem) { return problem.name; }
        })"""
    )
    assert refused == ["TypeError"] * 3
    tab.faults.clear()


def test_twenty_thousand_deltas(tab: Tab, page: WebProcess) -> None:
    go(tab, page, "model/debug/script", "burst")
    play(tab, {"burst": 20000, "size": 32}, {"delta": "THE END"})
    answer(tab).get_by_text("THE END").wait_for()
    answer(tab).get_by_text("tokens in").wait_for()
    tab.get_by_role("textbox", name="Message").fill("it answers")


@pytest.mark.parametrize("width", [320, 1280])
def test_a_page_is_as_wide_as_its_window(tab: Tab, page: WebProcess, ctx: Ctx, width: int) -> None:
    said(ctx, "wide " * 40 + "x" * 400, session="width")
    tab.set_viewport_size({"width": width, "height": 700})
    for part in ("talk", "approvals", "tools", "tools/fs.read", "sessions", "status", "models"):
        tab.goto(f"{page.url}#/{part}")
        tab.locator("main h1").first.wait_for()
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, part
    go(tab, page, ECHO, "width")
    log(tab).get_by_text("xxxx").first.wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_the_daemon_is_killed_and_mounted_again(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    go(tab, page, ECHO, "killed")
    say(tab, "one")
    answer(tab).get_by_text("one").wait_for()
    ctx.ctx("restart", str(ctx.root))
    say(tab, "two")
    answer(tab).get_by_text("two").wait_for()
    until(lambda: types(history(ctx, "killed")).count("done"), lambda count: count == 2)
    with talk(ctx) as client:
        assert client.is_alive()


def test_a_daemon_that_is_killed_in_mid_stream_and_mounted_again(
    tab: Tab, page: WebProcess, ctx: Ctx
) -> None:
    go(tab, page, "model/debug/script", "killed-hard")
    play(tab, {"delta": "before the end "}, {"hang": True})
    answer(tab).get_by_text("before the end").wait_for()
    pid = ctx.pid
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid)
    tab.get_by_text("The connection is lost; trying again.").wait_for()
    play(tab, {"delta": "said meanwhile"})
    ctx.mount()
    answer(tab).get_by_text("said meanwhile").wait_for()
    answer(tab).first.get_by_role("alert").wait_for()  # the run that was cut off shows its error
    assert log(tab).get_by_text("before the end").count() == 2  # once in the message, once in the answer
    assert types(history(ctx, "killed-hard", SCRIPT)).count("start") == 2
