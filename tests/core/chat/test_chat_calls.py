"""The look of calls, their results, and questions about them."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.agents.window import wording
from cortexfs.chat import calls
from cortexfs.chat.calls import (
    HINT,
    LONG,
    SCROLLED,
    Show,
    ShownCall,
    Surroundings,
    called,
    line,
    page,
    question_of,
    resulted,
)
from cortexfs.chat.printing import MARKS, STYLES, marked
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval, ToolResult
from tests.tables import each_of

SMALL = Surroundings(rows=lambda: 14)  # a change has six rows


def approval(name: str, given: Any, reason: str = "") -> Approval:
    return Approval(call="c", name=name, input=given, effects=["run_process"], reason=reason)


@each_of(
    ("given", "said"),
    [
        ({"path": "README.md"}, "fs.read path=README.md"),
        ({"path": "a b", "n": 3, "all": True}, 'fs.read path="a b" n=3 all=true'),
        ({"path": "", "x": None, "list": [1, "a"]}, 'fs.read path="" x=null list=[1,"a"]'),
        # text that looks like another argument is quoted
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
    # the module: "Text that is left out is counted, as a person decides by the text that is shown"
    wild = "\u202e" * LONG + "; rm -rf /"
    said = line("t", wild, LONG)
    assert said.count("\\u202e") == LONG
    assert said.endswith(" ... and 10 characters more")


def test_a_command_is_shown_verbatim() -> None:
    # commands.md: "below it the command of `shell.exec`"
    given = {"cmd": "cat <<X\n  two  spaces\ttab\x1b[2J\nX", "cwd": "/srv"}
    assert question_of(
        approval("shell.exec", given, "it runs\na program"), Surroundings(), None
    ) == ShownCall(
        [
            Show("call", "shell.exec cwd=/srv"),
            Show("code", "  cat <<X"),
            Show("code", "    two  spaces    tab\\x1b[2J"),
            Show("code", "  X"),
            Show("note", "It runs a program."),
            Show("question", "Allow shell.exec with cwd=/srv?"),
        ],
        [],
    )
    assert len(question_of(approval("shell.exec", given), Surroundings(), []).shows) == 1


def test_what_does_not_fit_the_screen_is_counted() -> None:
    # chat.md: "The number of omitted lines is shown"
    given = {"cmd": "\n".join(f"line {number}" for number in range(20))}
    shown, rest = question_of(approval("shell.exec", given), SMALL, None)
    assert [show.kind for show in shown] == ["call", *["code"] * 6, "note", "question"]
    assert shown[-2].text == "  ... 14 more lines"
    assert shown[-1].text == f"Allow shell.exec (run_process)?{HINT}"
    assert [each.text for each in rest] == [f"line {number}" for number in range(6, 20)]
    assert called("shell.exec", given, SMALL).shows[-1].text == "  ... 14 more lines"
    long = called("shell.exec", {"cmd": "x" * 1000}, SMALL).shows
    assert long[1].text.endswith("x ... and 600 characters more")


def pages(told: ShownCall) -> tuple[str, list[int]]:
    """Returns all text shown before a call may be allowed, and the number of lines on each page."""
    said, counts = "", []
    while told.rest:
        assert told.shows[-1].kind == "question"
        assert told.shows[-1].text.endswith(HINT)
        told = page("shell.exec", told.rest)
        said += "".join(each.text.removeprefix("  ") for each in told.shows[:-1] if each.kind != "note")
        counts.append(len(told.shows))
    assert not told.shows[-1].text.endswith(HINT)
    return said, counts


@each_of("name", ["shell.exec", "t", "fs.write"])
def test_a_long_pad_hides_nothing(name: str) -> None:
    # issue: "a line over 400 characters is cut without the hint, and `y` approves what was not shown"
    attack = "echo" + " " * 400 + "; rm -rf /" + "x" * 700
    given = {"path": "f", "content": attack} if name == "fs.write" else {"cmd": attack}
    told = question_of(approval(name, given), SMALL, None)
    assert not any("rm -rf" in each.text for each in told.shows) or name == "t"
    said, _ = pages(told)
    assert attack in said


def test_a_long_command_is_paged() -> None:
    # the module: "The first page is bounded by the screen, later ones by what a terminal scrolls back"
    lines = [f"line {number};" for number in range(1200)]
    said, counts = pages(question_of(approval("shell.exec", {"cmd": "\n".join(lines)}), SMALL, None))
    assert said == "".join(lines[6:])
    assert max(counts) == SCROLLED + 2  # a note and the question besides
    wide = question_of(approval("shell.exec", {"cmd": "\U000e0041" * 8000}), SMALL, None)
    said, counts = pages(wide)
    assert said == "\\U000e0041" * 8000
    assert max(counts) == 10 + 2  # of 400 characters, which take 51 rows


def test_a_reason_and_effects_are_not_cut_unseen() -> None:
    effects = [f"write_file {'e' * 1200}-end"]
    told = question_of(Approval(call="c", name="t", input={}, effects=effects, reason=""), SMALL, None)
    assert "characters more" in told.shows[-1].text
    assert "-end" in pages(told)[0]
    told = question_of(
        Approval(call="c", name="t", input={}, effects=effects, reason="r" * 1200 + "-last"), SMALL, None
    )
    assert "-last. Allow t?" in pages(told)[0]


ATTACKS = {
    "rtl override": "rm \u202e cod.txt",
    "isolate": "a \u2066b",
    "zero width": "r\u200bm",
    "soft hyphen": "r\u00adm",
    "filler": "a\u115f",
    "filler 2": "a\u3164b",
    "tag": "a\U000e0041",
    "variation": "a\ufe0f",
    "mark on a sign": "a =\u0338 b",
    "mark first": "\u0301a",
    "no-break space": "rm\u00a0-rf",
    "line separator": "a\u2028b",
    "unassigned": "a\u0378",
    "lone surrogate": "a\x9b",
}


@each_of("attack", ATTACKS.values())
def test_what_is_not_seen_for_what_it_is_is_escaped(attack: str) -> None:
    # issue: "format characters (category Cf) and all of Default_Ignorable_Code_Point pass unescaped"
    (hidden,) = [each for each in attack if not each.isascii()]
    for name, given in (
        ("shell.exec", {"cmd": attack}),
        ("t", {"key": attack, attack: 1}),
        (attack, {}),
        ("fs.write", {"path": "f", "content": attack}),
        ("fs.replace", {"path": attack, "old": "a", "new": attack}),
    ):
        asking = Approval(call="c", name=name, input=given, effects=[attack], reason=attack)
        shown = " ".join(each.text for each in question_of(asking, SMALL, None).shows)
        assert hidden not in shown
        assert ascii(hidden)[1:-1].lower() in shown.lower() or hidden.isspace()
    assert hidden not in calls.written({"cmd": attack})
    assert calls.edited(calls.written({"cmd": attack})) == {"cmd": attack}


def test_a_newline_in_an_argument_is_no_line() -> None:
    given = {"path": "f", "note": "x\n  rm -rf /\nAllow fs.read?"}
    (question,), _ = question_of(approval("fs.move", given), SMALL, None)
    assert "\n" not in question.text
    assert '"x\\n  rm -rf /\\nAllow fs.read?"' in question.text


@each_of(
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
    assert called(name, given, SMALL) == ShownCall([Show("call", line(name, given, 200))], [])
    (question,), _ = question_of(approval(name, given), SMALL, None)
    assert question.text.startswith(f"Allow {name} ")
    assert question.text.endswith(" (run_process)?")


def test_a_change_has_its_sides() -> None:
    sight = Surroundings(lambda path: b"a\nb\n")
    kinds = [show.kind for show in called("fs.write", {"path": "f", "content": "a\nc\n"}, sight).shows]
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
    assert failed == [Show("failed", "  t: no\\x1b[2J")]
    assert STYLES["failed"] == "31"
    marked_output = wording.result("t", "c", "out\nerr\n", 0, "")
    both = resulted(result(f"{wording.failed('EIO', 'exit status 3')}\n{marked_output}", is_error=True), True)
    assert [show.text for show in both] == ["  t: EIO: exit status 3", "  out", "  err"]
    nine = resulted(result("x\n" * 9), is_apart=False)
    assert nine[-1].text == "  ... 1 more line"


def test_marks_are_such_as_the_terminal_can_show() -> None:
    # chat.md: "with `TERM=dumb` or a locale without that sign"
    assert marked(Show("call", "t"), "UTF-8") == "\u25b8 t"
    assert marked(Show("call", "t"), "ANSI_X3.4-1968") == "call: t"
    assert all(ascii_.isascii() for _, ascii_ in MARKS.values())
    assert marked(Show("error", "t"), "ascii") == "t"


def test_an_input_is_edited_as_json() -> None:
    # issue: "[e]dit"
    given = {"path": "x", "lines": [1, 2], "text": "a\nb"}
    assert calls.edited(calls.written(given)) == given
    assert calls.written({"path": "x"}) == '{\n  "path": "x"\n}'
    for text, said in (
        ("{", "not one JSON value"),
        ("[1]", "expected a JSON object, got array"),
        ("", "JSON"),
    ):
        with pytest.raises(Fault, match=said):
            calls.edited(text)
