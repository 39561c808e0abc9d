"""How calls, what they gave, and questions about them look."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.chat import edits
from cortexfs.chat.calls import LONG, Show, Sight, asked, called, line, resulted
from cortexfs.chat.printing import MARKS, STYLES, marked
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, ToolResult

SMALL = Sight(rows=lambda: 14)  # a change has six rows


def approval(name: str, given: Any, reason: str = "") -> Approval:
    return Approval(call="c", name=name, input=given, effects=["run_process"], reason=reason)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "README.md"}, "fs.read path=README.md"),
        ({"path": "a b", "n": 3, "all": True}, 'fs.read path="a b" n=3 all=true'),
        ({"path": "", "x": None, "list": [1, "a"]}, 'fs.read path="" x=null list=[1,"a"]'),
        # what looks like another argument is none
        ({"path": "x all=true"}, 'fs.read path="x all=true"'),
        ({"path=x y": 1}, 'fs.read "path=x y"=1'),
        ({"path": "a\nb\x1b[2J\u202e"}, 'fs.read path="a\\nb\\u001b[2J\\u202e"'),
        ("plain\ntext\t\x9b", "fs.read plain\\ntext\\t\\x9b"),
        ({}, "fs.read"),
        ([1], "fs.read [1]"),
    ],
)
def test_a_call_is_a_line(given: Any, said: str) -> None:
    # commands.md: "a call as `▸ fs.read path=README.md`"
    assert line("fs.read", given, 200) == said


def test_whatever_a_line_leaves_out_is_counted() -> None:
    # the module: "whatever is left out is counted, as somebody decides by what is shown"
    wild = "\u202e" * LONG + "; rm -rf /"
    said = line("t", wild, LONG)
    assert said.count("\\u202e") == LONG
    assert said.endswith(" ... and 10 characters more")


def test_a_command_is_shown_verbatim() -> None:
    # commands.md: "below it the command of `shell.exec`"
    given = {"cmd": "cat <<X\n  two  spaces\ttab\x1b[2J\nX", "cwd": "/srv"}
    assert asked(approval("shell.exec", given, "it runs\na program"), Sight(), is_shown=False) == [
        Show("call", "shell.exec cwd=/srv"),
        Show("code", "  cat <<X"),
        Show("code", "    two  spaces    tab\\x1b[2J"),
        Show("code", "  X"),
        Show("question", "may it call shell.exec cwd=/srv (run_process): it runs a program?"),
    ]
    assert len(asked(approval("shell.exec", given), Sight(), is_shown=True)) == 1


def test_what_does_not_fit_the_screen_is_counted() -> None:
    # commands.md: "What is left out is counted"
    given = {"cmd": "\n".join(f"line {number}" for number in range(20))}
    shown = asked(approval("shell.exec", given), SMALL, is_shown=False)
    assert [show.kind for show in shown] == ["call", *["code"] * 6, "note", "question"]
    assert shown[-2].text == "  ... 14 more lines; [e]dit shows the whole call"
    assert called("shell.exec", given, SMALL)[-1].text == "  ... 14 more lines"
    long = called("shell.exec", {"cmd": "x" * 1000}, SMALL)
    assert long[1].text.endswith("x ... and 600 characters more")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("shell.exec", {"cmd": 5}),
        ("shell.exec", "ls"),
        ("fs.write", {"content": "x"}),
        ("fs.replace", {"path": "x", "old": 5}),
        ("fs.read", {"path": "x"}),
    ],
)
def test_what_is_no_call_of_that_kind_is_a_line(name: str, given: Any) -> None:
    assert called(name, given, SMALL) == [Show("call", line(name, given, 200))]
    (question,) = asked(approval(name, given), SMALL, is_shown=False)
    assert question.text == f"may it call {line(name, given, LONG)} (run_process)?"


def test_a_change_has_its_sides() -> None:
    sight = Sight(lambda path: b"a\nb\n")
    kinds = [show.kind for show in called("fs.write", {"path": "f", "content": "a\nc\n"}, sight)]
    assert kinds == ["call", "place", "same", "removed", "added"]


def result(output: str, is_error: bool = False) -> ToolResult:
    return ToolResult(call="c", name="t", output=output, is_error=is_error)


def test_a_result_is_its_first_lines() -> None:
    # commands.md: "the first lines of what came of it, red where it failed"
    shown = resulted(result("".join(f"{number}\n" for number in range(128))), is_apart=False)
    assert [show.text for show in shown] == [*(f"  {number}" for number in range(8)), "  ... 120 more lines"]
    assert resulted(result("a\n"), is_apart=False) == [Show("result", "  a")]
    assert resulted(result("\n\n"), is_apart=False) == [Show("result", "  (nothing)")]
    failed = resulted(result("no\x1b[2J", is_error=True), is_apart=True)
    assert failed == [Show("failed", "t:"), Show("failed", "  no\\x1b[2J")]
    assert STYLES["failed"] == "31"
    nine = resulted(result("x\n" * 9), is_apart=False)
    assert nine[-1].text == "  ... 1 more line"


def test_marks_are_such_as_the_terminal_can_show() -> None:
    # commands.md: "What the locale cannot show is replaced"
    assert marked(Show("call", "t"), "UTF-8") == "\u25b8 t"
    assert marked(Show("call", "t"), "ANSI_X3.4-1968") == "> t"
    assert all(ascii_.isascii() for _, ascii_ in MARKS.values())
    assert marked(Show("error", "t"), "ascii") == "t"


def test_an_input_is_edited_as_json() -> None:
    # issue: "[e]dit"
    given = {"path": "x", "lines": [1, 2], "text": "a\nb"}
    assert edits.edited(edits.text(given)) == given
    assert edits.text({"path": "x"}) == '{\n  "path": "x"\n}'
    for text, said in (
        ("{", "not one JSON value"),
        ("[1]", "expected a JSON object, got array"),
        ("", "JSON"),
    ):
        with pytest.raises(Fault, match=said):
            edits.edited(text)
