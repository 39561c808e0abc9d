"""The amount that one user can make the tree remember."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.tree import places
from cortexfs.core.tree.tree import Tree
from cortexfs.state.directories import Places, create
from cortexfs.tree import open_files
from cortexfs.tree.open_files import Handles, Listing


def test_open_folders_of_one_user_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # opened.py: each open folder "may be of another moment", so that each has a listing of its own
    monkeypatch.setattr(open_files, "MAX_ENTRIES", 5)
    handles, listing = Handles(), [("a", 1), ("b", 2)]
    first = handles.add_listing(listing, 1234)
    handles.add_listing(listing, 1234)
    with pytest.raises(Fault) as refused:
        handles.add_listing(listing, 1234)
    assert refused.value.code == "EMFILE"
    other = handles.add_listing(listing, 65534)
    assert handles.listing(other) == listing
    handles.remove_listing(first)
    handles.remove_listing(first)
    again: Listing = handles.listing(handles.add_listing(listing, 1234))
    assert again == listing


def test_aliases_of_all_users_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # places.py: "a user namespace can have 65,536 users, each with three folders"
    monkeypatch.setattr(places, "MAX_ALIASES_IN_TREE", 2)
    tree = Tree(owner=(0, 0), shebang=b"#!/r\n", programs={}, tool_timeout=1.0, now=1)
    for uid in (1, 2):
        folder = tree.home(uid, uid, 1) | places.HOME_SLOTS["tool"]
        tree.aliases.check(folder, "a", b"x")
        tree.aliases.add(folder, "a", b"x", 1)
    with pytest.raises(Fault) as refused:
        tree.aliases.check(tree.home(3, 3, 1) | places.HOME_SLOTS["tool"], "a", b"x")
    assert refused.value.code == "ENOSPC"


@pytest.mark.parametrize("which", ["state", "config"])
def test_a_state_that_others_may_change_is_refused(tmp_path: Path, which: str) -> None:
    # config.py: sessions and secrets are kept there, and enabled plugins are code that runs
    where = Places(tmp_path / "state", tmp_path / "config")
    create(where)
    assert where.state.stat().st_mode & 0o777 == 0o700
    getattr(where, which).chmod(0o777)
    with pytest.raises(Fault) as refused:
        create(where)
    assert refused.value.code == "EPERM"
    assert f"chmod go-w {getattr(where, which)}" in refused.value.message
