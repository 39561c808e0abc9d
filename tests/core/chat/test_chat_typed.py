"""The meaning of a typed line to `ctx chat`."""

from __future__ import annotations

import pytest

from cortexfs.chat import commands
from cortexfs.chat.commands import TypedCommand, TypedText
from cortexfs.core.errors import Fault
from cortexfs.core.talk import requests
from tests.tables import each_of


@each_of(
    ("text", "meaning"),
    [
        ("hello", TypedText("hello")),
        ("hello \n", TypedText("hello")),
        ("", None),
        (" \n\t", None),
        ("/help", TypedCommand("/help", "")),
        ("/HELP ", TypedCommand("/help", "")),
        ("/resume work", TypedCommand("/resume", "work")),
        ("/new  a b ", TypedCommand("/new", "a b")),
        (" /help", TypedText(" /help")),
        ("/pin  we use tabs ", TypedCommand("/pin", "we use tabs")),
        ("/etc/passwd", TypedText("/etc/passwd")),
        ("/usr/bin/env what is it", TypedText("/usr/bin/env what is it")),
        ("/help\nme", TypedText("/help\nme")),
        ("// a comment", TypedText("// a comment")),
        ("/", TypedText("/")),
    ],
)
def test_orders_and_messages(text: str, meaning: TypedText | TypedCommand | None) -> None:
    # the module: "only a single line whose first word is a slash and letters is an order"
    assert commands.meaning(text) == meaning


def test_an_unknown_order_says_what_there_is() -> None:
    # commands.md: "An unknown one says which there are"
    with pytest.raises(Fault, match=r"there is no /resum; did you mean /resume\?") as raised:
        commands.meaning("/resum work")
    for order in commands.ORDERS:
        assert order in raised.value.message
    with pytest.raises(Fault, match="/quit takes no argument"):
        commands.meaning("/quit now")


def test_a_message_over_a_mebibyte_is_refused_and_a_smaller_one_can_be_sent() -> None:
    # abi.md 5.4
    largest = "x" * ((1 << 20) - 6000)
    assert commands.meaning(largest) == TypedText(largest)
    requests.encode(requests.Send(id="i", input=largest))
    for text in ("x" * (1 << 20), "\x01" * (1 << 18)):  # control characters grow in JSON
        with pytest.raises(Fault, match="1 MiB") as raised:
            commands.meaning(text)
        assert raised.value.code == "EMSGSIZE"


def test_ten_thousand_lines_are_one_message() -> None:
    # issue: "paste of 10,000 lines"
    text = "\n".join(f"line {number}" for number in range(10_000))
    assert commands.meaning(text) == TypedText(text)


def test_what_is_no_utf8_is_replaced() -> None:
    # a terminal with another locale sends such bytes, which JSON cannot hold
    assert commands.meaning("caf\udce9") == TypedText("caf�")
    assert commands.meaning("a\udcc3\udca9") == TypedText("aé")


@each_of(("line", "more"), [("a\\", True), ("a", False), ("a\\\\", False), ("\\", True)])
def test_a_backslash_asks_for_another_line(line: str, more: bool) -> None:
    assert commands.goes_on(line) is more


def test_help_names_every_order_and_key() -> None:
    lines = "\n".join(commands.help_lines())
    for name in (*commands.ORDERS, *commands.KEYS):
        assert name in lines
