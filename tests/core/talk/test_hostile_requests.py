"""Requests that cost as much time or memory as a line can (docs/attacks.md)."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE
from cortexfs.core.talk import requests
from cortexfs.core.talk.requests import Send
from tests.core.conversation_pair import new_session
from tests.tables import each_of

LONG = b"1234567890123456789"  # as many digits as 64 bits may have, so the decoder looks at each number
ROOM = MAX_LINE - 200
COUNTED = ROOM // 64  # fewer values, as counting each step of Python takes time


def line(input: bytes) -> bytes:
    return b'{"op":"send","id":"i","input":' + input + b"}"


def send(input: bytes) -> Send:
    request = requests.decode(line(input))
    assert isinstance(request, Send), request
    return request


def steps(line: bytes) -> int:
    """Counts the steps of Python to decode a line. Unlike a clock, the count ignores a busy machine."""
    count = 0

    def trace(*_: object) -> Any:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)
    try:
        requests.decode(line)
    finally:
        sys.settrace(None)
    return count


def test_a_retry_of_many_keys_is_one_message() -> None:
    # abi.md 5.14, in whatever order its fields
    # come. A sort of a hundred thousand sorted keys behind another one has brought the interpreter down
    keys = [b'"%05x":0' % number for number in range(ROOM // 10)]
    session = new_session()
    run, _ = session.send(send(b'{"content":"a",' + b",".join(keys) + b"}"), "r1")
    again, events = session.send(send(b"{" + b",".join(keys[::-1]) + b',"content":"a"}'), "r2")
    assert (run, again, events) == ("r1", "r1", [])
    with pytest.raises(Fault, match='EINVAL: id: another message has the id "i"'):
        session.send(send(b'{"content":"a"}'), "r3")


@each_of(
    ("input", "most"),
    [
        (b'{"content":"a","x":[' + LONG + b",1" * (COUNTED // 2 - 30) + b"]}", 5),
        (b'{"content":"a","x":[' + LONG + b',{"a":1}' * (COUNTED // 8 - 30) + b"]}", 30),
        (b'{"content":"a","x":[1e999' + b",1" * (COUNTED // 2 - 30) + b"]}", 5),
    ],
)
def test_numbers_are_looked_at_quickly(input: bytes, most: int) -> None:
    # docs/attacks.md: a line that holds a long number costs a few steps per value, and no path for each value
    values = input.count(b",")
    assert steps(line(input)) < most * values


@each_of(
    ("text", "path"),
    [
        (b"[1,[2,99999999999999999999]]", "line[1][1]"),
        (b'{"a":{"b c":[1e999]},"x":1111111111111111111}', 'line.a["b c"][0]'),
        (b"99999999999999999999", "line"),
    ],
)
def test_a_number_that_is_too_large_is_named_by_its_path(text: bytes, path: str) -> None:
    # abi.md 4.15
    with pytest.raises(Fault) as caught:
        jsontext.decode(text, "line")
    assert caught.value.message.startswith(f"{path}: is ")
