"""The window of an agent's question: the parts that are sent, shortened, left out, and summed up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.agents.window import context, wording
from cortexfs.agents.window.context import (
    MAX_SUMMARY,
    SHORT,
    Pack,
    Pin,
    Summary,
    WindowParts,
    budget,
    history_room,
    pack_json,
    pinned_by,
    plan,
    read_summary,
    renewed,
    summary_request,
    summary_text,
    tokens,
    unpinned,
)
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Message
from cortexfs.models.ask.question import PastCall, PromptMedia, PromptMessage, PromptText, model_input
from cortexfs.models.ask.window import BYTES, MOST, OUTPUT, UNKNOWN
from tests.tables import each_of

# Issue 4: "raw history never rewritten; a window built per call (system, pinned facts, summary, recent turns)
# with the summary made by the model when the window fills, its provenance kept in context/; everything
# rebuildable".

NOW = PromptMessage("user", (PromptText("and now?"),))


def history(count: int, size: int = 300, first: int = 2) -> list[Message]:
    """So many turns of a user and an assistant, with ids as in a log."""
    said = []
    for turn in range(count):
        for n, role in enumerate(("user", "assistant")):
            text = f"{role} {turn} ".ljust(size, "x")
            said.append(Message(id=str(first + turn * 5 + n), role=role, content=[frames.Text(text)]))
    return said


def step(call: str, output: str, content: str = "a") -> list[PromptMessage]:
    return [
        PromptMessage("assistant", (), (PastCall(call, "fs.write", {"path": "f", "content": content}),)),
        PromptMessage("tool", (PromptText(wording.result("fs.write", call, output)),), (), call),
    ]


def texts(said: Sequence[PromptMessage]) -> list[str]:
    return [each.text for each in said]


def size(pack: Pack) -> int:
    """Returns the approximate tokens of a question, counted from its text."""
    sent = pack.system + "".join(pack.messages[n].text for n in range(len(pack.messages)))
    sent += "".join(json.dumps(call.input) for each in pack.messages for call in each.calls)
    return tokens(len(sent.encode()))


def test_everything_goes_along_where_there_is_room() -> None:
    said = history(3)
    parts = WindowParts(
        "Be kind.", [NOW], step("c1", "out"), said, [Pin("1.md", "I am Ann.")], Summary(1, 1, "Hi.")
    )
    pack = plan(parts, 8192, 2048)
    assert pack.messages == (*model_input("x", said).said[:-1], NOW, *parts.steps)
    pinned, earlier = f"{context.PINNED}\n- I am Ann.", f"{context.EARLIER}\nHi."
    assert pack.system == f"Be kind.\n\n{pinned}\n\n{earlier}"
    assert pack.forgotten == ()


def test_a_window_is_the_less_of_what_the_model_takes_and_the_agent_wants() -> None:
    assert budget(100_000, 20_000) == (20_000, OUTPUT)
    assert budget(8192, 20_000) == (8192, 2048)
    assert budget(None, None) == (UNKNOWN, OUTPUT)
    assert budget(None, 1000) == (1000, 250)


def test_what_is_looked_at_grows_with_the_window_and_has_an_end() -> None:
    assert history_room(8192) == 4 * 8192 * BYTES
    assert history_room(10_000_000) == MOST


# Turns that are left out.


def test_the_oldest_turns_are_left_out_and_what_stays_begins_with_the_user() -> None:
    said = history(40)
    pack = plan(WindowParts("S", [NOW], (), said), 3000, 500)
    assert size(pack) <= 2500
    assert 4 < len(pack.messages) < 80
    assert pack.messages[0].role == "user"
    assert list(pack.forgotten) + said[len(pack.forgotten) :] == said
    assert texts(pack.messages) == [*texts(model_input("x", said).said)[len(pack.forgotten) : -1], "and now?"]


def test_the_beginning_of_one_question_is_that_of_the_next() -> None:
    # issue 4: "stable prefix so that providers' prompt caches hit"
    said = history(60)
    beginnings = []
    for turns in range(20, 60):
        pack = plan(WindowParts("S", [NOW], (), said[: 2 * turns]), 3000, 500)
        beginnings.append((pack.system, pack.messages[0]))
    changes = sum(before != after for before, after in pairwise(beginnings))
    assert changes <= 14  # of 39: three turns are a quarter of the window


def test_nothing_tells_the_time() -> None:
    parts = WindowParts("S", [NOW], step("c1", "o"), history(9), [Pin("1.md", "p")], Summary(1, 1, "s"))
    assert plan(parts, 9000, 1000) == plan(parts, 9000, 1000)


def test_what_a_summary_covers_does_not_go_along() -> None:
    said = history(10)
    pack = plan(
        WindowParts("S", [NOW], (), said, summary=Summary(2, int(said[9].id or 0), "Sums.")), 8192, 2048
    )
    assert texts(pack.messages)[0] == "user 5 ".ljust(300, "x")
    assert pack.forgotten == ()


def test_a_summary_makes_room_once_for_many_turns() -> None:
    said, summary, renewals = history(100), None, 0
    for turns in range(1, 100):
        parts = WindowParts("S", [NOW], (), said[: 2 * turns], summary=summary)
        pack = plan(parts, 3000, 500)
        if pack.forgotten:
            summary = renewed(pack.forgotten, summary, "short")
            pack = plan(parts._replace(summary=summary), 3000, 500)
            renewals += 1
        assert not pack.forgotten
        assert size(pack) <= 2500
    assert renewals < 100 * 2 * 110 / (2500 / 4) * 1.2  # tokens said, by a quarter of the window
    assert summary is not None
    assert summary.first == 2


def test_the_message_goes_whole_or_not_at_all() -> None:
    # docs/agents.md: "What you say now goes whole, or the run ends with EMSGSIZE and both numbers"
    long = PromptMessage("user", (PromptText("y" * 7000),))
    pack = plan(WindowParts("S", [long], (), history(20)), 3000, 500)
    assert pack.messages == (long,)
    with pytest.raises(Fault) as raised:
        plan(WindowParts("S", [PromptMessage("user", (PromptText("y" * 9000),))], (), history(20)), 3000, 500)
    assert raised.value.code == "EMSGSIZE"
    assert "about 3009 tokens" in raised.value.message
    assert "room for 2500" in raised.value.message


def test_a_conversation_that_was_given_as_a_whole_counts_as_the_message() -> None:
    given = [NOW, PromptMessage("assistant", (PromptText("z" * 3000),)), NOW]
    assert plan(WindowParts("S", given), 3000, 500).messages == tuple(given)


def test_an_image_counts_what_a_model_pays_for_it_and_not_its_bytes() -> None:
    image = PromptMessage(
        "user", (PromptMedia("image", "image/png", "A" * 1_000_000), PromptText("what is it?"))
    )
    assert plan(WindowParts("S", [image]), 8192, 2048).messages == (image,)


# Steps of this run.


def test_older_outputs_are_shortened_before_turns_are_left_out() -> None:
    steps = [each for n in range(6) for each in step(f"c{n}", f"{n}" * 6000)]
    said = history(2)
    pack = plan(WindowParts("S", [NOW], steps, said), 12_000, 2000)
    assert pack.forgotten == ()
    assert pack.messages[:4] == model_input("x", said).said[:4]
    outputs = [each.text for each in pack.messages if each.role == "tool"]
    assert len(outputs[0]) < SHORT + 300
    assert outputs[-1] == steps[-1].text  # the last step is whole
    assert all(text.startswith("<tool_output") and text.endswith("</tool_output>") for text in outputs)
    assert size(pack) <= 10_000


def test_what_went_into_older_calls_is_shortened_too() -> None:
    steps = [*step("c1", "ok", "w" * 30_000), *step("c2", "ok")]
    pack = plan(WindowParts("S", [NOW], steps), 8192, 2048)
    call = pack.messages[1].calls[0]
    assert call.input["path"] == "f"
    assert len(call.input["content"]) < 2 * SHORT
    assert steps[0].calls[0].input["content"] == "w" * 30_000  # the model's own words are not rewritten


def test_turns_go_before_the_last_step_does() -> None:
    steps = step("c1", "o" * 6000)
    pack = plan(WindowParts("S", [NOW], steps, history(20)), 4000, 1000)
    assert pack.messages[-1] == steps[-1]
    assert pack.forgotten


def test_when_nothing_else_is_left_the_last_step_is_squeezed_as_well() -> None:
    steps = [each for n in range(5) for each in step(f"c{n}", "o" * 5000)]
    pack = plan(WindowParts("S", [NOW], steps, history(20)), 2000, 500)
    assert len(pack.messages) == 11
    assert size(pack) <= 1500


def test_a_run_that_cannot_go_on_says_so() -> None:
    steps = [each for n in range(200) for each in step(f"c{n}", "o" * 500)]
    with pytest.raises(
        Fault, match=r"EMSGSIZE: what the agent has done so far takes about \d+ .* room for 1500"
    ):
        plan(WindowParts("S", [NOW], steps), 2000, 500)


def planned(parts: WindowParts, limit: int, reserve: int) -> Pack | str:
    try:
        return plan(parts, limit, reserve)
    except Fault as fault:
        return fault.code


@given(
    st.integers(0, 30),
    st.integers(0, 2000),
    st.lists(st.integers(0, 20_000), max_size=8),
    st.integers(600, 20_000),
    st.booleans(),
)
def test_a_window_fits_or_is_refused(
    turns: int, each: int, outputs: list[int], limit: int, short: bool
) -> None:
    steps = [one for n, length in enumerate(outputs) for one in step(f"c{n}", "o" * length)]
    summary = Summary(1, 4, "s" * 3000) if short else None
    parts = WindowParts("System.", [NOW], steps, history(turns, each), [Pin("1.md", "pin")], summary)
    most, reserve = budget(limit)
    pack = planned(parts, most, reserve)
    if isinstance(pack, str):
        assert pack == "EMSGSIZE"
        return
    assert size(pack) <= most - reserve
    assert NOW in pack.messages
    asks = [call.call for said in pack.messages for call in said.calls]
    assert asks == [said.call for said in pack.messages if said.role == "tool"]  # no call without its answer
    assert len(asks) == len(outputs)


# The provenance of a summary.


def test_a_pack_says_where_each_thing_comes_from() -> None:
    said = history(2)
    parts = WindowParts(
        "Be kind.", [NOW], step("c1", "o"), said, [Pin("3.md", "p")], Summary(1, 1, "s"), tools=300
    )
    told = json.loads(pack_json(plan(parts, 8192, 2048), "default", "coder"))
    assert (told["session"], told["agent"], told["budget_tokens"]) == ("default", "coder", 8192)
    items = {item["kind"]: item for item in told["items"]}
    assert list(items) == ["system", "tools", "pinned", "summary", "recent_messages", "run"]
    assert items["system"] == {"kind": "system", "source": "system.md", "tokens": 3}
    assert items["tools"]["tokens"] == 100
    assert items["pinned"]["source"] == "context/pinned/3.md"
    assert (items["summary"]["source"], items["summary"]["range"]) == ("context/summary.md", "1-1")
    assert (items["recent_messages"]["source"], items["recent_messages"]["range"]) == (
        "messages.jsonl",
        "2-8",
    )


# Summaries.


def test_a_summary_is_asked_for_with_what_was_before() -> None:
    request = summary_request(history(2, 30), Summary(1, 1, "They met."), 8192)
    content = request["messages"][0]["content"]
    assert content.startswith("Notes so far:\nThey met.\n\nUser: user 0 xxx")
    assert "\n\nAssistant: assistant 1 " in content
    assert model_input(request).system.startswith("You write notes")


@each_of("limit", [256, 2048, 8192, 100_000])
@each_of("turns", [history(1, 9), history(5, 50_000), history(1000, 400)])
def test_its_request_fits_into_the_window(limit: int, turns: list[Message]) -> None:
    request = summary_request(turns, Summary(1, 1, "s" * MAX_SUMMARY), limit)
    sent = len(request["system"]) + len(request["messages"][0]["content"])
    assert sent <= max(limit * BYTES - request["max_tokens"] * BYTES, 1000) + 300
    assert request["messages"][0]["content"].rstrip("x").endswith(f"assistant {len(turns) // 2 - 1} ") or (
        "bytes left out" in request["messages"][0]["content"]
    )


def test_a_summary_covers_what_it_was_made_of_and_what_was_before() -> None:
    first = renewed(history(2), None, " one \n")
    assert first == Summary(2, 8, "one")
    assert renewed(history(2, first=20), first, "two") == Summary(2, 26, "two")
    assert renewed(history(2), first, "  ") is first  # an empty summary of the model changes nothing
    assert renewed([], first, "x") is first


@given(st.integers(1, 10**17), st.integers(0, 1000), st.text(st.characters(codec="utf-8")))
def test_a_summary_s_file_says_what_it_is_of(first: int, more: int, text: str) -> None:
    summary = Summary(first, first + more, text.strip())
    if summary.text:
        assert summary_text(summary).partition("\n")[0] == f"<!-- events {first}-{first + more} -->"
        assert read_summary(summary_text(summary)) == summary


@each_of(
    "damaged",
    ["", "hello", "<!-- events 1-2 -->", "<!-- events 1-2 -->\n \n", "<!-- events 3-2 -->\nx", "<!-- events"],
)
def test_a_damaged_summary_is_none(damaged: str) -> None:
    assert read_summary(damaged) is None


def test_a_summary_that_somebody_made_too_long_is_cut() -> None:
    summary = read_summary("<!-- events 1-2 -->\n" + "x" * (100 * MAX_SUMMARY))
    assert summary is not None
    assert len(summary.text) < 3 * MAX_SUMMARY


# Pins.


@each_of(
    ("said", "pin"),
    [
        ("/pin I am Ann.", "I am Ann."),
        ("  /pin\ttwo\nlines\n", "two\nlines"),
        ("/pin", None),
        ("/pin   ", None),
        ("/pinned x", None),
        ("please /pin x", None),
    ],
)
def test_a_message_that_pins(said: str, pin: str | None) -> None:
    assert pinned_by(said) == pin


def test_what_only_pinned_something_is_not_told_again() -> None:
    said = [
        Message(id=str(n), role=role, content=[frames.Text(text)])
        for n, (role, text) in enumerate(
            [("user", "a"), ("assistant", "b"), ("user", "/pin c"), ("assistant", "Kept"), ("user", "d")]
        )
    ]
    assert [message.id for message in unpinned(said)] == ["0", "1", "4"]


def test_a_message_without_an_id_is_of_no_event() -> None:
    nameless: Any = [Message(role="user", content=[frames.Text("a")])]
    pack = plan(WindowParts("S", [NOW], (), nameless, summary=Summary(1, 9, "s")), 8192, 2048)
    assert texts(pack.messages) == ["a", "and now?"]
    assert context.renewed(nameless, None, "s") is None
