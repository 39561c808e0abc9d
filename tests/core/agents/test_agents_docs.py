"""docs/agents.md matches the code: its table of files is compared with the table that decides."""

from __future__ import annotations

import re
from pathlib import Path

from cortexfs.agents import defaults, records
from cortexfs.agents.view import SYSTEM, view
from cortexfs.core import value_formats
from cortexfs.core.arguments import name_patterns
from cortexfs.core.errors import Fault
from cortexfs.core.tree.controls import CONTROLS
from tests.places import PROJECT
from tests.tables import each_of

PAGE = (PROJECT / "docs" / "agents.md").read_text()
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.partition("| file | format |")[2].split("\n\n")[0].splitlines()[2:]
]
SAID = re.compile(r"`([^`]+)`")


def test_every_control_is_there_in_its_order() -> None:
    assert [SAID.findall(row[0])[0] for row in ROWS] == [control.name for control in CONTROLS["agent"]]


def test_what_is_writable() -> None:
    marked = [SAID.findall(row[0])[0] for row in ROWS if row[1].startswith("**writable**")]
    assert marked == [control.name for control in CONTROLS["agent"] if control.check]


def test_defaults() -> None:
    base = records.load(Path("/nonexistent")).objects[0]
    controls = {control.name: control for control in CONTROLS["agent"]}
    for name, _, default, _ in ROWS:
        control = controls[SAID.findall(name)[0]]
        if default == "empty":
            assert control.render(base) == "", name
        elif found := SAID.findall(default):
            assert control.render(base).strip() == found[0].replace("NAME", base.name), name


def test_the_tools_of_base() -> None:
    said = PAGE.partition("has tools that read:")[2].partition("It cannot")[0]
    assert tuple(SAID.findall(said)) == defaults.BASE_TOOLS


def test_numbers() -> None:
    assert f"at most {name_patterns.MAX_PATTERNS} such lines" in " ".join(PAGE.split())
    assert f"at most {value_formats.MAX_MOUNTS} lines" in " ".join(PAGE.split())


def test_the_example_of_a_table_is_one() -> None:
    lines = re.findall(r"^    (/\S+\t.*)$", PAGE, re.MULTILINE)
    shown = view("".join(f"{line}\n" for line in lines), "/", root="/ctx", home="", writable=False)
    assert shown == (("/ctx/tool", "rx"), ("/srv/data", "rx"), ("/srv/project", "rw"), ("/usr", "rx"))


@each_of("option", value_formats.MOUNT_OPTIONS)
def test_every_option_is_told(option: str) -> None:
    (told,) = re.findall(rf"^\| [^|]*`{option}`[^|]* \| (.*) \|$", PAGE, re.MULTILINE)
    line = f"/a\t/a\trw\t{option}"
    try:
        value_formats.path_mounts(f"{line}\n")
    except Fault:
        assert told.startswith("refused")
    else:
        assert ("x" not in value_formats.rights(line)) == told.startswith("they cannot")


def test_the_default_view() -> None:
    programs = re.findall(
        r"`(/[\w*]+)`", " ".join(PAGE.split()).partition("programs and libraries (")[2].partition(")")[0]
    )
    executed = {path for path, letters in SYSTEM.items() if "x" in letters}
    assert executed == {path for path in executed if path in programs or path.startswith("/lib")}
    assert {"/usr", "/bin", "/sbin", "/lib*", "/opt"} == set(programs)
