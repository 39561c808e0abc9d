"""A line of `.allowed`: the facts for a caller about each tool that he may run."""

from __future__ import annotations

from cortexfs.core.registry import Object
from cortexfs.core.tree.metadata import row
from tests.tables import each_of


@each_of(
    ("description", "first", "rest"),
    [
        ("Reads a file. Says how long it is.", "Reads a file.", "Says how long it is."),
        ("Reads a file.", "Reads a file.", ""),
        ("reads v1.2 files", "reads v1.2 files", ""),
        ("Why?\nBecause.\tSo!", "Why?", "Because. So!"),
        ("", "", ""),
    ],
)
def test_a_description_is_its_first_sentence_and_the_rest(description: str, first: str, rest: str) -> None:
    one = Object(class_="tool", name="fs.read", description=description)
    assert row(one) == f"tool/fs.read\tready\tbuiltin\t{first}\t{rest}\n"
