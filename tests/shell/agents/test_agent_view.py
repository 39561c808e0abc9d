"""The effects of an agent's mount table on a run: on the tools offered to its model, and on its calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from cortexfs.agents import place
from cortexfs.agents.loop import Agents
from cortexfs.agents.permissions import setup_of
from cortexfs.agents.view import allowed, caps, view
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta, Observer, ToolCall, ToolResult
from cortexfs.core.hostcalls import CallOutcome, Identity
from cortexfs.core.registry import Object
from cortexfs.core.value_formats import HIDES
from cortexfs.models.ask.driver import Turn as Question
from cortexfs.models.ask.driver import Who
from tests.shell.agent_runs import AGENT, Played, run
from tests.shell.asking import Turn

TABLE = "/srv\t/srv\tro\t-\n"
WHY = "no line of its mount table shows /ctx/tool/fs.read (agent/coder.d/mount (no line))"


class Model:
    """A model that calls fs.read once, whatever tools it is offered."""

    def __init__(self, **input_: str) -> None:
        self.offered: list[list[str]] = []
        self.system = ""
        self._input = input_

    async def __call__(self, question: Question) -> None:
        assert isinstance(question.input, dict)
        self.offered.append([tool["name"] for tool in question.input.get("tools", [])])
        self.system = question.input["system"]
        if len(self.offered) == 1:
            await question.say(ToolCall(call="c1", name="fs.read", input=self._input))
        else:
            await question.say(Delta(text="done"))


async def output() -> str:
    return "read"


def played(model: Model, table: str) -> tuple[Played, list[object]]:
    world = Played(model, output, mount=table)
    return world, list(trio.run(run, world).frames)


def test_what_the_mount_table_hides_is_neither_offered_nor_run() -> None:
    # the issue: "an object outside an agent's mount lines is neither offered to its model nor run ..., and
    # the layer says which line decided"
    model = Model()
    world, said = played(model, TABLE)
    assert model.offered == [[], []]
    assert world.ran == 0
    notes = {one.source: one.content for one in said if isinstance(one, Observer)}
    assert f"fs.read: {WHY}" in notes["mount view"]
    decided = json.loads(notes["policy"])
    assert (decided["decision"], decided["rule"]) == ("deny", "agent/coder.d/mount (no line)")
    (result,) = (one for one in said if isinstance(one, ToolResult))
    assert result.is_error
    assert "no line of its mount table shows /ctx/tool/fs.read" in result.output


def test_what_a_line_shows_is_offered_and_run() -> None:
    for table in ("", f"{TABLE}/ctx/tool\t/ctx/tool\tro\t-\n", "/\t/\tro\t-\n"):
        model = Model()
        world, said = played(model, table)
        assert model.offered == [["fs.read"], ["fs.read"]]
        assert world.ran == 1
        assert "mount view" not in {one.source for one in said if isinstance(one, Observer)}


# The model is told about the home directory, which is /home/alice for Played.

HIDDEN = "/home/alice/.x is hidden: without lines in agent/coder.d/mount an agent sees no hidden files of"


class Failing(Played):
    outcome = CallOutcome("")
    identities: tuple[Identity, ...] = ()

    async def call(self, _tool: Object, identity: Identity, *_asked: Any) -> CallOutcome:
        self.identities += (identity,)
        return self.outcome


def notes(path: str, output: str, fault: Fault, **controls: str) -> list[str]:
    """Makes a call fail with `fault`. Returns the notes to the user, with which the result also ends."""
    world = Failing(Model(path=path), unused, None, **controls)
    world.outcome = CallOutcome(output, fault)
    said = trio.run(run, world).frames
    found = [one.content for one in said if isinstance(one, Observer) and one.source == "mount view"]
    (result,) = (one for one in said if isinstance(one, ToolResult))
    assert [result.output.endswith(f"</tool_output>\n{note}") for note in found] == [True] * len(found)
    return found


async def unused() -> str:
    raise NotImplementedError


@pytest.mark.parametrize("path", ["/home/alice/.x", "~/.x", "cat $HOME/.x>y", "'../home/alice/a/../.x'"])
def test_a_call_that_needs_a_hidden_file_says_so(path: str) -> None:
    # the issue: "... and says so when a task needs one"
    (note,) = notes(path, "", Fault("EACCES", "no"))
    assert note.startswith(HIDDEN)
    assert note.endswith(": /home/alice/.x\t/home/alice/.x\tro\t-")
    failed = Fault("EIO", "exit status 1")
    assert notes("make", f"sh: {path}: Permission denied", failed) == [
        note
    ]  # the program's output names the needed file
    assert notes("make", f"{path}: No such file", failed) == []


def test_keys_are_not_offered() -> None:
    for path in ("~/.ssh/id_rsa", "~/.cargo/credentials.toml"):
        (note,) = notes(path, "", Fault("EACCES", "no"))
        assert "is hidden" in note
        assert note.endswith("do not show keys and passwords to agents.")


@pytest.mark.parametrize(
    ("path", "code"), [("~/.x", "ENOENT"), ("/srv/.x", "EACCES"), ("~/project/.x", "EACCES"), ("~", "EACCES")]
)
def test_other_failures_are_no_matter_of_it(path: str, code: str) -> None:
    assert notes(path, "", Fault(code, "no")) == []


def test_a_table_of_its_own_was_chosen() -> None:
    assert notes("~/.x", "", Fault("EACCES", "no"), mount="/ctx\t/ctx\tro\t-\n") == []


@pytest.mark.parametrize(
    ("cwd", "told"), [("/home/alice", True), ("/home", True), ("/home/alice/p", False), ("/", False)]
)
def test_in_a_home_directory_its_model_knows_what_is_closed(cwd: str, told: bool) -> None:
    model = Model()
    trio.run(run, Played(model, output, cwd=f"{cwd}\n"))
    assert f"Your working directory is {cwd}." in model.system
    assert ("nor make, rename or remove anything in /home/alice itself" in model.system) is told
    (note, *_) = notes("new", "", Fault("EACCES", "no"), cwd=f"{cwd}\n") or [""]
    assert note.startswith("Agents without a mount table of their own cannot") is told


def test_a_home_is_told_to_programs_that_find_their_settings_there() -> None:
    # docs/ctx.md: "`HOME` where their view shows its `.gitconfig`"; git fails where that file is refused
    setup = setup_of(Played(Model(), unused), AGENT)

    def home(table: str, home: str = "/home/alice") -> bytes | None:
        shown = view(table, "/srv", root="/ctx", home="/home/alice", writable=False)
        identity = Identity(1000, 1000, (), view=shown)
        return place.environment(setup, identity, "/ctx", home).get(b"HOME")

    assert home("") == home("/home\t/home\tro\t-\n") == b"/home/alice"
    assert home(TABLE) is None
    assert home("", "") is None


def test_what_is_closed_to_an_agent_is_closed_to_whom_it_starts() -> None:
    # Of the originals: "hidden→visible never": nor are keys in a hidden folder that the user chose
    closed = caps("", "/home/alice")
    shown = view("", "/home/alice/.config", root="/ctx", home="/home/alice", writable=True)
    world = Failing(Model(), unused, None, mount="/\t/\trw\t-\n")
    turn = Turn("go")
    turn.who = Who(Identity(1000, 1000, (), label="agent/coder", view=shown, caps=closed))
    trio.run(Agents(world).driver(AGENT), turn)
    (started,) = world.identities
    assert started.view is not None
    assert set(closed) <= set(started.caps)
    assert allowed(started.view, "/home/alice/.config/x") == "rwx"
    assert allowed(started.view, "/home/alice/.bashrc") == ""
    assert ("/home/alice/", HIDES) in started.view
