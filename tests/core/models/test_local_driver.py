"""Additions to a request for the local model, and the end of its answer."""

from __future__ import annotations

import json
from typing import Any

from cortexfs.core.frames import Progress
from cortexfs.core.models.sse import ServerEvent
from cortexfs.models.ask.model import ModelEntry
from cortexfs.models.ask.question import model_input
from cortexfs.models.local.driver import MAX_TOKENS, SPAN, TIMES, UNIT, LocalReader, repeats, request
from tests.tables import each_of


@each_of(
    ("default", "given", "most"),
    [
        ({}, {}, MAX_TOKENS),
        ({"temperature": 0}, {}, MAX_TOKENS),
        ({"max_tokens": 7}, {}, 7),
        ({}, {"max_tokens": 9}, 9),
        ({"max_tokens": 7}, {"max_tokens": 9}, 9),
        ({"max_tokens": None}, {}, None),
        ({}, {"max_completion_tokens": 9}, None),
        ({"n_predict": 9}, {}, None),
    ],
)
def test_an_answer_has_so_many_tokens(
    default: dict[str, Any], given: dict[str, Any], most: int | None
) -> None:
    # docs/engine.md: "512 tokens, unless"
    model = ModelEntry("local/m", "m", default=default)
    assert request(model, model_input({"input": "hi", **given}, [])).get("max_tokens") == most


def read(*texts: str, **given: Any) -> tuple[int, LocalReader]:
    """Returns how many of the texts the reader takes, and the reader."""
    reader = LocalReader(model_input({"input": "hi", **given}, []))
    for number, text in enumerate(texts, 1):
        chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
        reader.read(ServerEvent("", json.dumps(chunk).encode()))
        if reader.enough:
            return number, reader
    return len(texts), reader


def test_an_answer_that_repeats_itself_is_ended_and_says_so() -> None:
    taken, reader = read("Hello. ", *["I am happy to help you today. "] * 1000)
    assert taken < 20
    assert reader.ended
    message, told = reader.end()
    assert message.content[0].text == reader.text  # type: ignore[attr-defined]
    assert told == Progress(message="the model repeated itself, so its answer was ended")


def test_one_that_is_to_have_no_end_has_none() -> None:
    assert read(*["on and "] * 1000, ignore_eos=True)[0] == 1000


@each_of(
    ("unit", "times"),
    [("x", SPAN), ("".join(map(chr, range(200, 200 + UNIT))), TIMES), ("0123456789", SPAN // 10)],
)
def test_so_much_is_a_repetition_and_less_is_none(unit: str, times: int) -> None:
    assert repeats("before " + unit * times)
    assert not repeats("before: " + "z" + (unit * times)[1:])
    assert not repeats("before " + unit * times + "!")


def test_a_long_list_is_none() -> None:
    lines = "".join(f"| {number} | a row of a table | {number * 7} |\n" for number in range(60))
    assert not any(repeats(lines[:end][-UNIT * TIMES :]) for end in range(0, len(lines), 7))
