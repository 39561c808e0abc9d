"""Patterns in an agent's list of tools."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core.arguments.name_patterns import MAX_PATTERNS, expanded, fitting
from cortexfs.core.errors import Fault
from tests.tables import each_of

KNOWN = ("shell.exec", "fs.write", "fs.read", "fs.list", "text.word_count")


@each_of(
    ("written", "stored"),
    [
        (b"fs.*\n", b"fs.list\nfs.read\nfs.write\n"),
        (b"fs.[!w]*", b"fs.list\nfs.read"),
        (b"fs.read\nfs.*\n", b"fs.read\nfs.list\nfs.write\n"),
        (b"fs.*\nfs.read\n", b"fs.list\nfs.write\nfs.read\n"),
        (b"fs.r*\nfs.?ead\ntext.*\n", b"fs.read\ntext.word_count\n"),
        (b"notes.add\n", b"notes.add\n"),
        (b"", b""),
    ],
)
def test_a_pattern_becomes_the_names_that_fit_it_now(written: bytes, stored: bytes) -> None:
    # "tools (names, or globs expanded at write time)"
    assert expanded(written, KNOWN) == stored


@each_of("written", [b"a\na\n", b"\xff\n", b"a/b\n", b" fs.read\n"])
def test_what_else_is_wrong_is_left_to_the_format(written: bytes) -> None:
    assert expanded(written, KNOWN) == written


def test_a_pattern_that_fits_nothing_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(Fault, match=r"line 2: no tool fits 'fs\.raed\*'; did you mean fs\.read") as caught:
        expanded(b"fs.list\nfs.raed*\n", KNOWN)
    assert caught.value.code == "EINVAL"
    with pytest.raises(Fault, match=r"no tool fits 'zz\*'$"):
        fitting("zz*", KNOWN)


def test_patterns_are_bounded() -> None:
    with pytest.raises(Fault, match=str(MAX_PATTERNS)):
        expanded(b"*\n" * (MAX_PATTERNS + 1), KNOWN)


@given(st.binary(max_size=60))
def test_any_bytes_end_as_bytes_or_a_fault(data: bytes) -> None:
    lines = data.split(b"\n")
    try:
        found = expanded(data, KNOWN).split(b"\n")
    except Fault:
        assert any(byte in data for byte in b"*?[]!")
    else:
        assert [line for line in lines if line in found] == [line for line in found if line in lines]
