"""The directory where a plugin keeps data for its user."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.host.call import plugin_state
from tests.shell import esmodules


def plugin(keeps: Path) -> hostcalls.Plugin:
    return hostcalls.Plugin("kept", "1", "esm", "mod.ts", keeps=str(keeps))


IDENTITY = hostcalls.Identity(os.getuid(), os.getgid(), ())


def test_hosts_that_begin_at_once_share_it(tmp_path: Path) -> None:
    # the user's host and the host of a confined agent are two processes, and either may be the first
    faults: list[Fault] = []
    for turn in range(50):
        (place := tmp_path / "kept" / str(turn)).mkdir(parents=True)
        gate = threading.Barrier(4)

        def begin(gate: threading.Barrier = gate, place: Path = place) -> None:
            gate.wait()
            try:
                plugin_state.prepare(plugin(place), IDENTITY, str(place.parent))
            except Fault as fault:
                faults.append(fault)

        threads = [threading.Thread(target=begin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stat.S_IMODE((place / str(os.getuid())).stat().st_mode) == 0o700
    assert faults == []


@pytest.mark.parametrize("link", ["kept/p", f"kept/p/{os.getuid()}"])
def test_no_link_leads_to_another_place(link: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / str(os.getuid())).mkdir(parents=True)
    (tmp_path / link).parent.mkdir(parents=True)
    (tmp_path / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Fault, match="cannot keep its files in"):
        plugin_state.prepare(plugin(tmp_path / "kept/p"), IDENTITY, str(tmp_path / "kept"))


@pytest.mark.parametrize("named", ["elsewhere", "kept", "kept/..", "kept/p/q"])
def test_it_lies_where_all_plugins_keep_theirs(named: str, tmp_path: Path) -> None:
    # a daemon under an attacker's control could make root create directories for a user anywhere
    for folder in ("elsewhere", "kept/p/q"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(Fault, match="this path is not allowed"):
        plugin_state.prepare(plugin(tmp_path / named), IDENTITY, str(tmp_path / "kept"))


def test_a_new_state_is_whole_and_a_second_host_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    path = str(tmp_path / "state.sqlite")
    table = "CREATE TABLE IF NOT EXISTS t (a)"
    with contextlib.closing(plugin_state.database(path, table)) as first:
        assert first.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert first.execute("PRAGMA synchronous").fetchone() == (2,)  # full: data is kept from now on
        first.execute("INSERT INTO t VALUES (1)")
        monkeypatch.setattr(os.path, "exists", lambda _: False)  # as if another host began at the same time
        with contextlib.closing(plugin_state.database(path, table)) as second:
            assert second.execute("SELECT a FROM t").fetchall() == [(1,)]
    assert len(waited) == 2  # once for each connection
    assert [each.name for each in tmp_path.iterdir()] == ["state.sqlite"]


def test_a_state_whose_folder_takes_no_links_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    with contextlib.closing(plugin_state.database(str(tmp_path / "s"), "CREATE TABLE t (a)")) as made:
        assert made.execute("SELECT * FROM t").fetchall() == []


def test_a_state_that_is_no_database_is_closed(tmp_path: Path) -> None:
    (path := tmp_path / "s").write_text("this is no database" * 100)
    with pytest.raises(sqlite3.DatabaseError) as failed:
        plugin_state.database(str(path), "CREATE TABLE t (a)")
    assert failed.value.args == ("file is not a database",)
    assert not esmodules.opened(path, os.getpid())
