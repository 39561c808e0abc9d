"""The data that the tree keeps on disk survives as a whole or not at all, and a person may repair it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cortexfs.core.tree.written_values import Written
from cortexfs.state.control_store import ControlStore, KeptAlias

TOOL = ("tool", "fs.read")
MODEL = ("model", "openai/gpt")
RULE = b"allow coder_t tool:shell execute\n"
WHEN = 1_600_000_000_123_456_789


def test_values_come_back_with_their_time(tmp_path: Path) -> None:
    # abi.md 3.17
    store = ControlStore(tmp_path)
    store.put_value(TOOL, "policy", RULE)
    store.put_value(MODEL, "effort", b"low\n")
    store.put_value(MODEL, "effort", b"high\n")
    files = tmp_path / "tool/fs.read.d/policy", tmp_path / "model/openai/gpt.d/effort"
    for file in files:
        os.utime(file, ns=(WHEN, WHEN))
    assert ControlStore(tmp_path).load().values == {
        TOOL: {"policy": Written(RULE, WHEN)},
        MODEL: {"effort": Written(b"high\n", WHEN)},
    }
    assert files[1].read_bytes() == b"high\n"


def test_a_removed_value_stays_absent_until_it_is_written_or_created_again(tmp_path: Path) -> None:
    store = ControlStore(tmp_path)
    store.put_value(TOOL, "policy", RULE)
    store.remove_value(TOOL, "policy", holds=False)
    (written,) = store.load().values[TOOL].values()
    assert (written.data, written.absent) == (None, True)
    store.put_value(TOOL, "policy", RULE)
    assert store.load().values[TOOL]["policy"].data == RULE
    store.remove_value(TOOL, "policy", holds=False)
    store.restore_value(TOOL, "policy")
    assert store.load().values == {}


def test_a_value_that_holds_comes_back_while_its_file_is_removed(tmp_path: Path) -> None:
    # abi.md 3.22
    store = ControlStore(tmp_path)
    store.put_value(TOOL, "policy", RULE)
    store.remove_value(TOOL, "policy", holds=True)
    (written,) = store.load().values[TOOL].values()
    assert (written.data, written.absent) == (RULE, True)
    store.restore_value(TOOL, "policy")
    assert store.load().values[TOOL]["policy"].data == RULE
    store.remove_value(TOOL, "policy", holds=True)
    store.reset_value(TOOL, "policy")
    assert store.load().values == {}


def test_a_draft_takes_the_name_and_a_crash_leaves_none(tmp_path: Path) -> None:
    # abi.md 3.21
    store = ControlStore(tmp_path)
    folder = tmp_path / "tool/fs.read.d"
    draft = store.draft(TOOL, "policy", 7, RULE)
    store.draft(TOOL, "policy", 8, b"another\n")
    assert draft.path.read_bytes() == RULE
    same = draft.path.stat().st_ino
    store.put_value(TOOL, "policy", RULE, draft)
    assert (folder / "policy").stat().st_ino == same
    store.put_value(TOOL, "policy", RULE * 2, store.draft(TOOL, "policy", 7, RULE))  # judged, and changed
    assert (folder / "policy").read_bytes() == RULE * 2
    assert store.load().values[TOOL]["policy"].data == RULE * 2
    assert os.listdir(folder) == ["policy"]


def test_a_crash_between_the_steps_leaves_the_older_state_or_the_default(tmp_path: Path) -> None:
    store = ControlStore(tmp_path)
    store.put_value(TOOL, "policy", RULE)
    folder = tmp_path / "tool/fs.read.d"
    (folder / ".new.policy").write_bytes(b"half a li")
    assert store.load().values[TOOL]["policy"].data == RULE
    assert sorted(os.listdir(folder)) == ["policy"]  # the leftovers are removed
    store.put_value(MODEL, "effort", b"low\n")
    (tmp_path / "model/openai/gpt.d/.absent.effort").touch()  # a removal killed before its second step
    assert store.load().values[MODEL]["effort"].data is None


def test_aliases_and_homes_come_back(tmp_path: Path) -> None:
    # abi.md 1.5
    store = ControlStore(tmp_path)
    store.put_alias(("model",), "main", b"/ctx/model/openai/gpt")
    store.put_alias(("home", "1000", "tool"), "sh", b"/ctx/tool/shell")
    store.put_alias(("home", "1000", "tool"), "sh", b"/ctx/tool/bash")
    store.put_home(1001)
    kept = store.load()
    assert kept.homes == [1000, 1001]
    assert [(alias.folder, alias.name, alias.target) for alias in kept.aliases] == [
        (("model",), "main", b"/ctx/model/openai/gpt"),
        (("home", "1000", "tool"), "sh", b"/ctx/tool/bash"),
    ]
    assert os.readlink(tmp_path / "links/model/main") == "/ctx/model/openai/gpt"


def test_aliases_move_and_go(tmp_path: Path) -> None:
    store = ControlStore(tmp_path)
    store.put_alias(("tool",), "a", b"x")
    store.put_alias(("tool",), "b", b"y")
    store.move_alias(("tool",), "a", ("agent",), "c")
    store.remove_alias(("tool",), "b")
    (alias,) = store.load().aliases
    assert isinstance(alias, KeptAlias)
    assert (alias.folder, alias.name) == (("agent",), "c")


def test_what_cannot_be_understood_is_left_alone_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ControlStore(tmp_path)
    store.put_value(MODEL, "effort", b"low\n")
    folder = tmp_path / "model/openai/gpt.d"
    (folder / "effort").write_bytes(b"enormous\n")
    (folder / "driver").mkdir()
    (folder / "limit").write_bytes(b"9\n")  # read-only, so we never wrote it
    (tmp_path / "tool/bad name.d").mkdir(parents=True)
    (tmp_path / "links/home/joe").mkdir(parents=True)
    (tmp_path / "links/tool").mkdir()
    os.symlink("x", tmp_path / "links/tool/-x")
    assert store.load().values == {}
    said = caplog.text
    assert all(word in said for word in ("enormous", "driver", "bad name", "joe", "-x"))
    assert "limit" not in said
    assert (folder / "effort").exists()


def test_a_state_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    kept = ControlStore(tmp_path / "none").load()
    assert (kept.homes, kept.aliases, kept.values) == ([], [], {})
    assert not (tmp_path / "none").exists()


def test_nobody_else_reads_the_state(tmp_path: Path) -> None:
    store = ControlStore(tmp_path / "tree")
    store.put_value(TOOL, "policy", RULE)
    assert (tmp_path / "tree").stat().st_mode & 0o777 == 0o700


def test_an_alias_never_stands_where_a_control_would_be_kept(tmp_path: Path) -> None:
    # An alias of that name may be older than the provider; its target is a folder of another user.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    store = ControlStore(tmp_path / "tree")
    store.put_alias(("model",), "openai", bytes(elsewhere))
    store.put_value(MODEL, "effort", b"low\n")
    assert os.listdir(elsewhere) == []
    assert store.load().values[MODEL]["effort"].data == b"low\n"
    assert [alias.name for alias in store.load().aliases] == ["openai"]
