"""docs/security.md and docs/attacks.md name the tests of their claims, and show the default mount table."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from cortexfs.agents.view import HOME, SECRETS, SYSTEM, view
from cortexfs.core.value_formats import HIDES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
ATTACKS = (ROOT / "docs" / "attacks.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`:]+\.py)::(\w+)`", PAGE + ATTACKS)))


@functools.cache
def functions(file: str) -> set[str]:
    return set(re.findall(r"^(?:async )?def (\w+)\(", (ROOT / file).read_text(), re.MULTILINE))


def test_each_test_that_is_named_is_there() -> None:
    assert len(NAMED) > 500
    assert [(file, test) for file, test in NAMED if test not in functions(file)] == []


def claims() -> list[str]:
    """Returns the items of the sections that make claims, and the attacks."""
    claimed = PAGE.partition("## A tool runs")[2].partition("## What is not claimed")[0]
    items = [
        " ".join(item.split())
        for item in re.findall(r"^- .*?(?=^- |^#|^\n|\Z)", claimed + ATTACKS, re.MULTILINE | re.DOTALL)
    ]
    return items + re.findall(r"^\| (?!attack \|).*", ATTACKS, re.MULTILINE)


def test_each_claim_names_a_test() -> None:
    # "A claim without a test, as `file::test`, is not made."
    assert len(claims()) > 150
    assert [claim for claim in claims() if "::test_" not in claim] == []


def test_the_default_mount_table_is_described() -> None:
    rows = PAGE.partition("### What the default mount table shows")[2].partition("\nClosed are")[0]
    described: dict[str, str] = {}
    for row in re.findall(r"^\| (`[/~].*?) \| (.*?) \|", rows, re.MULTILINE):
        letters = "".join(
            letter for letter, word in zip("rwx", ("read", "written", "run"), strict=True) if word in row[1]
        )
        described |= dict.fromkeys(re.findall(r"`([^`]+)`", row[0]), letters)
    home = {f"~/{name}": letters for name, letters in HOME.items()}
    assert described == {**SYSTEM, **home}
    shown = dict(view("", "/", root="/ctx", home="/home/me", writable=True))
    its = {path.replace("/home/me/", "~/"): how for path, how in shown.items() if path.startswith("/home")}
    assert its == {**home, "~/": HIDES}
    never = " ".join(PAGE.split()).partition("but never these")[2].partition(": `tests/")[0]
    assert tuple(re.findall(r"`([^`]+)`", never)) == SECRETS
    assert dict(view("", "/work", root="/ctx", home="", writable=False)) == {
        **SYSTEM,
        "/work": "rx",
        "/ctx": "rx",
    }
    assert dict(view("", "/", root="/ctx", home="", writable=True)) == {**SYSTEM, "/ctx": "rx"}
