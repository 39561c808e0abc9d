"""The attributes that tell an agent the kind of a file in the tree (abi.md 3.20)."""

from __future__ import annotations

import stat

from cortexfs.core.tree.metadata import PREFIX, xattrs
from cortexfs.core.tree.places import ROOT
from tests.core.tree.test_tree import at, make
from tests.tables import each_of


def shown(path: str) -> dict[str, str]:
    tree = make()
    inode = at(tree, path)
    attributes = tree.attributes(inode)
    assert attributes
    found = xattrs(inode, attributes, tree.owner_object(inode), path.rpartition("/")[2])
    return {key.removeprefix(PREFIX).decode(): value.decode() for key, value in found.items()}


@each_of(
    ("path", "kind", "name"),
    [
        ("tool/shell", "tool", "shell"),
        ("tool/shell.d", "folder", "shell"),
        ("tool/shell.d/name", "control", "name"),
        ("tool/shell.d/policy", "control", "policy"),
        ("tool", "folder", "tool"),
        ("status", "file", "status"),
    ],
)
def test_what_a_file_is(path: str, kind: str, name: str) -> None:
    found = shown(path)
    assert (found["kind"], found["name"]) == (kind, name)
    assert ("origin" in found) == (path in ("tool/shell", "tool/shell.d"))


def test_the_root_has_a_name_and_a_device_has_no_attributes() -> None:
    root = make().attributes(ROOT)
    assert root
    assert xattrs(ROOT, root, None, "")[PREFIX + b"name"] == b"/"
    assert xattrs(ROOT, root._replace(mode=stat.S_IFBLK), None, "") == {}
