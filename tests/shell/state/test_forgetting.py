"""The data that users keep with a plugin is removed with the plugin, whatever it looks like."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.state.directories import forget_kept, keeping, kept_of


def test_a_deep_tree_is_removed_too_and_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("outside")
    own = Path(keeping(tmp_path / "state", "p")) / "1000"
    own.mkdir()
    above = os.open(own, os.O_RDONLY)
    for level in range(3000):  # rmtree goes a thousand deep, or has so many files open
        if not level % 500:
            os.symlink(tmp_path / "outside", "link", dir_fd=above)
            os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=above))
        os.mkdir("a-level-of-a-deep-tree", dir_fd=above)
        below = os.open("a-level-of-a-deep-tree", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)
    try:
        forget_kept(tmp_path / "state", "p")
        assert not list(kept_of(tmp_path / "state").iterdir())
        assert (tmp_path / "outside/file").read_text() == "outside"
    finally:
        subprocess.run(["rm", "-rf", str(kept_of(tmp_path / "state"))], check=True)


def test_a_link_in_the_place_of_it_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("outside")
    place = Path(keeping(tmp_path / "state", "p"))
    place.rmdir()
    place.symlink_to(tmp_path / "outside")
    with pytest.raises(Fault, match="cannot be removed"):
        forget_kept(tmp_path / "state", "p")
    assert (tmp_path / "outside/file").read_text() == "outside"
