"""What is left of a view beside what no agent may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.host import carving
from cortexfs.host.carving import NAMES, carved


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
    monkeypatch.setattr(carving, "MOST", 3)
    with pytest.raises(Fault) as caught:
        carved([(str(home), "rwx")], [(str(home / "mount"), "")])
    assert caught.value.code == "EACCES"
    assert "folder of its own" in caught.value.message
