"""`ctx agent` on a tree of plain files and its own state; tests/mounted tests it with a daemon."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cortexfs.agents import defaults, records
from cortexfs.cli import mounts, reload
from cortexfs.cli.main import main
from cortexfs.cli.mounts import Mount
from cortexfs.cli.shell import complete
from cortexfs.core.registry import Object
from cortexfs.core.tree import controls
from cortexfs.state.control_store import ControlStore
from tests.shell.cli_tree import STATUS, add, plant


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTX_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CTX_ROOT", str(tmp_path / "ctx"))
    return tmp_path / "state"


@pytest.fixture
def root(tmp_path: Path, state: Path) -> Path:
    """Returns the usual tree with one more tool, fs.list."""
    root = plant(tmp_path / "ctx")
    add(root, "tool/fs.list", "List.", "builtin", {})
    return root


@pytest.fixture
def served(state: Path) -> Iterator[None]:
    """Locks the state, as the daemon of the planted mount would."""
    state.mkdir(mode=0o700, exist_ok=True)
    with open(state / "lock", "w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(re.findall(r"pid: (.*)", STATUS)[0])
        file.flush()
        yield


def new(*words: str) -> int:
    """Creates an agent, even if the planted tree lacks its model or tools."""
    return main(["agent", "new", "--anyway", *words])


def made(state: Path, name: str) -> Object:
    return next(one for one in records.load(state).objects if one.name == name)


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["agent", "list", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


# new


@pytest.mark.usefixtures("served")
def test_a_new_agent_may_use_what_it_was_given_and_nothing_else(
    root: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # "it writes the policy lines that its model and tools need"
    assert new("coder", "--model", "openai/gpt-5", "--tools", "fs.*", "--tools", "note.add,shell.exec") == 0
    agent = made(state, "coder")
    assert agent.extra["tools"].split() == ["fs.list", "fs.read", "note.add", "shell.exec"]
    assert agent.extra["model"] == "openai/gpt-5\n"
    assert agent.extra["label"] == "user_u:agent_r:coder_t:s0"
    assert agent.extra["policy"].splitlines() == [
        "allow coder_t model:openai/gpt-5 use",
        *(f"allow coder_t tool:{name} execute" for name in ("fs.list", "fs.read", "note.add", "shell.exec")),
    ]
    said = capsys.readouterr().err
    assert "made agent/coder; the change takes effect with the next ctx mount" in said
    assert stat.S_IMODE((state / "agents").stat().st_mode) == 0o700


def test_an_agent_starts_as_base_does_unless_it_is_told_otherwise(root: Path, state: Path) -> None:
    assert new("plain") == 0
    agent, base = made(state, "plain").extra, made(state, "base").extra
    assert {name for name in agent if agent[name] != base[name]} == {"label", "policy", "meta.json"}
    assert (agent["owner"], agent["gid"]) == (str(os.getuid()), str(os.getgid()))


def test_an_agent_without_tools(root: Path, state: Path) -> None:
    assert new("talker", "--tools", "") == 0
    assert made(state, "talker").extra["tools"] == ""
    assert made(state, "talker").extra["policy"] == "allow talker_t model:main use\n"


def test_what_it_is_told_to_be_comes_from_a_file_or_standard_input(
    root: Path, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "critic.md").write_text("You find what is wrong.")
    assert new("critic", "--system", str(tmp_path / "critic.md"), "--approval", "ask") == 0
    type_in(monkeypatch, "Tu réponds.\n")
    assert new("french", "--system", "-", "--description", "Speaks\n  French.") == 0
    assert made(state, "critic").extra["system.md"] == "You find what is wrong.\n"
    assert made(state, "critic").extra["approval"] == "ask"
    assert made(state, "french").extra["system.md"] == "Tu réponds.\n"
    assert made(state, "french").description == "Speaks French."


def test_labels_are_unique_whatever_the_names(root: Path, state: Path) -> None:
    for name in ("c.", "c-", "c.."):
        assert new(name) == 0
    ControlStore(state / "tree").put_value(("agent", "c."), "label", b"user_u:agent_r:d_t:s0\n")
    assert new("d") == 0
    labels = [one.extra["label"] for one in records.load(state).objects]
    assert len(set(labels)) == len(labels)
    assert made(state, "d").extra["label"] == "user_u:agent_r:d_2_t:s0"
    assert "allow d_2_t model:main use" in made(state, "d").extra["policy"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["a/b"], 2, "must be one component"),
        (["x.sock"], 2, "ends in .sock or .d"),
        (["base"], 1, "there is agent/base already"),
        (["x", "--tools", "fs.raed*"], 2, "no tool fits 'fs.raed*'; did you mean fs.read"),
        (["x", "--tools", "a/b"], 2, "agent: the tool name 'a/b' must be one component"),
        (["x", "--model", "a/b/c"], 2, "provider/model"),
        (["x", "--approval", "never"], 2, "is unknown"),
        (["x", "--system", "/nonexistent/file"], 1, "cannot be read: No such file"),
        (["x", "--description", "a" * (records.MAX_DESCRIPTION + 1)], 2, "the description is over"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(
    words: list[str], status: int, said: str, root: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new(*words) == status
    assert said in capsys.readouterr().err
    assert records.names_of_agents(state) == []


def test_a_named_mount_has_to_be_there(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["new", "x"], ["list"], ["rm", "x", "--yes"]):
        assert main(["--root", str(tmp_path / "none"), "agent", *words]) == 69
        assert "no CortexFS is mounted at" in capsys.readouterr().err
    assert not state.exists()
    assert main(["agent", "new", "x"]) == 0  # CTX_ROOT is no mount either, but was not named for this


def test_a_prompt_that_no_control_could_hold_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long").write_text("a" * (controls.MAX_VALUE + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert new("x", "--system", str(tmp_path / "long")) == 1
    assert new("x", "--system", str(tmp_path / "binary")) == 2
    assert "64 KiB" in capsys.readouterr().err


def test_a_name_is_made_once(root: Path, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new("coder", "--description", "first") == 0
    assert new("coder", "--description", "second") == 1
    assert "there is agent/coder already; edit the files in its .d/" in capsys.readouterr().err
    assert made(state, "coder").description == "first"
    (root / "agent" / "short").symlink_to(root / "agent" / "coder")
    assert new("short") == 1  # the agent would hide the link


def test_a_pattern_needs_a_mount_and_names_do_not(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new("x", "--tools", "fs.*") == 69
    assert "ctx mount, or name the tools" in capsys.readouterr().err
    assert new("x", "--tools", "fs.read") == 0
    assert made(state, "x").extra["tools"] == "fs.read\n"


def test_agents_of_agent_are_the_daemon_owners(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = os.getuid() + 1
    monkeypatch.setattr(mounts, "mounted_at", lambda point: Mount(point, 1, owner, True))
    records.put(state, records.AgentRecord("theirs", 0, 0, 0))
    (root / "agent" / "theirs").touch()
    assert main(["agent", "rm", "theirs", "--yes"]) == 13
    assert "only the daemon's owner may remove" in capsys.readouterr().err
    assert new("theirs") == 1
    assert "there is agent/theirs already, and home/" in capsys.readouterr().err
    assert main(["agent", "new", "mine", "--description", "x"]) == 2
    assert main(["agent", "rm", "mine", "--yes"]) == 1
    assert records.names_of_agents(state) == ["theirs"]


def test_one_that_cannot_be_set_up_is_removed_again(
    root: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # "if one write is refused, the agent is removed again": no daemon creates the files of its .d/ here
    agents = root / "home" / str(os.getuid()) / "agent"
    agents.mkdir(parents=True)
    assert new("mine", "--home") == 1
    assert "label is refused: No such file or directory" in capsys.readouterr().err
    assert list(agents.iterdir()) == []
    assert records.names_of_agents(state) == []


def test_no_name_is_taken_that_a_user_has(
    root: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records.put(state, records.own("mine", 1000, 1000, 0), 1000)
    assert main(["agent", "new", "mine"]) == 1
    assert "uid 1000 has an agent mine" in capsys.readouterr().err


# rm


def test_what_is_removed_leaves_nothing_for_the_next_of_its_name(
    root: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two", "three"):
        assert new(name) == 0
        ControlStore(state / "tree").put_value(("agent", name), "approval", b"ask\n")
    capsys.readouterr()
    assert main(["agent", "rm", "one", "agent/two", "one", "--yes"]) == 0
    said = capsys.readouterr().err
    assert "removed agent/one, agent/two; sessions stay" in said
    assert records.names_of_agents(state) == ["three"]
    assert set(ControlStore(state / "tree").load().values) == {("agent", "three")}


def test_a_daemon_that_serves_the_state_drops_the_values_itself(root: Path, state: Path) -> None:
    assert new("one") == 0
    ControlStore(state / "tree").put_value(("agent", "one"), "approval", b"ask\n")
    with open(state / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["agent", "rm", "one", "--yes"]) == 0
    assert ("agent", "one") in ControlStore(state / "tree").load().values
    assert new("one") == 0  # no daemon serves the state any more
    assert not ControlStore(state / "tree").load().values


@pytest.mark.parametrize(
    ("names", "status", "said"),
    [
        (["base"], 13, "agent/base is built in and stays"),
        (["coder", "base"], 13, "agent/base is built in"),
        (["coder", "codr"], 1, "there is no agent/codr; did you mean coder?"),
        (["zz"], 1, "there is no agent/zz; see: ctx agent list"),
        (["../x"], 1, "there is no agent/../x"),
    ],
)
def test_what_cannot_be_removed_is_said_before_anything_is(
    names: list[str], status: int, said: str, root: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new("coder") == 0
    assert main(["agent", "rm", *names, "--yes"]) == status
    assert said in capsys.readouterr().err
    assert records.names_of_agents(state) == ["coder"]


def test_without_yes_somebody_has_to_answer(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new("coder") == 0
    type_in(monkeypatch, "y\n")
    assert main(["agent", "rm", "coder"]) == 2
    assert "say --yes" in capsys.readouterr().err
    assert records.names_of_agents(state) == ["coder"]


def test_a_damaged_record_can_be_removed(root: Path, state: Path) -> None:
    (state / "agents").mkdir(parents=True)
    (state / "agents" / "bad.json").write_text("{")
    assert main(["agent", "rm", "bad", "--yes"]) == 0
    assert records.names_of_agents(state) == []


# list


def test_a_list_without_a_mount_says_so(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new("coder", "--tools", "fs.read", "--description", "Writes code. And tests it.") == 0
    found = {row["name"]: row for row in rows(capsys)}
    assert list(found) == ["base", "coder"]
    assert found["coder"] == {
        "name": "coder",
        "model": "main",
        "tools": ["fs.read"],
        "approval": "auto",
        "status": "not mounted",
        "description": "Writes code. And tests it.",
        "label": "user_u:agent_r:coder_t:s0",
        "policy": ["allow coder_t model:main use", "allow coder_t tool:fs.read execute"],
    }
    assert main(["agent", "list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAME", "MODEL", "TOOLS", "APPROVAL", "STATUS", "DESCRIPTION"]
    assert lines[2] == ["coder", "main", "1", "auto", "not", "mounted", "Writes", "code."]


def test_a_list_shows_what_the_mount_says(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(root, "agent/coder", "Writes code.", "agent", None)
    for name, text in {"model": "openai/gpt-5\n", "tools": "fs.read\nfs.list\n", "approval": "ask\n"}.items():
        (root / "agent/coder.d" / name).write_text(text)
    (root / "agent/short").symlink_to(root / "agent/coder")
    (row,) = rows(capsys)
    assert (row["name"], row["model"], row["approval"], row["status"]) == (
        "coder",
        "openai/gpt-5",
        "ask",
        "ready",
    )
    assert row["tools"] == ["fs.read", "fs.list"]


def test_new_prints_what_it_made(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new("coder", "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["name"], row["tools"]) == ("coder", list(defaults.BASE_TOOLS))


# The mount that a command waits for.


@pytest.mark.usefixtures("served")
def test_the_command_waits_until_the_mount_shows_it(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(_root_option: str | None, outcome: Any) -> str:
        (root / "agent" / "coder").touch()
        said: str | None = outcome({})
        return said or "the mount follows"

    monkeypatch.setattr(reload, "tell", tell)
    assert new("coder") == 0
    assert "made agent/coder; the mount follows" in capsys.readouterr().err
    monkeypatch.setattr(reload, "RELOAD_SECONDS", 0.1)
    assert new("other") == 0
    assert "does its daemon have another --state?" in capsys.readouterr().err


@pytest.mark.parametrize("holder", [None, 4194998])
def test_a_mount_with_another_state_is_not_waited_for(
    root: Path,
    state: Path,
    holder: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # agents.md: "A mount that has another state (`--state`) does not see it, which is said at once"
    monkeypatch.setattr(reload, "tell", None)
    state.mkdir(mode=0o700)
    with open(state / "lock", "w+") as file:
        if holder:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(str(holder))
            file.flush()
        assert new("coder") == 0
        assert main(["agent", "rm", "coder", "--yes"]) == 0
    said = capsys.readouterr().err
    assert said.count(f"the mount at {root} has another state and does not show the change") == 2
    assert records.names_of_agents(state) == []


@pytest.mark.usefixtures("served")
def test_what_the_mount_says_of_a_broken_one_is_passed_on(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"broken agent": ["coder: its record is bad"]}
    monkeypatch.setattr(reload, "tell", lambda _root_option, outcome: outcome(facts))
    assert new("coder") == 0
    assert "it cannot be used: its record is bad" in capsys.readouterr().err


def test_candidates(root: Path) -> None:
    add(root, "agent/base", "", "builtin", None)
    add(root, "agent/coder", "", "agent", None)
    add(root, "agent/critic", "", "agent", None)
    assert complete.candidates(["ctx", "agent", ""]) == ["new", "rm", "list"]
    assert complete.candidates(["ctx", "agent", "rm", ""]) == ["coder", "critic"]
    assert complete.candidates(["ctx", "agent", "rm", "coder", "cr"]) == ["critic"]
    assert complete.candidates(["ctx", "agent", "new", "x", "--tools", "fs."]) == ["fs.list", "fs.read"]
    assert complete.candidates(["ctx", "agent", "new", "x", "--model", ""]) == ["main", "openai/gpt-5"]
    assert complete.candidates(["ctx", "agent", "new", "x", "--approval", ""]) == ["auto", "ask"]
