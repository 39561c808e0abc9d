"""One tree for several users: the objects that each may run, the readers of a log, and the kernel's cache
(abi.md 1.10, 3.8)."""

from __future__ import annotations

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object
from cortexfs.core.tree import controls, edits, places
from cortexfs.core.tree.edits import Temporary
from cortexfs.core.tree.places import HOME
from cortexfs.core.tree.tree import Tree
from tests.core.tree.test_own_agents import UID, having, own
from tests.core.tree.test_tree import NOW, at, make
from tests.tables import each_of

OWNER = 10  # of the tree that `make` returns
LATER = NOW + 1


def own_tree() -> Tree:
    return having(own("mine"))


def test_an_object_of_a_home_runs_for_its_user_alone() -> None:
    tree = own_tree()
    mine, all_ = at(tree, f"home/{UID}/agent/mine"), at(tree, "tool/shell")
    for uid, runs in ((UID, True), (UID + 1, False), (0, False)):
        assert (tree.runnable(mine, uid) is not None) == runs
        assert tree.runnable(all_, uid) is not None
    assert tree.runnable(at(tree, "tool"), UID) is None


@each_of(("uid", "is_veiled"), [(0, False), (OWNER, False), (UID, True)])
def test_an_objects_log_is_its_owners(uid: int, is_veiled: bool) -> None:
    tree = make()
    log = at(tree, "tool/shell.d/log")
    assert tree.veiled(log, uid) == (log | places.VEILED if is_veiled else log)
    for path in ("tool/shell.d/schema", "tool/shell", "tool"):
        assert tree.veiled(at(tree, path), uid) == at(tree, path)


def test_the_log_of_ones_own_object_is_not_veiled() -> None:
    tree = own_tree()
    log = at(tree, f"home/{UID}/agent/mine.d/log")
    assert tree.veiled(log, UID + 1) == log


def test_the_kernel_keeps_what_changes_with_its_object_alone() -> None:
    tree = make()
    steady = {
        path: tree.is_steady(at(tree, path))
        for path in ("tool/shell", "tool/shell.d/schema", "tool/shell.d/policy", "tool/shell.d/log", "tool")
    }
    assert [path for path, is_so in steady.items() if is_so] == ["tool/shell", "tool/shell.d/schema"]


def test_a_tools_timeout_is_that_of_the_mount_where_it_has_none() -> None:
    tree = make()
    found = tree.control_at(at(tree, "tool/shell.d/timeout"))
    assert found
    assert tree.value(*found) == b"1800\n"
    own_timeout = Object(class_="tool", name="slow", description="", timeout=30.0)
    assert tree.control(own_timeout, "timeout") == "30\n"
    assert tree.control_at(at(tree, "tool")) is None
    assert tree.control_at(at(tree, "tool/shell")) is None


def test_temporaries_are_for_a_d_folder_and_named_as_editors_do() -> None:
    tree = make()
    folder = at(tree, "tool/shell.d")
    tree.check_temporary(folder, ".policy.swp")
    for place, name in (
        (at(tree, "tool"), ".policy.swp"),
        (at(tree, "tool/shell"), ".policy.swp"),
        (folder, "x"),
    ):
        with pytest.raises(Fault, match="EROFS"):
            tree.check_temporary(place, name)


def test_a_full_folder_takes_a_temporary_in_place_of_another_only() -> None:
    tree = make()
    folder = at(tree, "tool/shell.d")
    for number in range(edits.MAX_IN_FOLDER):
        tree.add_temporary(folder, f".policy.{number}", (0, 0), 0o600, NOW)
    tree.check_temporary(folder, ".policy.0")
    with pytest.raises(Fault, match="ENOSPC: too many temporary files"):
        tree.check_temporary(folder, ".policy.99")


@each_of(
    ("path", "is_so"),
    [
        *((path, True) for path in ("tool/shell", "tool/shell.d", "tool/shell.d/log", "model/openai")),
        *((path, True) for path in ("model/openai/gpt", "model/openai/gpt.sock")),
        *((path, False) for path in ("tool", "home", "status", f"home/{UID}", f"home/{UID}/agent")),
    ],
)
def test_providers_and_what_is_of_an_object_are_the_registrys(path: str, is_so: bool) -> None:
    tree = own_tree()
    assert tree.is_of_registry(at(tree, path)) is is_so


def made(tree: Tree, uid: int, number: int) -> Temporary:
    folder = at(tree, f"home/{uid}/agent/mine.d")
    return tree.add_temporary(folder, f".policy.{number}", (uid, uid), 0o600, NOW)


def test_a_home_has_so_many_temporaries_also_without_a_name() -> None:
    tree = own_tree()
    first, *_ = [made(tree, UID, number) for number in range(edits.MAX_OF_HOME)]
    tree.temporaries.remove(first)
    with pytest.raises(Fault, match=f"uid {UID} has {edits.MAX_OF_HOME} temporary files"):
        made(tree, UID, 99)
    tree.forget_temporary(first)  # no process has it open any longer
    made(tree, UID, 99)


def test_all_homes_together_have_so_many() -> None:
    uids = range(UID, UID + edits.MAX_IN_HOMES // (edits.MAX_OF_HOME - 1) + 2)
    tree = having(*(own("mine", uid) for uid in uids))
    turns = [(uid, number) for number in range(edits.MAX_OF_HOME - 1) for uid in uids]
    for uid, number in turns[: edits.MAX_IN_HOMES]:
        made(tree, uid, number)
    with pytest.raises(Fault, match="ENOSPC: uid"):
        made(tree, *turns[edits.MAX_IN_HOMES])
    shared = at(tree, "tool/shell.d")
    assert tree.add_temporary(shared, ".policy.1", (0, 0), 0o600, NOW).home is None


def test_home_changes_with_each_new_user_and_no_other_time() -> None:
    tree = make()
    first = tree.home(UID, UID, NOW)
    assert tree.home(UID, UID, LATER) == first
    attributes = tree.attributes(HOME)
    assert attributes
    assert attributes.mtime == NOW
    tree.home(UID + 1, UID, LATER)
    attributes = tree.attributes(HOME)
    assert attributes
    assert attributes.mtime == LATER


def test_each_control_has_its_inode() -> None:
    tree = make()
    *rows, script = controls.CONTROLS["tool"]
    assert tree.lookup(at(tree, "tool/shell.d"), script.name) is None  # abi.md 3.2: of a tool in a home
    for row in rows:
        inode = at(tree, f"tool/shell.d/{row.name}")
        assert places.control_at("tool", inode) is row
    last = at(tree, f"tool/shell.d/{rows[-1].name}")
    assert places.control_at("tool", last + 2) is None
    assert places.control_at("tool", at(tree, "tool/shell.d")) is None
