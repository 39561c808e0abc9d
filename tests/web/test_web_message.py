"""The message that is being written, and the past of a session (abi.md 13)."""

from __future__ import annotations

from functools import partial
from operator import lt
from typing import Any

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.mounted.talking import SCRIPT, history, said, talk
from tests.waiting import until
from tests.web.acting import ECHO, SCRIPTED, answer, go, log, play, say
from tests.web.browsing import Tab, WebProcess
from tests.web.test_web_looks import axe, violations

__all__ = ["axe"]
PICTURE = b"\x89PNG\r\n\x1a\n" + b"\0" * 40


def attach(tab: Tab, name: str, data: bytes) -> None:
    file = {"name": name, "mimeType": "", "buffer": data}
    tab.locator(".conversation input[type=file]").first.set_input_files(file)


def test_a_file_goes_along(tab: Tab, page: WebProcess, ctx: Ctx, axe: str) -> None:
    # abi.md 13.22
    go(tab, page, ECHO, "files")
    attach(tab, "no<b>tes.md", b"some *notes*\n")
    attached = tab.get_by_role("list", name="Attached")
    attached.get_by_text("no<b>tes.md").wait_for()
    assert violations(tab, axe) == []
    attach(tab, "away.txt", b"away")
    attached.get_by_role("button", name="Remove away.txt").press("Enter")
    attached.get_by_text("away.txt").wait_for(state="detached")
    say(tab, "look at this")
    answer(tab).get_by_text("tokens in").wait_for()
    you = log(tab).get_by_role("article", name="You").inner_text()
    assert "look at this" in you
    assert "some *notes*" in you
    assert "away" not in you
    assert attached.count() == 0


