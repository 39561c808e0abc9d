"""Markdown on a terminal: nothing is lost, nothing is dangerous, and streamed text looks like whole text."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cortexfs.chat import markdown
from cortexfs.chat.markdown import MAX_BLOCK, MAX_STEP, MarkdownStream, Style, rendered, split
from tests.tables import each_of
from tests.waiting import SOAK

PLAIN = Style(colour=False)
TEXT = """\
# A title

Some *words* with `code`, a <b>tag</b> and List<String>
and a second line.

1. one
2. two

   more of two

3. three

```python
def f(x):
    return x

# not a title
```

| a | b |
|---|---|
| 1 | 2 |

> said
> by others

[link](http://example.org/x)
"""
SGR = re.compile(r"\x1b\[[0-9;]*m")


def streamed(text: str, size: int, width: int = 60) -> str:
    answer, said = MarkdownStream(PLAIN), ""
    for start in range(0, len(text), size):
        answer.add(text[start : start + size])
        answer.live(width, 10)
        said += answer.settled(width)
    return said + answer.end(width)


@each_of("size", [1 if SOAK else 13, 1000])
def test_streamed_as_whole(size: int) -> None:
    assert streamed(TEXT, size) == rendered(TEXT, 60, PLAIN)


def test_markdown_is_understood() -> None:
    said = rendered(TEXT, 60, PLAIN)
    for line in ("A title", " 2 two", "   more of two", "    return x", "# not a title"):
        assert f"{line}\n" in said
    assert "*" not in said
    assert "```" not in said
    assert "http://example.org/x" in said


def test_a_narrow_table_loses_no_word() -> None:
    address = "http://example.org/" + "".join(map(str, range(30)))
    said = rendered(f"| a | b |\n|---|---|\n| {address} | two |\n", 20, PLAIN)
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    assert address in "".join(line.partition("  ")[0].strip() for line in said.splitlines()[2:])
    assert max(map(len, said.splitlines())) <= 20


def test_html_and_line_breaks_stay() -> None:
    # a type parameter is no tag, and a list without marks stays a list
    said = rendered(TEXT, 60, PLAIN)
    assert "a <b>tag</b> and List<String>\nand a second line." in said


@each_of(
    "text",
    [
        "\x1b[2J",
        "a\x1b]0;title\x07b",
        "&#27;[31m",
        "&#x9b;31m",
        "[x](http://y/&#27;]8;;)",
        "`\x1b[1m`",
        "```\n\x1b[1m\n```",
        "    \x1b[1m",
        "```\x1b[1m\ncode\n```",
        "# \x1b[1m",
        "|\x1b[1m|\n|-|\n|\x9b1m|",
        "<\x1b[1m>",
        "a\rb",
        "\u202eabc",
        "![\x1b[1m](x\x1b[1m)",
        "<http://a/\x1b[1m>",
    ],
)
def test_no_control_character_reaches_the_terminal(text: str) -> None:
    # the module: "no control character of the text reaches the terminal"
    for style in (PLAIN, Style()):
        said = SGR.sub("", rendered(text, 40, style)) if style.colour else rendered(text, 40, style)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said), said


@given(st.text(st.sampled_from("\x1b[2Jm&#27;`*_<>[]()!|\n \t-1.x\x9b\r\x85\u2028>~\\"), max_size=60))
def test_whatever_is_said_is_printed_safely(text: str) -> None:
    said = rendered(text, 40, PLAIN)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", said)
    done, rest, _ = split(text)
    assert done + rest == text


def test_without_colour_there_are_no_sequences() -> None:
    # no-color.org
    assert "\x1b" not in rendered(TEXT, 60, PLAIN)
    assert "\x1b[" in rendered(TEXT, 60, Style())


def test_another_encoding_gets_what_it_has() -> None:
    said = rendered(TEXT, 60, Style(False, "ascii"))
    assert "|a |b|" in said.replace("-", "")


def test_a_block_without_end_is_printed_in_parts() -> None:
    # the module: "Work is bounded"
    for text in ("word " * 3000, "```\n" + "some code\n" * 1500, "x" * 15_000):
        answer = MarkdownStream(PLAIN)
        answer.add(text)
        said = ""
        while answer.behind:
            before = len(answer._text)
            said += answer.settled(80)
            assert len(answer._text) < before
        assert len(answer._text) <= MAX_STEP
        said += answer.end(80)
        assert "".join(said.split()) == "".join(text.removeprefix("```\n").split())


def test_what_is_drawn_again_and_again_is_short() -> None:
    answer = MarkdownStream(PLAIN)
    answer.add("line\n" * 1000)
    assert answer.live(80, 5) == "line\n" * 5
    answer.add("line\n" * MAX_BLOCK)
    assert answer.live(80, 5) == ""


def test_what_is_drawn_is_never_what_was_there_before() -> None:
    # a text of the same length in another answer must be drawn as well
    answer = MarkdownStream(PLAIN)
    answer.add("- one")
    assert answer.live(80, 5) == " • one\n"
    answer.end(80)
    answer.add("other")
    assert answer.live(80, 5) == "other\n"


def test_a_width_that_no_terminal_has_is_no_error() -> None:
    for width in (0, 1, 3):
        assert rendered(TEXT, width, PLAIN)
    assert markdown.rendered("", 80, PLAIN) == ""
