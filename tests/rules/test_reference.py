"""The reference has each command, verb, option, control file, variable and exit status, and nothing else.

Beside it: settings are held by tests/core/test_config.py, frames by tests/core/talk/test_protocol_docs.py,
summaries and checks by tests/shell/cli/test_cli.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from cortexfs.cli import parser
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, EXIT_STATUS
from cortexfs.core.tree.controls import CONTROLS
from tests.places import PROJECT

COMMANDS_PAGE = (PROJECT / "docs/commands.md").read_text()
TREE_PAGE = (PROJECT / "docs/ctx.md").read_text()
CONFIG_PAGE = (PROJECT / "docs/config.md").read_text()
AGENTS_PAGE = (PROJECT / "docs/agents.md").read_text()
# Options of a plugin's command, and of the original's program.
OTHERS = {"--loud", "--new-process-plugin"}
IN_HOMES = {"script"}  # docs/tools.md
NO_VARIABLES = {"CTX_DIRECTORY"}  # a stream of a team's server
SIGNALS = {127, 129, 130, 141, 143}  # those of a copied object; otherwise 128 plus the signal


def parsers(of: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield of
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from parsers(verb)


def options() -> set[str]:
    found = {"--version", "--help", "--root"}
    for name in parser.COMMANDS:
        for each in parsers(parser.of_command(name)):
            found |= {option for action in each._actions for option in action.option_strings}
    return found


def test_no_option_is_told_that_no_command_has() -> None:
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", COMMANDS_PAGE))
    assert len(told) > 40
    assert told - options() - OTHERS == set()
    assert told >= OTHERS


def test_the_verbs_of_each_command_are_told_and_no_others() -> None:
    rows = dict(re.findall(r"^\| `ctx (\w+)([^`]*)` \|", COMMANDS_PAGE, re.MULTILINE))
    for name in parser.COMMANDS:
        verbs = {
            verb
            for action in parser.of_command(name)._actions
            if isinstance(action, argparse._SubParsersAction)
            for verb in action.choices
        }
        told = re.match(r" \[?([a-z\\|-]*)", rows[name] or " ")
        assert told is not None
        if verbs:
            assert set(told[1].replace("\\|", " ").split()) == verbs, name


def first_cells(page: str, heading: str) -> dict[str, str]:
    """Returns the rows of the table of files below a heading: each name with the rest of its row."""
    table = page.partition(f"\n{heading}\n")[2].partition("\n| file |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \| (.*)$", table, re.MULTILINE)
    return {name: rest for names, rest in rows for name in re.findall(r"`([^`]+)`", names)}


# abi.md 3.1
def test_the_control_files_are_told_and_no_others() -> None:
    for class_, page, heading in (
        ("tool", TREE_PAGE, "### Control files of a tool"),
        ("model", TREE_PAGE, "### Control files of a model"),
        ("agent", AGENTS_PAGE, "## Files of an agent"),
    ):
        told = first_cells(page, heading)
        assert set(told) | IN_HOMES == {control.name for control in CONTROLS[class_]} | IN_HOMES, class_
        for control in CONTROLS[class_]:
            if control.name not in IN_HOMES and "as of a tool" not in told[control.name]:
                assert ("**writable**" in told[control.name]) == (control.check is not None), control.name


def test_each_exit_status_is_told_with_its_codes_and_no_other() -> None:
    table = re.findall(r"^\| ([\d, ]+) \| .* \|(.*)\|$", TREE_PAGE, re.MULTILINE)
    told = {
        int(status): set(re.findall(r"E[A-Z]+", codes)) for row, codes in table for status in row.split(",")
    }
    for code, status in EXIT_STATUS.items():
        assert code in told[status], code
    assert set(told) == {EXIT_OK, EXIT_FAILED, *EXIT_STATUS.values()} | (SIGNALS & set(told))
    rows = re.findall(r"^\| ([\d, ]+) \|", COMMANDS_PAGE, re.MULTILINE)
    said = {int(status) for row in rows for status in row.split(",")}
    assert said - SIGNALS == {EXIT_OK, EXIT_FAILED, *EXIT_STATUS.values()} - SIGNALS


def test_each_variable_is_told_and_no_other() -> None:
    files = [path for kind in ("*.py", "*.c") for path in (PROJECT / "cortexfs").rglob(kind)]
    files += (PROJECT / "runner").glob("*.c")
    used = {name for path in files for name in re.findall(r"CTX_[A-Z_]*[A-Z]\b", path.read_text())}
    table = CONFIG_PAGE.partition("## Variables")[2]
    cells = " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    told = set(re.findall(r"CTX_\w+", cells))
    assert told == used - NO_VARIABLES
