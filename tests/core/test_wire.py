"""core/wire.py: greetings and messages, whole, in pieces, and with false lengths."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core import wire
from cortexfs.core.errors import Fault
from tests.tables import each_of


def greeting(
    argc: int, envc: int, size: int, magic: bytes = wire.MAGIC, protocol: int = wire.PROTOCOL
) -> bytes:
    return wire.HELLO.pack(magic, protocol, 77, wire.TTY_STDOUT, 0o22, argc, envc, size)


def test_a_greeting() -> None:
    words = b"--path\0README.md\0LANG=C\0"
    found = wire.hello(greeting(2, 1, len(words)))
    assert (found.inode, found.flags, found.umask) == (77, wire.TTY_STDOUT, 0o22)
    assert wire.strings(found, words) == ([b"--path", b"README.md"], [b"LANG=C"])
    assert wire.strings(wire.hello(greeting(0, 0, 0)), b"") == ([], [])


@each_of(
    ("data", "code"),
    [
        (greeting(0, 0, 0)[:-1], "EINVAL"),
        (greeting(0, 0, 0, magic=b"GET "), "EINVAL"),
        (greeting(0, 0, 0, protocol=99), "EPROTO"),
        (greeting(0, 0, wire.MAX_STRINGS + 1), "EMSGSIZE"),
        (greeting(wire.MAX_ARGUMENTS + 1, 0, wire.MAX_STRINGS), "EMSGSIZE"),
        (greeting(0, wire.MAX_VARIABLES + 1, wire.MAX_STRINGS), "EMSGSIZE"),
        (greeting(5, 0, 4), "EINVAL"),
    ],
)
def test_bad_greetings(data: bytes, code: str) -> None:
    with pytest.raises(Fault) as caught:
        wire.hello(data)
    assert caught.value.code == code


@each_of("words", [b"", b"a", b"a\0", b"a\0b", b"a\0b\0c\0", b"\0"])
def test_strings_that_do_not_add_up(words: bytes) -> None:
    with pytest.raises(Fault, match="does not hold the strings"):
        wire.strings(wire.hello(greeting(1, 1, 4)), words)


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=6), st.data())
def test_messages_split_anywhere_come_whole_and_in_order(
    said: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(wire.message(kind, payload) for kind, payload in said)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = wire.Splitter()
    heard = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        heard += splitter.feed(stream[start:stop])
    assert heard == said
    assert splitter.clean


def test_a_message_over_the_limit_is_refused_by_its_header() -> None:
    with pytest.raises(Fault) as caught:
        wire.Splitter(10).feed(wire.HEADER.pack(wire.DELTA, 11))
    assert caught.value.code == "EPROTO"


@given(st.binary(max_size=200))
def test_rubbish_is_refused_or_waits_for_more(rubbish: bytes) -> None:
    with contextlib.suppress(Fault):
        wire.Splitter(1000).feed(rubbish)
    with contextlib.suppress(Fault):
        wire.hello(rubbish[: wire.HELLO.size])
