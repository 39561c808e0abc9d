"""Every example of a command, in the help texts and on the pages, is a command that `ctx` understands."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.cli import parser
from tests.shell.cli.test_cli import EVERY
from tests.tables import each_of

REPOSITORY = Path(__file__).parents[3]
PAGES = [*sorted((REPOSITORY / "docs").glob("*.md")), REPOSITORY / "README.md"]
REST = re.compile(r"\s(?:[|&<>]|2>|#|\s).*|; .*")  # of the shell, or a remark
SYNTAX = re.compile(r"\[|\w\|\w|\.\.\.|──|\\$|^[^']*'[^']*$")  # no example, or one of several lines


def examples(lines: Iterator[str] | list[str]) -> list[str]:
    found = [re.sub(r"^(sudo )?", "", line.strip()) for line in lines]
    return [REST.sub("", line) for line in found if line.startswith("ctx ") and not SYNTAX.search(line)]


def parse(example: str) -> None:
    _, words = parser.split(shlex.split(example)[1:])
    name, *rest = parser.canonical(words)
    with contextlib.suppress(SystemExit):  # --help
        parser.of_command(name).parse_args(rest)


@pytest.mark.parametrize("command", EVERY)
def test_the_examples_of_a_command_are_understood(command: str) -> None:
    # abi.md 8.8. Found: Python 3.11 refused "ctx plugin new notes --template rust ./notes"
    declared = parser._declared(command)
    for each in (declared, *declared.verbs.values()):
        for example in examples([*each.examples]):
            parse(example)


@each_of("page", PAGES)
def test_the_examples_of_a_page_are_understood(page: Path) -> None:
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```|^(    .*?\n)(?! {4})", page.read_text(), flags=re.M | re.S)
    for example in examples("".join(map("".join, blocks)).splitlines()):
        parse(example)
