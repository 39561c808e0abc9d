"""TOML as editors of other systems save it, and as only a test would write it."""

from __future__ import annotations

import pytest

from cortexfs.core import tomltext
from cortexfs.core.errors import Fault
from tests.tables import each_of


def test_the_mark_and_the_line_ends_of_windows_are_no_fault() -> None:
    said = '\ufeffname = "hello"\r\nversion = "1.0.0"\r\n'.encode()
    assert tomltext.table(said, "manifest.toml") == {"name": "hello", "version": "1.0.0"}


@each_of("part", ["a", '"a"', r'"\""', "'a'", "a\t"])
@each_of("form", ["{} = 1", "[{}]", "[[{}]]", "b = {{ {} = 1 }}"])
def test_a_key_that_takes_memory_by_the_square_is_refused(form: str, part: str) -> None:
    with pytest.raises(Fault, match="it is nested too deeply: a key has over 64 parts"):
        tomltext.table(form.format(".".join([part] * 65)).encode(), "it")
    assert tomltext.table(form.format(".".join([part] * 64)).encode(), "it")


@each_of("text", ['a = "{}"', "a = '{}'", 'a = """\n{}\n"""', "a = '''\n{}'''", "# {}\na = 1"])
def test_a_string_or_a_comment_is_no_key(text: str) -> None:
    words = ".".join(["w"] * 70)
    assert [*tomltext.table(text.format(words).encode(), "it")] == ["a"]
    for quotes in (
        '"""x"""""',
        "'''x'''''",
        r'"\""',
        """'"'""",
        '"#"',
    ):  # and no string hides a key behind it
        with pytest.raises(Fault, match="a key has over 64 parts"):
            tomltext.table(f"b = {{ a = {quotes}, {words} = 1, c = {quotes} }}".encode(), "it")