def test_what_a_model_cannot_take_is_refused_at_once(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.22
    go(tab, page, ECHO, "refused")
    for name, data, why in (
        ("pixel.png", PICTURE, "takes no pictures"),
        ("blob", b"\xff\0\xfe", "is not text"),
        ("large.txt", b"x" * 900_000, "make it smaller"),
    ):
        attach(tab, name, data)
        tab.get_by_role("status").get_by_text(why).wait_for()
    assert tab.get_by_role("list", name="Attached").count() == 0


def test_a_failed_message_is_said_again(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    go(tab, page, SCRIPTED, "again")
    play(tab, {"error": {"code": "EIO", "message": "it broke"}})
    answer(tab).get_by_text("it broke").wait_for()
    tab.get_by_role("button", name="Retry").click()
    log(tab).get_by_role("article", name="You").nth(1).wait_for()
    answer(tab).nth(1).get_by_text("it broke").wait_for()
    first, second = [one for one in history(ctx, "again", SCRIPT) if one["type"] == "message"][:2]
    assert first["content"] == second["content"]


def test_what_was_said_earlier_is_loaded(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.23: all of a session, a part at a time, in its order
    with talk(ctx) as client:
        for number in range(32):
            said(ctx, f"message {number}.", session="long")
        assert client.is_alive()
    go(tab, page, ECHO, "long")
    log(tab).get_by_text("message 31.").first.wait_for()
    assert log(tab).get_by_text("message 0.").count() == 0
    for _ in range(3):
        more = tab.get_by_role("button", name="Show earlier")
        before = log(tab).get_by_role("article").count()
        more.press("Enter")
        until(log(tab).get_by_role("article").count, partial(lt, before))
    more.wait_for(state="detached")
    seen = log(tab).get_by_role("article", name="You").all_inner_texts()
    assert seen == [f"message {number}." for number in range(32)]
    assert log(tab).get_by_role("article", name="Answer").count() == 32
    say(tab, "and on")
    answer(tab).last.get_by_text("and on").wait_for()


def test_a_long_run_is_loaded_whole(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.23: a session of more bytes than one look
    with talk(ctx, SCRIPT) as client:
        for number in range(4):
            client.play(
                {"delta": f"begin {number} "},
                {"burst": 900, "size": 1000},
                {"delta": f" end {number}"},
                session="wide",
            )
            client.until("done")
    go(tab, page, SCRIPTED, "wide")
    log(tab).get_by_text("end 3").first.wait_for()
    while tab.get_by_role("button", name="Show earlier").count():
        before = answer(tab).count()
        tab.get_by_role("button", name="Show earlier").press("Enter")
        until(answer(tab).count, partial(lt, before))
    log(tab).get_by_text("begin 0").first.wait_for()
    assert tab.faults == []


def test_talk_is_renewed_where_it_is(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    tab.get_by_role("link", name="Talk", exact=True).click()
    tab.get_by_role("button", name="Begin").wait_for()
    said(ctx, "somewhere else", session="come-later")
    tab.get_by_role("link", name="Talk", exact=True).click()
    tab.get_by_role("link", name="come-later", exact=True).wait_for()


@pytest.mark.parametrize("key", ["Enter"])
def test_files_by_keyboard(tab: Tab, page: WebProcess, key: str) -> None:
    # abi.md 13.14
    go(tab, page, ECHO, "keyboard")
    with tab.expect_file_chooser() as chosen:
        tab.get_by_role("button", name="Attach").press(key)
    chosen.value.set_files({"name": "k.txt", "mimeType": "", "buffer": b"by key"})
    tab.get_by_role("list", name="Attached").get_by_text("k.txt").wait_for()


def test_who_is_in_a_conversation_stays_there_when_its_past_comes(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.14. Found: the focus went to the message, and Enter on a button did nothing
    held: list[Any] = []
    tab.route("**/api/past*", lambda route: held.append(route), times=1)
    go(tab, page, ECHO, "late-past")
    until(lambda: bool(tab.wait_for_timeout(1) or held))
    attach = tab.get_by_role("button", name="Attach")
    attach.focus()
    with tab.expect_request("**/api/events*"):  # the request for events after the past
        held[0].continue_()
    assert attach.evaluate("button => button === document.activeElement")


def test_what_was_stopped_before_it_was_sent_is_never_sent(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.40. Found: it was sent as soon as the connection came back
    go(tab, page, ECHO, "stopped")
    tab.context.set_offline(True)
    say(tab, "never mind")
    tab.get_by_role("button", name="Stop").click()
    log(tab).get_by_text("Stopped before it was sent.").wait_for()
    assert tab.get_by_role("textbox", name="Message").input_value() == "never mind"
    tab.context.set_offline(False)
    say(tab, "said instead")
    answer(tab).get_by_text("tokens in").wait_for()
    tab.reload()
    answer(tab).get_by_text("tokens in").wait_for()
    assert [one["content"][0]["text"] for one in history(ctx, "stopped") if one["type"] == "message"] == [
        "said instead",
        "said instead",
    ]


def test_a_message_that_is_sent_before_the_past_is_shown_stays(tab: Tab, page: WebProcess, ctx: Ctx) -> None:
    # abi.md 13.40. Found: the page forgot the message, so that it could not be stopped or sent again
    go(tab, page, ECHO, "early")
    say(tab, "the past")
    answer(tab).get_by_text("tokens in").wait_for()
    held: list[Any] = []
    tab.route("**/api/past?*", lambda route: held.append(route), times=1)
    tab.reload()
    until(lambda: bool(tab.wait_for_timeout(1) or held))
    tab.context.set_offline(True)
    say(tab, "the present")
    tab.get_by_role("article", name="You").get_by_text("the present").wait_for()
    held[0].fulfill(response=tab.context.request.fetch(held[0].request))
    log(tab).get_by_text("the past").first.wait_for()
    assert tab.get_by_role("button", name="Stop").is_enabled()
    assert log(tab).get_by_role("article", name="You").all_inner_texts() == ["the past", "the present"]
    tab.context.set_offline(False)
    until(lambda: bool(tab.wait_for_timeout(1) or log(tab).get_by_text("tokens in").count() == 2))
    assert [one["content"][0]["text"] for one in history(ctx, "early") if one["type"] == "message"] == [
        "the past",
        "the past",
        "the present",
        "the present",
    ]


def test_a_message_waits_for_its_files(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.40. Found: a message that was sent at once went without them
    go(tab, page, ECHO, "waits")
    held: list[Any] = []
    tab.route("**/api/attach", lambda route: held.append(route), times=1)
    attach(tab, "slow.txt", b"what is in it")
    until(lambda: bool(tab.wait_for_timeout(1) or held))
    say(tab, "look")
    tab.get_by_role("status").get_by_text("being read").wait_for()
    held[0].continue_()
    tab.get_by_role("list", name="Attached").get_by_text("slow.txt").wait_for()
    tab.get_by_role("button", name="Send").click()
    answer(tab).get_by_text("tokens in").wait_for()
    assert "what is in it" in log(tab).get_by_role("article", name="You").inner_text()


def test_what_is_too_large_is_said_of_the_file(tab: Tab, page: WebProcess) -> None:
    # abi.md 13.22. Found: "the request is over 2097152 bytes"
    go(tab, page, ECHO, "larger")
    attach(tab, "photo.jpg", b"\xff\xd8\xff" + b"x" * 3_000_000)
    tab.get_by_role("status").get_by_text("photo.jpg: it is over 2048 KiB").wait_for()


def test_an_object_that_is_not_there_is_named(tab: Tab, page: WebProcess) -> None:
    go(tab, page, "agent/none", "nobody")
    tab.get_by_text("trying again. agent/none does not exist").wait_for()
