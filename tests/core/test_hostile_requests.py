"""Requests that are made to cost as much as a line can (docs/security.md, "One user does not hold the others up")."""

from __future__ import annotations

import sys

import pytest

from cortexfs.core import jsontext, requests
from cortexfs.core.errors import Fault
from cortexfs.core.frames import MAX_LINE, Error
from cortexfs.core.requests import Send
from tests.core.conversation_pair import new_session

LONG = b"1234567890123456789"  # of as many digits as 64 bits may have: numbers are looked at then
ROOM = MAX_LINE - 200


def line(input: bytes) -> bytes:
    return b'{"op":"send","id":"i","input":' + input + b"}"


def send(input: bytes) -> Send:
    request = requests.decode(line(input))
    assert isinstance(request, Send), request
    return request


def steps(line: bytes) -> int:
    """How many lines of Python it takes to understand a line: no clock that a busy machine could upset."""
    count = 0

    def trace(*_: object) -> object:
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
    # abi.md 5: "Same session and same id again: the original run", in whatever order its fields come. A sort of
    # a hundred thousand sorted keys behind another one has brought the interpreter down
    keys = [b'"%05x":0' % number for number in range(ROOM // 10)]
    session = new_session()
    run, _ = session.send(send(b'{"content":"a",' + b",".join(keys) + b"}"), "r1")
    again, events = session.send(send(b"{" + b",".join(keys[::-1]) + b',"content":"a"}'), "r2")
    assert (run, again, events) == ("r1", "r1", [])
    with pytest.raises(Fault, match="EINVAL: id: \"i\" was another message"):
        session.send(send(b'{"content":"a"}'), "r3")
