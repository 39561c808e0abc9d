"""The request of a line, or the reason of its refusal (abi.md 5.7)."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval
from cortexfs.core.talk.approvals import by, decided
from cortexfs.core.talk.requests import (
    MAX_EDITED,
    MAX_ID,
    AnyRequest,
    Approve,
    Cancel,
    Ping,
    Refusal,
    Respond,
    Resume,
    Send,
    SessionKey,
    decode,
    encode,
    newest_text,
)
from tests.tables import each_of

ACCEPTED: list[tuple[str, AnyRequest]] = [
    # abi.md 5.7, the requests as the seed has them
    (
        '{"op":"send","id":"msg-1","session":"default","cwd":"/work","input":"hello"}',
        Send(id="msg-1", cwd="/work", input="hello"),
    ),
    ('{"op":"resume","session":"default","after":"event-id"}', Resume(after="event-id")),
    ('{"op":"cancel","id":"run-id"}', Cancel(id="run-id")),
    ('{"op":"ping"}', Ping()),
    # abi.md 5.7, 5.17
    ('{"op":"send","input":"x"}', Send(session="default", scope="private", input="x")),
    ('{"op":"send","input":"x","scope":"shared"}', Send(scope="shared", input="x")),
    ('{"op":"resume","scope":"temp"}', Resume(scope="temp")),
    ('{"op":"approve","run":"r","call":"c","decision":"deny"}', Approve(run="r", call="c", decision="deny")),
    (
        '{"op":"approve","run":"r","call":"c","decision":"allow_once","input":{"path":"x","n":null}}',
        Approve(run="r", call="c", decision="allow_once", input={"path": "x", "n": None}),
    ),
    # "`input` is a string, or an object with messages or content"
    ('{"op":"send","input":{"content":"x","steps":[1]}}', Send(input={"content": "x", "steps": [1]})),
    (
        '{"op":"send","input":{"messages":[{"role":"user","content":"x"}]}}',
        Send(input={"messages": [{"role": "user", "content": "x"}]}),
    ),
    # "Unknown fields are ignored", whatever they hold; white space is JSON's
    ('{"op":"ping","op2":null,"x":{"y":[1,null]}}', Ping()),
    (' { "op" : "ping", "id" : "p" } \r', Ping(id="p")),
]

# Since Python 3.14 its reader goes as deep as its stack allows, so the id is found.
_READ = None if sys.version_info < (3, 14) else "a"
REFUSED: list[tuple[bytes, str | None, str]] = [
    # "an unknown op, a line that is not a JSON object, a wrong type: an error frame with EINVAL"
    (b"", None, "the line: is not one JSON value"),
    (b"hello", None, "the line: is not one JSON value"),
    (b'{"op":"ping"', None, "the line: is not one JSON value"),
    (b'{"op":"ping"}{}', None, "the line: is not one JSON value"),
    (b"[]", None, "expected an object, got array"),
    (b"null", None, "expected an object, got null"),
    (b'{"id":"a"}', "a", "op: expected one of send, resume, cancel, approve, answer, ping, take; got null"),
    (b'{"op":"dance","id":"a"}', "a", 'got "dance"'),
    (b'{"op":7,"id":"a"}', "a", "got 7"),
    (b'{"op":"send","id":"a"}', "a", "object missing required field input"),
    (b'{"op":"send","id":"a","input":7}', "a", "input: expected string or object, got number"),
    (b'{"op":"send","id":"a","input":[]}', "a", "input: expected string or object, got array"),
    (b'{"op":"send","id":"a","input":null}', "a", "input: is null"),
    (b'{"op":"send","id":"a","input":""}', "a", "input: is empty"),
    (b'{"op":"send","id":"a","input":{}}', "a", "or an object with messages or content"),
    (b'{"op":"send","id":"a","input":{"content":" "}}', "a", "input: is empty"),
    (b'{"op":"send","id":"a","input":{"content":5}}', "a", "input.content: expected string or array"),
    (b'{"op":"send","id":"a","input":{"messages":[]}}', "a", "input: is empty"),
    (b'{"op":"send","id":"a","input":{"messages":["x"]}}', "a", "input.messages[0]: expected object"),
    (b'{"op":"send","id":"a","input":"x","session":7}', "a", "session: expected string, got number"),
    (b'{"op":"send","id":"a","input":"x","session":null}', "a", "session: is null; leave it out"),
    (b'{"op":"send","id":"a","input":"x","session":"../x"}', "a", 'session: the name "../x" may hold only'),
    (b'{"op":"send","id":"a","input":"x","session":""}', "a", 'session: the name "" is empty'),
    (b'{"op":"send","id":"a","input":"x","session":"x.d"}', "a", "ends in .sock or .d"),
    (b'{"op":"resume","id":"a","session":"index"}', "a", "is reserved for the index of the sessions"),
    (b'{"op":"send","id":"a","input":"x","scope":"all"}', "a", "expected one of private, shared, temp"),
    (b'{"op":"send","id":"a","input":"x","cwd":"work"}', "a", 'cwd: "work" is not an absolute path'),
    (b'{"op":"send","id":"a","input":"x","cwd":"/\\u0000"}', "a", "is not an absolute path"),
    (b'{"op":"send","id":"a","input":"x","cwd":{}}', "a", "cwd: expected string, got object"),
    (b'{"op":"send","id":"a","input":"x","cwd":"/%b"}' % (b"d" * 4095), "a", "longer than 4095 bytes"),
    (b'{"op":"resume","id":"a","after":12}', "a", "after: expected string, got number"),
    (b'{"op":"cancel"}', None, "object missing required field id"),
    (b'{"op":"cancel","id":5}', None, "id: expected string, got number"),
    (b'{"op":"ping","id":["a"]}', None, "id: expected string, got array"),
    (b'{"op":"ping","id":"' + b"a" * (MAX_ID + 1) + b'"}', None, "id: is longer than 256 characters"),
    (b'{"op":"approve","id":"a","run":"r","call":"c"}', "a", "missing required field decision"),
    (
        b'{"op":"approve","id":"a","run":"r","call":"c","decision":"yes"}',
        "a",
        "decision: expected one of allow_once, allow_session, deny",
    ),
    # protocol.md: "`input` ... is an object, and goes with `allow_once` alone"
    (b'{"op":"approve","id":"a","run":"r","call":"c","decision":"deny","input":{}}', "a", "allow_once alone"),
    (
        b'{"op":"approve","id":"a","run":"r","call":"c","decision":"allow_session","input":{"a":1}}',
        "a",
        "not with allow_session",
    ),
    (
        b'{"op":"approve","id":"a","run":"r","call":"c","decision":"allow_once","input":"x"}',
        "a",
        "input: expected object, got string",
    ),
    (
        b'{"op":"approve","id":"a","run":"r","call":"c","decision":"allow_once","input":null}',
        "a",
        "input: is null",
    ),
    # the `id` is echoed if it can be read
    (b'{"op":"ping","id":"a","x":"\xff"}', "a", "it is not UTF-8"),
    (b'{"op":"send","id":"a","input":{"content":"x","n":1e999}}', "a", "out of the range of numbers"),
    (b'{"op":"ping","id":"\xff"}', None, "it is not UTF-8"),
    (b'{"op":"ping","id":"a","x":' + b"[" * 50000 + b"]" * 50000 + b"}", _READ, "more than 100 levels"),
    (b'{"op":"ping","id":"a","x":' + b"[" * 150 + b"]" * 150 + b"}", "a", "more than 100 levels"),
]


@each_of(("line", "expected"), ACCEPTED)
def test_a_line_becomes_a_request(line: str, expected: AnyRequest) -> None:
    assert decode(line.encode()) == expected


@each_of("request_", [request for _, request in ACCEPTED])
def test_what_a_client_encodes_a_server_decodes(request_: AnyRequest) -> None:
    assert encode(request_).endswith(b"\n")
    assert decode(encode(request_)[:-1]) == request_


def test_the_seeds_send_is_encoded_as_it_stands_there() -> None:
    line = b'{"op":"send","id":"msg-1","session":"other","cwd":"/work","input":"hello"}\n'
    assert encode(Send(id="msg-1", session="other", cwd="/work", input="hello")) == line


@each_of(("line", "request_", "message"), REFUSED)
def test_a_line_is_refused_with_a_sentence(line: bytes, request_: str | None, message: str) -> None:
    refusal = decode(line)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.request) == ("EINVAL", request_)
    assert message in refusal.message
    assert (refusal.run, refusal.id) == (None, None)


def test_an_edited_input_is_bounded() -> None:
    # protocol.md, limits: "an `input` in an approve | 256 KiB"
    most = {"text": "\u001b" * ((MAX_EDITED - len('{"text":""}')) // 6)}
    fits = Approve(run="r", call="c", decision="allow_once", input=most)
    assert decode(encode(fits)[:-1]) == fits
    told = decided(
        Approval(call="c", name="n", input={}, effects=[], reason=""), by(1000, "allow_once", most)
    )
    assert len(frames.encode(told)) < frames.MAX_LINE
    too_long = msgspec.structs.replace(fits, input=most | {"x": "123456"})
    refusal = decode(encode(too_long)[:-1])
    assert isinstance(refusal, Refusal)
    assert refusal.code == "EMSGSIZE"
    assert "over 256 KiB" in refusal.message


def test_an_answer_is_bounded() -> None:
    # protocol.md, limits: "an edited `input`, or a `content`, as JSON | 256 KiB"
    most = {"text": "x" * (MAX_EDITED - len('{"text":""}'))}
    fits = Respond(run="r", question="q", content=most)
    assert decode(encode(fits)[:-1]) == fits
    refusal = decode(encode(msgspec.structs.replace(fits, content={"text": most["text"] + "x"}))[:-1])
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.message) == ("EMSGSIZE", "content: is over 256 KiB as JSON; send less")


def test_an_over_long_line_is_refused() -> None:
    # abi.md 5.11
    refusal = decode(None)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "EMSGSIZE"


def test_a_refusal_quotes_only_a_little_of_what_was_sent() -> None:
    long = msgspec.json.encode({"op": "send", "input": "x", "session": "s" * 900_000})
    refusal = decode(long)
    assert isinstance(refusal, Refusal)
    assert len(frames.encode(refusal)) < 1000


def test_a_client_refuses_what_would_not_fit() -> None:
    room = frames.MAX_LINE - len(encode(Send(input="")))
    assert len(encode(Send(input="x" * room))) == frames.MAX_LINE
    with pytest.raises(Fault, match="EMSGSIZE: the request is over 1048576 bytes"):
        encode(Send(input="x" * (room + 1)))


def test_an_id_of_the_longest_is_kept() -> None:
    assert decode(encode(Ping(id="é" * MAX_ID))[:-1]) == Ping(id="é" * MAX_ID)


@each_of(
    ("value", "expected"),
    [
        ("hello", ["hello"]),
        ({"content": "hello"}, ["hello"]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image", "url": "x"}]}, ["a"]),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}, ["u"]),
        ({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}, ["u"]),
        ({"messages": [{"role": "system", "content": "s"}]}, ["s"]),
        ({"messages": [{"role": "user"}]}, []),
    ],
)
def test_the_users_message_is_the_newest(value: Any, expected: list[str]) -> None:
    # abi.md 5.8, 5.21
    assert [part.text for part in newest_text(value)] == expected


def test_whose_session_it_is() -> None:
    # abi.md 5.17
    mine, other = SessionKey.of(Send(input="x"), 1000, 1), SessionKey.of(Resume(), 1001, 2)
    assert mine == SessionKey("private", 1000, "default")
    assert mine != other
    assert SessionKey.of(Resume(), 1000, 9) == mine
    assert SessionKey.of(Resume(scope="shared"), 1, 1) == SessionKey.of(Send(scope="shared", input="x"), 2, 2)
    # "after a disconnect ... a temp run is cancelled and leaves nothing": it belongs to a connection
    assert SessionKey.of(Resume(scope="temp"), 1000, 1) != SessionKey.of(Resume(scope="temp"), 1000, 2)


@each_of(
    ("parts", "is_empty"),
    [
        (b'[{"type":"text","text":""}]', True),
        (b'[{"type":"text","text":"a"}]', False),
        (b'[{"type":"text","text":""},{"type":"image","url":"https://a.org"}]', False),
        (b'[{"type":"image","url":"https://a.org"}]', False),
        (b'" "', True),
        (b'"a"', False),
    ],
)
def test_a_message_says_something(parts: bytes, is_empty: bool) -> None:
    # abi.md 5.14
    found = decode(b'{"op":"send","input":{"content":%b}}' % parts)
    assert isinstance(found, frames.Error) == is_empty
    assert not isinstance(found, frames.Error) or "is empty; say something" in found.message
