"""What strangers say, where people and programs read it line by line."""

from __future__ import annotations

import logging

from cortexfs.cli.sparing import MOST, SECONDS, Sparing
from cortexfs.core import frames, wire
from cortexfs.core.plain import escaped, one_line
from cortexfs.voice import Text

ESCAPES = "a\x1b]0;owned\x07b\x9bc\x7fd\u202ee\r"


def said(data: bytes) -> str:
    return b"".join(payload for _, payload in wire.Splitter().feed(data)).decode()


def test_a_terminal_is_told_nothing_by_messages() -> None:
    # abi.md 4: "In text mode errors go to stderr as `<object>: <CODE>: <message>`"
    text = said(Text("t", True, True).end("error", "EIO", ESCAPES))
    assert text == "t: EIO: a\\x1b]0;owned\\x07b\\x9bc\\x7fd\\u202ee\n"
    text = said(Text("t", True, True).say(frames.Progress(message=ESCAPES)))
    assert text.startswith("t: a\\x1b]0;")
    media = frames.Media(attachment={"media_type": "image", "url": "x\x1b[2J\ny"})
    assert said(Text("t", True, True).say(media)) == "[image] x\\x1b[2J y\n"


def test_tabs_lines_and_letters_stay() -> None:
    assert escaped("ä\tb\nc 日本") == "ä\tb\nc 日本"


def test_output_is_the_tools_own() -> None:
    # ctx.md: "`CTX_OUTPUT=text /ctx/tool/fs.read a > b` makes an exact copy"
    assert said(Text("t", True, True).say(frames.Delta(text=ESCAPES))) == ESCAPES


def test_one_line_is_one_line() -> None:
    # ctx.md: status is "`key: value` lines"
    assert one_line("broken\npid: 1\x1b\u2028") == "broken pid: 1\\x1b"
    assert len(one_line("x" * 10_000)) == 1000


def record(line: int, at: float) -> logging.LogRecord:
    made = logging.LogRecord("n", logging.INFO, "file.py", line, "said %s", ("it",), None)
    made.created = at
    return made


def test_nobody_fills_the_log() -> None:
    spare = Sparing()
    kept = [one for one in (record(1, 10.0 + n) for n in range(MOST * 3)) if spare.filter(one)]
    assert len(kept) == MOST
    assert kept[0].getMessage() == "said it"
    assert "left out" in kept[-1].getMessage()
    assert spare.filter(record(2, 50.0))  # of another origin
    assert spare.filter(record(1, 11.0 + SECONDS))  # later
