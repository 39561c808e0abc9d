"""Views: what an agent's tools may open, from its mount table, and what of it an agent that it starts has."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.agents.view import SYSTEM, View, allowed, view, within
from cortexfs.core.errors import Fault

DEFAULT = view("", "/srv/project", root="/ctx", writable=False)

NAMES = st.sampled_from(["a", "b", "a.b", "c"])
PATHS = st.lists(NAMES, max_size=4).map(lambda names: "/" + "/".join(names))
ENTRIES = st.tuples(PATHS, st.sampled_from(["r", "w", "x", "rw", "rx", "wx", "rwx"]))
VIEWS: st.SearchStrategy[View] = st.lists(ENTRIES, max_size=8).map(tuple)


def test_the_default_shows_the_working_directory_and_the_systems_programs() -> None:
    # "The default table shows the caller's cwd, writable only if the agent has a writing tool, and the
    # system's programs read-only"
    assert allowed(DEFAULT, "/srv/project/README.md") == "rx"
    assert allowed(view("", "/srv/project", root="/ctx", writable=True), "/srv/project/x") == "rwx"
    assert allowed(DEFAULT, "/usr/bin/git") == "rx"
    assert allowed(DEFAULT, "/ctx/tool/fs.read") == "rx"
    assert not [path for path, letters in SYSTEM.items() if "w" in letters and not path.startswith("/dev/")]


@pytest.mark.parametrize(
    "path", ["/", "/srv", "/srv/other", "/srv/projects", "/home", "/root", "/tmp", "/dev/tty"]
)
def test_the_default_shows_nothing_else(path: str) -> None:
    # "read and write where the table says, nothing else"
    assert allowed(DEFAULT, path) == ""
    assert allowed(DEFAULT, f"/srv/project/../..{path}") == ""


@pytest.mark.parametrize("cwd", ["/", "//", "/.", "", "work", "/srv/../.."])
def test_a_place_that_nobody_chose_opens_nothing(cwd: str) -> None:
    # abi.md 5: "cwd: ... default the session's, else .d/cwd, else /"
    assert view("", cwd, root="/ctx", writable=True) == view("", "/", root="/ctx", writable=False)
    assert allowed(view("", cwd, root="/ctx", writable=True), "/root/.ssh") == ""


def test_a_table_is_exactly_its_lines() -> None:
    table = "/srv\t/srv\tro\t-\n/srv/out\t/srv/out\trw\tnosuid\n/data\t/data\tro\tbind,noexec\n"
    shown = view(table, "/home/alice", root="/ctx", writable=True)
    assert shown == (("/data", "r"), ("/srv", "rx"), ("/srv/out", "rwx"))


def test_a_table_that_cannot_be_held_is_refused() -> None:
    with pytest.raises(Fault, match="the same"):
        view("/a\t/b\trw\t-\n", "/", root="/ctx", writable=False)


def test_a_view_within_another_keeps_what_both_show() -> None:
    parent = (("/srv", "rx"), ("/srv/out", "rwx"), ("/usr", "rx"))
    child = (("/srv", "rwx"), ("/usr", "r"), ("/home", "rwx"))
    assert within(child, parent) == (("/srv", "rx"), ("/srv/out", "rwx"), ("/usr", "r"))


@given(VIEWS, VIEWS, st.lists(PATHS, max_size=8))
def test_nothing_within_exceeds_either(child: View, parent: View, more: list[str]) -> None:
    # upstream 9.1: "Attenuation: policy, groups, mounts ⊆ parent; ... hidden→visible never"
    both = within(child, parent)
    paths = {path for path, _ in (*child, *parent)}
    for path in (*paths, *more, *(f"{path.rstrip('/')}/deeper" for path in paths)):
        common = set(allowed(child, path)) & set(allowed(parent, path))
        assert set(allowed(both, path)) == common, path


@given(VIEWS, VIEWS)
def test_within_is_one_view_again(child: View, parent: View) -> None:
    both = within(child, parent)
    assert within(both, parent) == within(parent, both) == within(both, both)
    assert all(letters for _, letters in both)


@given(VIEWS, PATHS)
def test_what_lies_below_has_at_least_what_is_above(some: View, path: str) -> None:
    # landlock(7): a rule grants access to a whole hierarchy, so a narrower one below it would not be held
    assert set(allowed(some, path)) <= set(allowed(some, f"{path.rstrip('/')}/a"))


@pytest.mark.parametrize("mounts", ["", "/usr\t/usr\tro\t-\n"])
def test_a_place_whose_name_is_no_text(mounts: str) -> None:
    # docs/agents.md: "The name of a working directory must be UTF-8"; hosts and models are told it as text
    with pytest.raises(Fault) as raised:
        view(mounts, os.fsdecode(b"/srv/\xff"), root="/ctx", writable=False)
    assert raised.value.code == "EINVAL"
    assert "/srv/\\udcff" in raised.value.message
