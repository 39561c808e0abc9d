"""Server-sent events: bytes in, events out, wherever the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core.errors import Fault
from cortexfs.core.models import sse
from tests.tables import each_of

STREAM = (
    '\ufeff: hello\r\nevent: a\r\ndata: {"t":"ä🙂"}\r\n\r\n'
    "data:one\ndata: two\nid: 7\n\n\n\rdata: x\r\rdata: lost"
)
EVENTS = [
    sse.ServerEvent("a", '{"t":"ä🙂"}'.encode()),
    sse.ServerEvent("", b"one\ntwo"),
    sse.ServerEvent("", b"x"),
]


@given(st.lists(st.integers(0, len(STREAM.encode())), max_size=8))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    # issue: "half UTF-8/half SSE lines"
    data, parser = STREAM.encode(), sse.EventParser()
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_nothing(data: bytes) -> None:
    whole = sse.EventParser().feed(data + b"\n\n")
    parser = sse.EventParser()
    assert [event for byte in data + b"\n\n" for event in parser.feed(bytes([byte]))] == whole


@each_of("piece", [b"data: " + b"x" * 4096 + b"\n", b"x" * 4096])
def test_an_event_that_never_ends_is_bounded(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 256 << 10)
    parser = sse.EventParser()
    kept = sse.MAX_EVENT // len(piece)
    for _ in range(kept):
        assert not parser.feed(piece)
    with pytest.raises(Fault, match="EREMOTEIO"):
        parser.feed(piece * 2)


@each_of("size", [1, 2, 3, 4, 100])
def test_a_mark_of_byte_order_is_no_part_of_the_first_event(size: int) -> None:
    data = b"\xef\xbb\xbfdata: a\r\n\r\ndata: b\r\n\r\n"
    parser = sse.EventParser()
    found = [
        event for start in range(0, len(data), size) for event in parser.feed(data[start : start + size])
    ]
    assert [event.data for event in found] == [b"a", b"b"]


def test_half_a_mark_is_a_beginning_like_others() -> None:
    parser = sse.EventParser()
    assert parser.feed(b"\xef\xbb") == []
    assert [event.data for event in parser.feed(b"x: y\ndata: a\n\n")] == [b"a"]
    assert [event.data for event in parser.feed(b"\xef\xbb\xbfdata: b\ndata: c\n\n")] == [b"c"]


def test_a_line_that_ends_in_cr_is_over_with_the_next_byte() -> None:
    parser = sse.EventParser()
    assert parser.feed(b"data: a\r\r") == []
    assert parser.feed(b"d") == [sse.ServerEvent("", b"a")]
