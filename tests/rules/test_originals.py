"""docs/from-cortex-sdk.md: each row on what works here of the originals names a test that exists."""

from __future__ import annotations

import re

from tests.places import PROJECT

TABLE = re.compile(r"<!-- table: originals -->\n\| what \| here \| test \|\n\|[-|]+\n((?:\|.*\n)+)")
WORDS = ("yes", "no", "other")


def rows() -> list[list[str]]:
    tables = TABLE.findall((PROJECT / "docs/from-cortex-sdk.md").read_text())
    lines = [line.strip("|") for one in tables for line in one.splitlines()]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_each_row_names_a_test_that_there_is() -> None:
    files = {path.stem: path.read_text() for path in (PROJECT / "tests").rglob("test_*.py")}
    assert len(rows()) > 80
    for what, _, test in rows():
        file, _, function = test.strip(" |").partition(".")
        assert f"def {function}(" in files.get(file, ""), (what, test)


def test_each_row_says_yes_no_or_otherwise() -> None:
    assert [row for row in rows() if re.split(r"[:,; ]", row[1])[0] not in WORDS] == []
