"""Lines of at most 1 MiB with the newline (abi.md 5.4), in and out."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from cortexfs.core import frames, lines
from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE
from cortexfs.core.lines import LineSplitter, encode
from tests.tables import each_of

HARD = ["a", '"', "\\", "\n", "\x01", "\x7f", "é", "€", "😀", '\\"', "\\\\", "u0041\\", "a\x1fb\\\x02"]


def fed(chunks: list[bytes]) -> list[bytes | None]:
    splitter = LineSplitter()
    found: list[bytes | None] = []
    for chunk in chunks:
        found += splitter.feed(chunk)
        assert splitter.held < MAX_LINE
    return found


def test_lines_come_out_however_they_are_cut() -> None:
    data = b'{"op":"ping"}\n\n  {}\r\nrest\n'
    expected = data.split(b"\n")[:-1]
    assert fed([data]) == expected
    assert fed([data[n : n + 1] for n in range(len(data))]) == expected
    for cut in range(1, len(data)):
        assert fed([data[:cut], data[cut:]]) == expected


@each_of(("size", "kept"), [(MAX_LINE - 1, True), (MAX_LINE, False), (MAX_LINE + 1, False)])
@each_of("chunk", [MAX_LINE * 2, 65536, MAX_LINE - 1])
def test_a_line_has_at_most_1_mib_with_the_newline(size: int, kept: bool, chunk: int) -> None:
    # abi.md 5.4
    data = b"x" * size + b"\n{}\n"
    found = fed([data[n : n + chunk] for n in range(0, len(data), chunk)])
    assert found == [b"x" * size if kept else None, b"{}"]


def test_an_over_long_line_is_told_at_once_and_once() -> None:
    # abi.md 5.11
    splitter = LineSplitter()
    told = [splitter.feed(b"x" * (MAX_LINE // 4)) for _ in range(12)]
    assert told == [[], [], [], [None], *[[]] * 8]
    assert splitter.held == 0
    assert splitter.feed(b"the end of it\nnext\n") == [b"next"]


def test_the_end_completes_a_last_line() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b'{"op":"ping"}') == []
    assert splitter.feed(b"") == [b'{"op":"ping"}']
    assert splitter.feed(b"") == []


def split(frame: frames.Frame) -> list[frames.AnyFrame]:
    """Returns the frames that a reader gets from the lines of a frame, none of which is too long."""
    found = encode(frame).splitlines(keepends=True)
    assert max(map(len, found)) <= MAX_LINE
    return [frames.decode(line) for line in found]


def test_text_over_1_mib_is_split_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 5.23; and the first line is as long as it can be
    rows: list[tuple[type[frames.Delta | frames.ReasoningDelta], int]]
    rows = [(frames.Delta, 0), (frames.ReasoningDelta, 3)]
    for place, (unit, (type_, shift)) in enumerate(zip(HARD, itertools.cycle(rows), strict=False)):
        limit = MAX_LINE if place < 2 else 4096  # a MiB of each would take the time of a hundred tests
        monkeypatch.setattr(lines, "MAX_LINE", limit)
        written = [len(msgspec.json.encode(char)) - 2 for char in unit]
        text = "-" * shift + unit * (limit // sum(written) + 9)
        first, second = encode(type_(run="r", text=text)).splitlines(keepends=True)
        assert limit - max(written) < len(first) <= limit
        assert len(second) <= limit
        said = [frames.decode(line) for line in (first, second)]
        assert "".join(each.text for each in said if isinstance(each, type_)) == text


def test_the_limit_is_exact() -> None:
    room = MAX_LINE - len(frames.encode(frames.Delta(id="1", run="r", text="")))
    assert len(split(frames.Delta(id="1", run="r", text="x" * room))) == 1
    assert len(split(frames.Delta(id="1", run="r", text="x" * (room + 1)))) == 2


def test_a_message_keeps_its_parts_unless_it_is_split() -> None:
    parts = [frames.Text("a"), frames.Text("b")]
    message = frames.Message(run="r", role="user", content=parts)
    assert split(message) == [message]
    long = frames.Message(run="r", role="user", content=[*parts, frames.Text("c" * MAX_LINE)])
    found = split(long)
    assert len(found) == 2
    said = [
        each.content[0].text for each in found if isinstance(each, frames.Message) and each.role == "user"
    ]
    assert "".join(said) == "ab" + "c" * MAX_LINE


@each_of(
    "frame",
    [
        frames.ToolCall(call="c", name="n", input={"x": "y" * MAX_LINE}),
        frames.ToolResult(call="c", name="n", output="y" * MAX_LINE, is_error=False),
        frames.Delta(run="r" * MAX_LINE, text="x"),
    ],
)
def test_what_cannot_be_split_is_refused(frame: frames.Frame) -> None:
    # abi.md 5.4: a larger frame is EMSGSIZE
    with pytest.raises(Fault, match=r"EMSGSIZE: a .* frame is over 1048576 bytes"):
        encode(frame)


def test_kind_is_the_type_on_the_wire() -> None:
    assert lines.kind(frames.ToolResult(call="c", name="n", output="", is_error=True)) == "tool_result"
