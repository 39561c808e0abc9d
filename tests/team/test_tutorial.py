"""The tutorial of docs/team.md: each command runs on its machine as the page has it, from empty directories.

The users of the page are users of this machine: alice is nobody, and bob is daemon. The names of the page's
network become addresses of the test's network.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY
from tests.places import PROJECT
from tests.team.machines import Machine, machine
from tests.team.networks import Place, network
from tests.waiting import until

NAMES = ("box", "laptop", "desk", "shelf")
PEOPLE = {"alice": "nobody", "bob": "daemon"}
COMMAND = re.compile(r"^    (\w+)\$ (.+)$", re.MULTILINE)


class Tutorial:
    """The machines of the page, and the last token that a command printed."""

    def __init__(self, machines: dict[str, Machine], places: dict[str, Place]) -> None:
        self.machines = machines
        self._places = places
        self._token = ""

    def run(self, heading: str, uid: int = 0) -> list[str]:
        """Run all commands below a heading; returns the output of each."""
        return [self.one(name, line, uid) for name, line in commands(heading)]

    def one(self, name: str, line: str, uid: int = 0) -> str:
        here = self.machines[name]
        for known in NAMES:
            line = line.replace(f"{known}.example.org", self._places[known].address)
        for person, user in PEOPLE.items():
            line = re.sub(rf"\b{person}\b", user, line)
        line = re.sub(r"ctx1-\S+", self._token, line)
        words = shlex.split(line)
        if words[0].startswith("/ctx/"):
            done = here.ctx.run([f"{here.ctx.root}{words[0][4:]}", *words[1:]], uid=uid or NOBODY)
        else:
            if words[:3] == ["ctx", "team", "join"] and "--name" not in words:
                words += ["--name", name]  # the default is the host's name, which all machines share here
            program = [str(here.ctx.python), "-I", "-m", "cortexfs.cli.main"]
            done = here.ctx.run([*program, *words[1:]], uid=uid)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        if found := re.search(r"ctx1-\S+", done.stdout):
            self._token = found[0]
        return str(done.stdout)


def commands(heading: str) -> list[tuple[str, str]]:
    text = (PROJECT / "docs/team.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = COMMAND.findall(text)
    assert found, heading
    return found


@pytest.fixture(scope="module")
def tutorial(python: Path) -> Iterator[Tutorial]:
    with network(*NAMES) as places, ExitStack() as stack:
        made = {name: stack.enter_context(machine(python, name, place=places[name])) for name in NAMES}
        yield Tutorial(made, places)


def test_two_machines(tutorial: Tutorial) -> None:
    laptop = tutorial.machines["laptop"]
    init, join, export, *rest = commands("Two machines in five minutes")
    for name, line in (init, join, export):
        tutorial.one(name, line)
    laptop.sees("tool/text.word_count+box")
    called, listed, status = [tutorial.one(name, line) for name, line in rest]
    assert '"text":"3 words"' in called
    assert "tool/text.word_count+box" in listed
    assert "box" in status


def test_an_agent_may_what_both_sides_allow(tutorial: Tutorial) -> None:
    *before, alone, asked = commands("Agents")
    for name, line in before:
        tutorial.one(name, line)
    box, laptop = tutorial.machines["box"], tutorial.machines["laptop"]
    assert "guest" in (box.folder / "exports.json").read_text()
    laptop.sees("agent/guest+box")
    assert '"text":"what can you do?"' in tutorial.one(*alone)
    assert "what can you do?" in tutorial.one(*asked, NOBODY)


def test_a_session_goes_on_elsewhere(tutorial: Tutorial) -> None:
    box, laptop = tutorial.machines["box"], tutorial.machines["laptop"]
    for here, there in ((box, "laptop"), (laptop, "box")):
        here.ctx.ctx("agent", "new", "coder", "--model", "debug/echo", "--tools", "fs.read")
        (here.ctx.config / "team.map").write_text(f"nobody@{there} = nobody\n")
    begin, take, again = commands("Sessions")
    tutorial.one(begin[0], spoken(begin[1], "hello"), NOBODY)
    log = box.ctx.root / f"home/{NOBODY}/agent/coder.d/session/plan+laptop/events.jsonl"
    until(lambda: log.read_text() if log.exists() else "", lambda seen: '"done"' in seen)
    laptop.ctx.umount()
    gone = {"machine": "laptop", "live": False}
    until(lambda: box.status["machines"], lambda seen: gone in seen)
    tutorial.one(*take, NOBODY)
    said = tutorial.one(again[0], spoken(again[1], "and on"), NOBODY)
    assert "and on" in said
    laptop.ctx.mount()


def spoken(line: str, words: str) -> str:
    """Returns a command that sends a message in place of a conversation on a terminal."""
    return line.replace("ctx chat", "ctx send --output text") + f" {shlex.quote(words)}"


def test_three_servers(tutorial: Tutorial) -> None:
    tutorial.run("Three servers")
    for name in ("box", "desk", "shelf"):
        until(tutorial.machines[name].is_in_cluster)
    laptop = tutorial.machines["laptop"]
    laptop.sees("tool/text.word_count+box")
