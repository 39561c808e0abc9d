"""The order of tools in `ctx find`, and query lines that only an attacker would write."""

from __future__ import annotations

from cortexfs.core.finding import BEST, LOOKED_AT, best, words_of
from tests.tables import each_of


def line(name: str, sentence: str = "", rest: str = "") -> str:
    return "\t".join((f"tool/{name}", "ready", "builtin", sentence, rest)) + "\n"


def found(text: str, *words: str) -> list[str]:
    return [row.object.removeprefix("tool/") for row in best(text, words)]


TOOLS = (
    line("fs.read", "Read a file.", "It may be long.")
    + line("spread", "Thread it.")
    + line("reader", "Make a file.")
    + line("issue.list", "List issues.", "Nobody needs to read them.")
    + line("note", "Write a note about a file to read.")
)


@each_of(
    ("words", "wanted"),
    [
        # abi.md 8.31: a tool with more of the words comes first, and then names before descriptions
        (("read", "file"), ["fs.read", "reader", "note", "spread", "issue.list"]),
        (("issue",), ["issue.list"]),
        (("hread",), []),  # inside a word of a description, which is another word
        (("ready",), []),  # a status, which is no word of the tool
    ],
)
def test_order(words: tuple[str, ...], wanted: list[str]) -> None:
    assert found(TOOLS, *words) == wanted


@each_of(
    ("text", "words"),
    [
        ("Reads files", ["read", "file"]),
        ("the bus, class by class", ["the", "bus", "class"]),  # a singular in spite of its s
        ("is it in cats", ["cat"]),  # words of one or two letters count only if there are no others
        ("is it", ["is", "it"]),
        ("file files FILE", ["file"]),
    ],
)
def test_the_words_of_a_question(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_a_word_that_begins_the_whole_text_hides_nothing() -> None:
    assert found(line("a", "A tool.") + line("b", "A tool."), "tool") == ["a", "b"]


def test_the_best_of_very_many() -> None:
    text = "".join(line(f"many.{number}", "One of many things.") for number in range(10 * LOOKED_AT))
    text += line("zz.rare", "One of many rare things.") + line("zz.thing")
    assert found(text, "many", "rare")[0] == "zz.rare"
    assert found(text, "thing")[0] == "zz.thing"
    assert len(found(text, "many")) == BEST


def test_letters_that_are_two_when_they_are_small() -> None:
    text = line("a.first", "\u0130\u0130\u0130 and İstanbul.") + line("b.second", "Find Trains.")
    assert found(text, "train") == ["b.second"]
    assert found("", "train") == []
