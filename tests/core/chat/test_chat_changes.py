"""The change that a call would make, as shown to a person before he decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cortexfs.chat import diffs
from cortexfs.chat.diffs import DiffLine, difference, of
from cortexfs.tools.support import patch
from tests.tables import each_of

NUMBERS = "".join(f"{number}\n" for number in range(1, 21))


def reading(text: str | bytes) -> Callable[[str], bytes]:
    return lambda path: text if isinstance(text, bytes) else text.encode()


def failing(problem: OSError) -> Callable[[str], bytes]:
    def read(path: str) -> bytes:
        raise problem

    return read


def texts(lines: list[DiffLine] | None) -> list[str]:
    assert lines is not None
    return [line.text for line in lines]


def test_a_file_that_is_written_anew_is_compared() -> None:
    # commands.md: "the change of `fs.write` and `fs.replace` as a diff against the file"
    after = NUMBERS.replace("10\n", "ten\n")
    assert texts(of("fs.write", {"path": "f", "content": after}, reading(NUMBERS))) == [
        "@@ -7,7 +7,7 @@",
        " 7",
        " 8",
        " 9",
        "-10",
        "+ten",
        " 11",
        " 12",
        " 13",
    ]


def test_the_ways_to_write() -> None:
    new = failing(FileNotFoundError())
    assert texts(of("fs.write", {"path": "f", "content": "a\nb\n"}, new)) == [
        "there is no such file yet",
        "+a",
        "+b",
    ]
    added = of("fs.write", {"path": "f", "content": "b\n", "mode": "append"}, reading("a\n"))
    assert texts(added) == ["@@ -1 +1,2 @@", " a", "+b"]
    assert texts(of("fs.write", {"path": "f", "content": "a\n"}, reading("a\n"))) == [
        "the file has that already"
    ]
    assert texts(of("fs.write", {"path": "f", "content": "a"}, reading("a\n"))) == [
        "only the newline at its end changes"
    ]
    assert texts(of("fs.write", {"path": "f", "content": ""}, reading("a\n"))) == ["@@ -1 +0,0 @@", "-a"]


def test_a_part_that_is_replaced() -> None:
    change: dict[str, Any] = {"path": "f", "old": "2\n3\n", "new": "x\n"}
    assert texts(of("fs.replace", change, reading(NUMBERS)))[:5] == [
        "@@ -1,6 +1,5 @@",
        " 1",
        "-2",
        "-3",
        "+x",
    ]
    elsewhere = of("fs.replace", change, reading("other\n"))
    assert elsewhere
    assert elsewhere[0] == DiffLine("!", "the text to be replaced is not in the file as it is here")
    assert [line.side for line in elsewhere[1:]] == ["@", "-", "-", "+"]
    twice = {"path": "f", "old": "a", "new": "b", "all": True}
    assert texts(of("fs.replace", twice, reading("a\na\n")))[1:] == ["-a", "-a", "+b", "+b"]
    # fs.replace: "In a file whose lines all end in CR LF, plain newlines in your text are taken as CR LF"
    assert texts(of("fs.replace", change, reading("1\r\n2\r\n3\r\n")))[1:] == [" 1\r", "-2\r", "-3\r", "+x\r"]


def test_a_diff_is_shown_as_it_is() -> None:
    diff = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
    lines = of("fs.replace", {"path": "f", "diff": diff}, failing(OSError()))
    assert lines
    assert texts(lines) == diff.splitlines()
    assert [line.side for line in lines[2:]] == ["@", "-", "+"]


@each_of(
    ("read", "said"),
    [
        (failing(PermissionError(13, "Permission denied")), "not compared: Permission denied"),
        (failing(TimeoutError(110, "it does not answer")), "not compared: it does not answer"),
        (reading(b"a\0b"), "not compared: the file is large, or no text"),
        (reading(b"x" * (diffs.MAX_FILE + 1)), "not compared: the file is large, or no text"),
    ],
)
def test_what_cannot_be_compared_is_said_and_shown(read: Callable[[str], bytes], said: str) -> None:
    # the module: "the new text is shown nevertheless"
    assert texts(of("fs.write", {"path": "f", "content": "new\n"}, read)) == [said, "+new"]


def test_a_path_that_no_file_can_have() -> None:
    def read(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    assert texts(of("fs.write", {"path": "a\0b", "content": "x"}, read))[1:] == ["+x"]


def test_what_is_too_much_is_not_compared() -> None:
    # the module: "If the rest is still too large, its lines are counted instead"
    before = "".join(f"a{number}\n" for number in range(2000))
    lines = of("fs.write", {"path": "f", "content": before.replace("a", "b")}, reading(before))
    assert lines
    assert lines[0] == DiffLine("!", "too much to compare: 2,000 lines become 2,000; what it puts there:")
    assert len(lines) == 2001


@each_of(
    "given_",
    [
        {},
        {"path": 1, "content": "x"},
        {"path": "f", "content": 1},
        {"path": "f", "content": "eA==", "encoding": "base64"},
    ],
)
def test_other_calls_of_write_are_no_changes(given_: dict[str, Any]) -> None:
    assert of("fs.write", given_, reading("")) is None


@each_of("given_", [{"path": "f"}, {"path": "f", "old": ""}, {"path": "f", "old": "", "new": "x"}])
def test_other_calls_of_replace_are_no_changes(given_: dict[str, Any]) -> None:
    assert of("fs.replace", given_, reading("")) is None


LINES = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=30)


@given(LINES, LINES)
def test_a_diff_makes_one_file_of_the_other(before: list[str], after: list[str]) -> None:
    # checked with the patch code of our own fs.replace
    lines = difference(before, after)
    old = "".join(f"{line}\n" for line in before)
    new = "".join(f"{line}\n" for line in after)
    if old == new or not before:
        assert [line.text for line in lines] == ([] if old == new else [f"+{line}" for line in after])
        return
    diff = "".join(f"{line.text}\n" for line in lines)
    assert patch.apply(old.encode(), patch.parse(diff.encode()))[0] == new.encode()
