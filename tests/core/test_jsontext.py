"""core/jsontext.py: the error messages for bytes that are not valid JSON."""

from __future__ import annotations

import msgspec
import pytest

from cortexfs.core.jsontext import why_unread
from tests.tables import each_of


class _Answer(msgspec.Struct):
    id: int


@each_of(
    ("data", "why"),
    [
        (b"garbage", "JSON is malformed: invalid character (byte 0)"),
        (b"", "Input data was truncated"),
        (b"{}", "Object missing required field `id`"),
        (b'{"id":"1"}', "Expected `int`, got `str` - at `$.id`"),
        (b'{"a":' + b"[" * 1_000_000, "it is nested too deeply"),  # since Python 3.14, the stack is the limit
    ],
)
def test_it_has_no_name_that_only_python_knows(data: bytes, why: str) -> None:
    with pytest.raises((ValueError, RecursionError)) as caught:
        msgspec.json.decode(data, type=_Answer)
    assert why_unread(caught.value) == why


def test_text_may_be_none_and_a_number_too_long() -> None:
    with pytest.raises(ValueError, match=r"(?i)utf-8") as undecoded:
        msgspec.json.decode(b'["\xff"]')
    for error in (undecoded.value, msgspec.DecodeError("Invalid UTF-8 encoded string")):
        assert why_unread(error) == "it is not UTF-8"
    with pytest.raises(ValueError, match="digits") as caught:
        int("1" * 10_000)
    assert why_unread(caught.value) == "a number in it is too long"
