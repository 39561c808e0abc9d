"""The part of a view that remains without the files that no agent may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.value_formats import HIDES
from cortexfs.host.confine import hidden_paths
from cortexfs.host.confine.hidden_paths import carved
from cortexfs.linux.landlock import NAMES


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("project/src", ".local/state/own/secrets", ".local/share", "mount"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "link").symlink_to(".local/state/own")
    return tmp_path


def test_a_view_without_caps_stays_as_it_is(home: Path) -> None:
    assert carved([(str(home), "rwx"), ("/usr", "rx")], [("/not/in/it", "")]) == [
        (str(home), "rwx"),
        ("/usr", "rx"),
    ]


def test_a_folder_around_a_cap_shows_what_else_is_in_it(home: Path) -> None:
    caps = [(str(home / ".local/state/own"), ""), (str(home / "mount"), "rx")]
    assert sorted(carved([(str(home), "rwx")], caps)) == sorted(
        [
            (str(home), NAMES),
            (str(home / "project"), "rwx"),
            (str(home / "notes.txt"), "rwx"),
            (str(home / "mount"), "rx"),
            (str(home / ".local"), NAMES),
            (str(home / ".local/share"), "rwx"),
            (str(home / ".local/state"), NAMES),
        ]
    )


@pytest.mark.parametrize("path", ["link", ".local/state/own", ".local/state/own/secrets", "project/../link"])
def test_no_way_leads_into_a_cap(home: Path, path: str) -> None:
    assert carved([(str(home / path), "rwx")], [(str(home / ".local/state/own"), "")]) == []
    assert carved([(str(home / path), "rwx")], [(str(home / "link"), "")]) == []


def test_a_cap_that_takes_nothing_from_an_entry(home: Path) -> None:
    assert carved([(str(home), "r")], [(str(home / "mount"), "rx")]) == [(str(home), "r")]


def test_too_much_beside_a_cap(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_paths, "MOST", 3)
    with pytest.raises(Fault) as caught:
        carved([(str(home), "rwx")], [(str(home / "mount"), "")])
    assert caught.value.code == "EACCES"
    assert "folder of its own" in caught.value.message


# Views that hide names.


@pytest.fixture
def alice(tmp_path: Path) -> Path:
    """A home directory of a user who keeps settings in a repository."""
    home = tmp_path / "alice"
    for name in (".ssh", ".config/git", ".cargo/bin", "project", "dotfiles"):
        (home / name).mkdir(parents=True)
    for name in (".netrc", ".cargo/credentials.toml", "notes", "dotfiles/bashrc", "dotfiles/vimrc"):
        (home / name).touch()
    (home / ".bashrc").symlink_to("dotfiles/bashrc")
    (home / ".self").symlink_to(".")
    (home / ".gone").symlink_to("nowhere")
    return home


def shown(home: Path, *view: tuple[str, str], caps: tuple[tuple[str, str], ...] = ()) -> set[tuple[str, str]]:
    """Returns the shown entries below the home directory."""
    found = carved([(f"{home}/", HIDES), *((str(home / path), how) for path, how in view)], caps)
    return {(path.removeprefix(f"{home}/"), letters) for path, letters in found}


@pytest.mark.parametrize("above", [".", ".."])
def test_a_folder_that_hides_names_is_shown_by_the_others(alice: Path, above: str) -> None:
    found = shown(alice, (above, "rwx"))
    # no file is created in it, and the target of a hidden link cannot be written by its other name
    assert (str(alice), NAMES) in found
    names = {entry for entry in found if not entry[0].startswith("/")}
    assert names == {("project", "rwx"), ("notes", "rwx"), ("dotfiles", NAMES), ("dotfiles/vimrc", "rwx")}


def test_a_hidden_name_that_is_named_is_shown(alice: Path) -> None:
    assert shown(alice, (".cargo/bin", "rx")) == {(".cargo/bin", "rx")}
    assert shown(alice, ("dotfiles", "rwx")) == {("dotfiles", "rwx")}  # the user works in this folder
    assert (".cargo/bin", "rx") in shown(alice, (".", "rwx"), (".cargo/bin", "rx"))


def test_a_cap_of_all_names_that_begin_so(alice: Path) -> None:
    caps = ((f"{alice}/.cargo/credentials*", ""), (f"{alice}/.cargo/bin", "rx"))
    assert shown(alice, (".cargo", "rwx"), caps=caps) == {(".cargo", NAMES), (".cargo/bin", "rx")}
    assert shown(alice, (".cargo/credentials.toml", "rwx"), caps=caps) == set()
    (alice / ".cargo/credentials*").symlink_to(alice / "project")  # not the pattern's meaning
    assert shown(alice, (".cargo/credentials.toml", "rwx"), caps=caps) == set()


def test_a_home_directory_that_is_a_link(alice: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(alice)
    found = carved([(f"{tmp_path}/link/", HIDES), (f"{tmp_path}/link", "rwx")], [])
    assert (f"{alice}/project", "rwx") in found
    assert not [path for path, _ in found if "/." in path.removeprefix(str(alice))]
