"""The end of a process's output, in the sentence that reports its end (abi.md 4.58)."""

from __future__ import annotations

from cortexfs.core.safe_text import MAX_LAST, MAX_LINE, last_words
from tests.tables import each_of

TRACE = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n    f(1)\n    ^^^^\n'
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/a.py", line 1, in f
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/b.py", line 7, in g
    | sqlite3.OperationalError: unable to open database file
    +------------------------------------
"""
NODE = "/a.js:1\nf();\n^\n\nReferenceError: no f\n    at Object.<anonymous> (/a.js:1:1)\n\nNode.js v22\n"
NPM = "npm error code E404\nnpm error 404 Not Found - GET https://r/x\nnpm error A complete log: /l\n"


@each_of(
    ("printed", "told"),
    [
        ("", ""),
        (" \n\n", ""),
        ("no key", "no key"),
        ("starts\nno key\n", "starts no key"),
        (f"starts\n{TRACE}OSError: no\n", "OSError: no"),
        (
            f"{TRACE}KeyError: 1\n\nIn its handling:\n\n{TRACE}OSError: no\nended\n",
            "OSError: no ended",
        ),
        (GROUP, "sqlite3.OperationalError: unable to open database file"),
        (NODE, "/a.js:1 f(); ReferenceError: no f Node.js v22"),
        (
            NPM,
            "npm error code E404 npm error 404 Not Found - GET https://r/x npm error A complete log: /l",
        ),
        ("  indented\n    alone\n", "alone"),
        ("---\n  42\n", "42"),
    ],
)
def test_whole_lines_are_told_and_no_stack(printed: str, told: str) -> None:
    # abi.md 4.61
    assert last_words(printed.encode()) == (f"; it printed last: {told}" if told else "")


def test_no_line_is_cut_in_its_middle() -> None:
    # abi.md 4.61
    lines = [f"line {number} " + "x" * 100 for number in range(100)]
    told = last_words("\n".join(lines).encode()).removeprefix("; it printed last: ")
    assert len(told) <= MAX_LAST
    assert told == " ".join(lines[-5:])
    frames = '  File "/a/long/path/of/some/module.py", line 1, in f\n' * 100
    assert last_words(f"{TRACE}{frames}OSError: no\n".encode()) == "; it printed last: OSError: no"
    long = "y" * 700  # the last line is told, however long it is
    assert last_words(f"{lines[0]}\n{long}\n".encode()) == f"; it printed last: {long}"
    assert len(last_words(b"z" * 10_000)) < MAX_LINE + 100
