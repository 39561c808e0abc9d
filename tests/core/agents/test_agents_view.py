"""Views: the paths that an agent may open by its mount table, and the part that its own agents inherit."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.agents.view import HOME, SECRETS, SYSTEM, View, allowed, caps, hides, home_of, view, within
from cortexfs.core.errors import Fault
from cortexfs.core.value_formats import HIDES
from tests.tables import each_of

DEFAULT = view("", "/srv/project", root="/ctx", home="", writable=False)

NAMES = st.sampled_from(["a", "b", "a.b", "c"])
PATHS = st.lists(NAMES, max_size=4).map(lambda names: "/" + "/".join(names))
ENTRIES = st.tuples(PATHS, st.sampled_from(["r", "w", "x", "rw", "rx", "wx", "rwx"]))
VIEWS: st.SearchStrategy[View] = st.lists(ENTRIES, max_size=8).map(tuple)


def test_the_default_shows_the_working_directory_and_the_systems_programs() -> None:
    # "The default table shows the caller's cwd, writable only if the agent has a writing tool, and the
    # system's programs read-only"
    assert allowed(DEFAULT, "/srv/project/README.md") == "rx"
    assert allowed(view("", "/srv/project", root="/ctx", home="", writable=True), "/srv/project/x") == "rwx"
    assert allowed(DEFAULT, "/usr/bin/git") == "rx"
    assert allowed(DEFAULT, "/ctx/tool/fs.read") == "rx"
    assert not [path for path, letters in SYSTEM.items() if "w" in letters and not path.startswith("/dev/")]


@each_of("path", ["/", "/srv", "/srv/other", "/srv/projects", "/home", "/root", "/tmp", "/dev/tty"])
def test_the_default_shows_nothing_else(path: str) -> None:
    # "read and write where the table says, nothing else"
    assert allowed(DEFAULT, path) == ""
    assert allowed(DEFAULT, f"/srv/project/../..{path}") == ""


@each_of("cwd", ["/", "//", "/.", "", "work", "/srv/../.."])
def test_a_place_that_nobody_chose_opens_nothing(cwd: str) -> None:
    # abi.md 5.22
    assert view("", cwd, root="/ctx", home="", writable=True) == view(
        "", "/", root="/ctx", home="", writable=False
    )
    assert allowed(view("", cwd, root="/ctx", home="", writable=True), "/root/.ssh") == ""


def test_a_table_is_exactly_its_lines() -> None:
    table = "/srv\t/srv\tro\t-\n/srv/out\t/srv/out\trw\tnosuid\n/data\t/data\tro\tbind,noexec\n"
    shown = view(table, "/home/alice", root="/ctx", home="", writable=True)
    assert shown == (("/data", "r"), ("/srv", "rx"), ("/srv/out", "rwx"))


def test_a_table_that_cannot_be_held_is_refused() -> None:
    with pytest.raises(Fault, match="the same"):
        view("/a\t/b\trw\t-\n", "/", root="/ctx", home="", writable=False)


def test_a_view_within_another_keeps_what_both_show() -> None:
    parent = (("/srv", "rx"), ("/srv/out", "rwx"), ("/usr", "rx"))
    child = (("/srv", "rwx"), ("/usr", "r"), ("/home", "rwx"))
    assert within(child, parent) == (("/srv", "rx"), ("/srv/out", "rwx"), ("/usr", "r"))


@given(VIEWS, VIEWS, st.lists(PATHS, max_size=8))
def test_nothing_within_exceeds_either(child: View, parent: View, more: list[str]) -> None:
    # Of the originals: "Attenuation: policy, groups, mounts ⊆ parent; ... hidden→visible never"
    both = within(child, parent)
    paths = {path for path, _ in (*child, *parent)}
    for path in (*paths, *more, *(f"{path.rstrip('/')}/deeper" for path in paths)):
        common = set(allowed(child, path)) & set(allowed(parent, path))
        assert set(allowed(both, path)) == common, path


HOLES = st.lists(PATHS.map(lambda path: (f"{path}/", HIDES)), max_size=2)
HIDING = st.tuples(VIEWS, HOLES).map(lambda both: (*both[0], *both[1]))


@given(HIDING, HIDING, st.lists(st.sampled_from(["/.x", "/a/.x", "/a/b/.x/y", "/a/.x/.y"]), max_size=4))
def test_what_either_hides_both_hide(child: View, parent: View, more: list[str]) -> None:
    # Of the originals: "hidden→visible never": an entry for a path that the other table hides opens nothing
    child = (*child, *((path, "rwx") for path in more[:2]))
    both = within(child, parent)
    for path in (*more, "/a/.x/z", "/.x"):
        assert set(allowed(both, path)) <= set(allowed(child, path)) & set(allowed(parent, path)), path


@given(VIEWS, VIEWS)
def test_within_is_one_view_again(child: View, parent: View) -> None:
    both = within(child, parent)
    assert within(both, parent) == within(parent, both) == within(both, both)
    assert all(letters for _, letters in both)


@given(VIEWS, PATHS)
def test_what_lies_below_has_at_least_what_is_above(some: View, path: str) -> None:
    # landlock(7): a rule grants access to a whole hierarchy, so a narrower one below it would not be held
    assert set(allowed(some, path)) <= set(allowed(some, f"{path.rstrip('/')}/a"))


@each_of("mounts", ["", "/usr\t/usr\tro\t-\n"])
def test_a_place_whose_name_is_no_text(mounts: str) -> None:
    # abi.md 5.22: "The name of an agent's directory is UTF-8"; hosts and models are told it as text
    with pytest.raises(Fault) as raised:
        view(mounts, os.fsdecode(b"/srv/\xff"), root="/ctx", home="", writable=False)
    assert raised.value.code == "EINVAL"
    assert "/srv/\\udcff" in raised.value.message


# A home directory.

ALICE = "/home/alice"


def at(cwd: str, home: str = ALICE) -> View:
    return view("", cwd, root="/ctx", home=home, writable=True)


@each_of("cwd", [ALICE, "/home", "/home/alice/"])
@each_of("name", [".ssh", ".ssh/id_rsa", ".bashrc", ".config/gh", ".cargo", ".local/share", ".x"])
def test_hidden_files_of_the_home_directory_are_left_out(cwd: str, name: str) -> None:
    # the issue: "the default view leaves out hidden files and folders of the home directory"
    assert allowed(at(cwd), f"{ALICE}/{name}") == ""
    assert hides(at(cwd), f"{ALICE}/{name}")
    assert allowed(at(cwd), f"{ALICE}/project/.git/config") == "rwx"  # hidden elsewhere
    assert not hides(at(cwd), f"{ALICE}/project/.git/config")


def test_what_programs_need_is_read_and_never_written() -> None:
    # the issue: "Readable and never writable: .gitconfig, .config/git (without credentials), .cargo/bin,
    # .rustup, .local/bin; never .ssh, .netrc, .git-credentials, .cargo/credentials*"
    assert set(HOME) == {".gitconfig", ".config/git", ".cargo/bin", ".rustup", ".local/bin"}
    never = {".ssh", ".netrc", ".git-credentials", ".cargo/credentials*", ".config/git/credentials"}
    assert never <= set(SECRETS)
    for cwd in (ALICE, f"{ALICE}/project", "/srv", "/"):
        assert {name: allowed(at(cwd), f"{ALICE}/{name}") for name in HOME} == dict(HOME)
    most = dict(caps("", ALICE))
    assert {name: most[f"{ALICE}/{name}"] for name in (*HOME, *never)} == {**HOME, **dict.fromkeys(never, "")}
    assert not ["w" for letters in most.values() if "w" in letters]


def test_a_hidden_folder_that_was_chosen_is_shown() -> None:
    assert allowed(at(f"{ALICE}/.dotfiles/x"), f"{ALICE}/.dotfiles/x/.vimrc") == "rwx"
    assert allowed(at(f"{ALICE}/.dotfiles/x"), f"{ALICE}/.dotfiles/y") == ""


def test_a_table_is_taken_as_it_is_written_in_a_home_directory_too() -> None:
    table = f"{ALICE}\t{ALICE}\trw\t-\n"
    shown = view(table, ALICE, root="/ctx", home=ALICE, writable=False)
    assert (shown, caps(table, ALICE)) == (((ALICE, "rwx"),), ())


@each_of("path", ["", "/", "//", "home", "/home/../etc", "/home/\udcff"])
def test_what_is_no_home_directory(path: str) -> None:
    # passwd(5): services have "/", or none at all
    assert home_of(path) == ""
    assert not [letters for _, letters in at("/srv", home_of(path)) if letters == HIDES]
    assert caps("", home_of(path)) == ()
