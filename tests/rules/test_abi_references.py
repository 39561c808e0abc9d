"""docs/abi.md: every rule has a test that names it, and every number that a test names is a rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tests.places import PROJECT

RULE = re.compile(r"^\*\*(\d+\.\d+)\*\* ", re.MULTILINE)
SECTION = re.compile(r"^## (\d+)\. ", re.MULTILINE)
REFERENCE = re.compile(r"abi\.md((?:(?:,| and)? \d+(?:\.\d+)?(?![\w.]\d))+)")
ABI = (PROJECT / "docs/abi.md").read_text()
RULES, SECTIONS = RULE.findall(ABI), SECTION.findall(ABI)


def references(*folders: str) -> Iterator[tuple[Path, str]]:
    for path in sorted(chain.from_iterable((PROJECT / folder).rglob("*") for folder in folders)):
        if path.suffix in (".py", ".c", ".h", ".md") and path != Path(__file__):
            for found in REFERENCE.findall(path.read_text()):
                yield from ((path.relative_to(PROJECT), each) for each in re.findall(r"\d+(?:\.\d+)?", found))


def test_rules_are_numbered_in_order() -> None:
    numbers = [tuple(map(int, rule.split("."))) for rule in RULES]
    assert [section for section, _ in numbers] == sorted(section for section, _ in numbers)
    for section in map(int, SECTIONS):
        own = [number for above, number in numbers if above == section]
        assert own == list(range(1, len(own) + 1))
    assert {str(section) for section, _ in numbers} == {*SECTIONS}
    assert len(RULES) > 100


def test_each_number_that_is_named_is_a_rules() -> None:
    named = [*references("cortexfs", "runner", "tests", "docs")]
    assert len(named) > 500
    assert [(str(path), each) for path, each in named if each not in {*RULES, *SECTIONS}] == []


def test_each_rule_has_a_test_that_names_it() -> None:
    tested = {each for path, each in references("tests") if path.name.startswith("test_")}
    assert [rule for rule in RULES if rule not in tested] == []
