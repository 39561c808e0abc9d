"""`ctx plugin install` with a daemon that the test plays: changes that stay, and changes that are undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cortexfs import config
from cortexfs.cli import mounts, reload
from cortexfs.cli.reload import NOT_MOUNTED
from cortexfs.state import directories
from tests.shell import plugin_commands
from tests.shell.plugin_commands import Said, edit, hello

places, said = plugin_commands.places, plugin_commands.said

TAKEN = "its tool fs.read is already one of builtin; to take that name: ctx plugin enable hello --replace"
NAMES = ("tool/fs.read",)
V1, V2 = Path("v1"), Path("v2")


class Daemon:
    """Answers with the status lines that a test has set. Without lines, there is no mount."""

    def __init__(self) -> None:
        self.lines: tuple[str, ...] = ()
        self.waited: list[bool] = []
        self.is_interrupted = False

    def tell(
        self,
        given: str | None,
        outcome: reload.Outcome = lambda facts: None,
        goes_on: reload.GoesOn = lambda facts: False,
        *,
        waits: bool = True,
    ) -> str:
        self.waited.append(waits)
        if self.is_interrupted and len(self.waited) == 1:
            raise KeyboardInterrupt
        facts = mounts.facts("\n".join(self.lines))
        return (outcome(facts) or "it is in effect") if self.lines else NOT_MOUNTED


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, places: directories.Places) -> Daemon:
    """Plays the daemon, and writes two versions of the plugin hello."""
    made = Daemon()
    monkeypatch.setattr(reload, "tell", made.tell)
    edit(hello(V1), '"0.1.0"', '"1.0.0"')
    edit(hello(V2), '"0.1.0"', '"2.0.0"')
    return made


@pytest.fixture
def state(places: directories.Places) -> Callable[[], tuple[str, config.Choice | None]]:
    """Returns a function that finds the installed version of hello, and the choice about hello."""

    def found() -> tuple[str, config.Choice | None]:
        path = places.state / "plugins/hello/manifest.toml"
        version = path.read_text().partition('version = "')[2][:5] if path.exists() else ""
        return version, config.choices(places.config).get("hello")

    return found


State = Callable[[], tuple[str, config.Choice | None]]


@pytest.mark.parametrize("before", [True, False, NAMES])
@pytest.mark.parametrize(
    ("why", "status", "sentence"),
    [
        (TAKEN, 1, "its tool fs.read is already one of builtin; to let it take that name, say --replace\n"),
        ("no pen", 2, "it does not load: no pen\n"),
        ("the plugin hello does not load: no pen", 2, "it does not load: no pen\n"),
    ],
)
def test_an_upgrade_that_is_refused_leaves_the_former_version(
    daemon: Daemon,
    places: directories.Places,
    said: Said,
    state: State,
    before: config.Choice,
    why: str,
    status: int,
    sentence: str,
) -> None:
    # abi.md 11.26
    said.ok("install", "v1")
    config.choose(places.config, "hello", before)
    daemon.lines, daemon.waited = (f"broken plugin: hello: {why}",), []
    told = f"ctx plugin: hello is not installed, and nothing has changed: {sentence}"
    assert said("install", "v2") == (status, "", told)
    assert (state(), daemon.waited) == (("1.0.0", before), [True, True])


def test_a_new_one_whose_name_is_taken_is_there_to_be_enabled(
    daemon: Daemon, said: Said, state: State
) -> None:
    daemon.lines = (f"broken plugin: hello: {TAKEN}",)
    assert said("install", "v1") == (1, "", f"ctx plugin: hello is not enabled: {TAKEN}\n")
    assert state() == ("1.0.0", False)
    daemon.lines = ("broken plugin: hello: no pen",)
    said("uninstall", "hello", "--purge")
    assert said("install", "v1")[0] == 2
    assert state() == ("", None)


@pytest.mark.parametrize("before", [None, True, False, NAMES])
def test_who_interrupts_an_installation_leaves_what_was(
    daemon: Daemon, places: directories.Places, said: Said, state: State, before: config.Choice | None
) -> None:
    # abi.md 11.45
    if before is not None:
        said.ok("install", "v1")
    config.choose(places.config, "hello", before)
    daemon.is_interrupted, daemon.waited = True, []
    assert said("install", "v2") == (130, "", "")
    assert state() == ("" if before is None else "1.0.0", before)
    assert daemon.waited == [True, False]  # the command tells the daemon, but does not wait


def test_consent_is_to_the_names_that_are_taken_then(daemon: Daemon, said: Said, state: State) -> None:
    # abi.md 11.46
    daemon.lines = ("reloads: 1", "taken names: hello: tool/fs.read")
    told = said.ok("install", "v1", "--replace")
    assert told.endswith("; it is in effect; it takes names of others: tool/fs.read\n")
    assert state() == ("1.0.0", NAMES)
    said.ok("install", "v2")
    assert state() == ("2.0.0", NAMES)
    said.ok("enable", "hello")
    assert state() == ("2.0.0", NAMES)
    daemon.lines = ("reloads: 1",)
    said.ok("install", "v1", "--replace")  # allows the lower version
    assert state() == ("1.0.0", True)


def test_without_a_daemon_consent_is_to_the_files_that_are_there(
    daemon: Daemon, places: directories.Places, said: Said, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 11.46
    said.ok("install", "v1", "--replace")
    assert state() == ("1.0.0", config.REPLACE)
    said.ok("install", "v1")
    assert state() == ("1.0.0", config.REPLACE)
    said.ok("install", "v2")
    assert state() == ("2.0.0", True)
    said.ok("install", "v1", "--replace")  # allows the lower version alone
    assert state() == ("1.0.0", True)
    config.choose(places.config, "hello", config.REPLACE)
    monkeypatch.setattr(mounts, "answering", lambda given: "/ctx")
    monkeypatch.setattr(mounts, "status_text", lambda root: "taken names: hello: tool/fs.read\n")
    said.ok("install", "v2")
    assert state() == ("2.0.0", NAMES)
