"""fs.search and fs.glob in trees that change meanwhile, and in trees of many levels."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cortexfs.sdk import MemoryRuntime
from cortexfs.tools import fs_glob, fs_search
from cortexfs.tools.support import walk
from cortexfs.tools.support.paths import sorted_entries
from tests.shell.tools.test_tools import Ran, call, standing

OUTSIDE = "outside"
CALLS: list[dict[str, Any]] = [
    {"name": "fs.search", "pattern": "needle"},
    {"name": "fs.glob", "pattern": "**/*.txt"},
    {"name": "fs.glob", "pattern": "d*/*.txt"},
]
each_call = pytest.mark.parametrize("asked", CALLS, ids=lambda asked: f"{asked['name']} {asked['pattern']}")


def made(top: Path, *names: str) -> Path:
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("needle\n")
    return top


def ran_in(top: Path, asked: dict[str, Any], runtime: MemoryRuntime | None = None) -> Ran:
    asked = dict(asked)
    return standing(top, lambda: call(asked.pop("name"), runtime, **asked))


def found(ran: Ran) -> list[str]:
    return [line.removesuffix(":1:needle") for line in ran.text.splitlines()]


@contextmanager
def between(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` after each listing of a directory, before its entries are used."""
    count = 0

    def listed(folder: int) -> list[os.DirEntry[str]]:
        nonlocal count
        entries = sorted_entries(folder)
        kinds = [entry.is_dir() for entry in entries]
        assert len(kinds) == len(entries)
        act(count)
        count += 1
        return entries

    with pytest.MonkeyPatch.context() as patch:
        for module in (fs_search, fs_glob):
            patch.setattr(module, "sorted_entries", listed)
        yield


def swapped(top: Path) -> None:
    """Put a link in the place of a directory, as another user could."""
    (top / "d").rename(top.parent / "away")
    (top / "d").symlink_to(top.parent / OUTSIDE)


@each_call
def test_a_link_that_takes_a_directorys_place_before_it_is_read_is_not_followed(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    made(tmp_path / OUTSIDE, "secret.txt")
    top = made(tmp_path / "top", "d/a.txt", "d/secret.txt", "e.txt", "dd/f.txt")
    runtime = MemoryRuntime("tool")
    with between(lambda listing: swapped(top) if not listing else None):
        ran = ran_in(top, asked, runtime)
    assert found(ran) == (["dd/f.txt"] if asked["pattern"] == "d*/*.txt" else ["dd/f.txt", "e.txt"])
    assert [told.partition(" ")[0] for told in runtime.progress] == ["1"]


@each_call
def test_a_link_that_takes_a_directorys_place_while_it_is_read_is_not_followed(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    made(tmp_path / OUTSIDE, "b/secret.txt", "secret.txt")
    (tmp_path / OUTSIDE / "a.txt").write_text("secret needle\n")
    top = made(tmp_path / "top", "d/a.txt", "d/b/c.txt")
    with between(lambda listing: swapped(top) if listing == 1 else None):
        ran = ran_in(top, asked)
    assert found(ran) == (["d/a.txt"] if asked["pattern"] == "d*/*.txt" else ["d/a.txt", "d/b/c.txt"])


@pytest.mark.parametrize("asked", CALLS[:2], ids=lambda asked: asked["name"])
def test_a_directory_that_is_moved_leads_nowhere_else(tmp_path: Path, asked: dict[str, Any]) -> None:
    levels = walk.HELD + 4
    place = "/".join(["d"] * levels)
    other = made(tmp_path / OUTSIDE, *(f"{'d/' * level}z.txt" for level in range(levels)))
    (other / "z.txt").write_text("secret needle\n")
    top = made(tmp_path / "top", f"{place}/a.txt", *(f"{'d/' * level}z.txt" for level in range(levels)))

    def moved(listing: int) -> None:
        if listing == levels:  # the second level, which is not open any more, loses its contents
            (top / "d/d/d").rename(other / "moved")

    runtime = MemoryRuntime("tool")
    with between(moved):
        ran = ran_in(top, asked, runtime)
    kept = [f"{'d/' * level}z.txt" for level in range(levels - 1, 2, -1)]
    assert found(ran) == [f"{place}/a.txt", *kept, "z.txt"]
    assert [told.partition(" ")[0] for told in runtime.progress] == ["2"]


def test_glob_comes_back_through_links(tmp_path: Path) -> None:
    levels = "/".join("abcdefghijkl")
    made(tmp_path / OUTSIDE, f"{levels}/x.txt")
    top = made(tmp_path / "top", f"p/z/{levels}/x.txt")
    (top / "p/d").symlink_to(tmp_path / OUTSIDE)
    ran = ran_in(top, {"name": "fs.glob", "pattern": "*/" * 14 + "*.txt"})
    assert found(ran) == [f"p/d/{levels}/x.txt", f"p/z/{levels}/x.txt"]


def test_glob_goes_through_as_many_links_as_the_kernel_does(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(".")
    made(tmp_path, "x.txt")
    for links, wanted in ((40, [f"{'loop/' * 40}x.txt"]), (41, [])):
        ran = ran_in(tmp_path, {"name": "fs.glob", "pattern": "l*/" * links + "*.txt"})
        assert found(ran) == wanted


LEVELS = 3000
NAME = "a-level-of-a-deep-tree"


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A tree deeper than the longest path, with files that come after the deep folders."""
    above = os.open(tmp_path, os.O_RDONLY)
    for level in range(LEVELS):
        if not level % 1000 or level == LEVELS - 1:
            with open(os.open("z.txt", os.O_WRONLY | os.O_CREAT, dir_fd=above), "w") as file:
                file.write("needle\n")
        os.mkdir(NAME, dir_fd=above)
        below = os.open(NAME, os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)
    yield tmp_path
    subprocess.run(["rm", "-rf", str(tmp_path / NAME)], check=True)  # Python's rmtree cannot remove it


@pytest.mark.parametrize("asked", CALLS[:2], ids=lambda asked: asked["name"])
def test_a_deep_tree_is_walked_with_few_descriptors(deep: Path, asked: dict[str, Any]) -> None:
    runtime = MemoryRuntime("tool")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        ran = ran_in(deep, asked, runtime)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    wanted = [f"{NAME}/" * level + "z.txt" for level in (LEVELS - 1, 2000, 1000, 0)]
    assert (found(ran), runtime.progress) == (wanted, [])


class Cancelled(BaseException):
    """Raised as a host raises a cancellation in a tool's thread."""


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # dropped files close themselves
@pytest.mark.parametrize("asked", CALLS[:2], ids=lambda asked: asked["name"])
def test_a_cancellation_at_any_instruction_leaves_no_descriptor(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    top = made(tmp_path, *(f"{'d/' * level}z.txt" for level in range(walk.HELD + 3)))
    left, step = 0, 0

    def traced(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if not left:
                raise Cancelled
        return traced if frame.f_code.co_filename in (walk.__file__, module.__file__) else None

    module = fs_search if asked["name"] == "fs.search" else fs_glob
    before, is_done = os.listdir("/proc/self/fd"), False
    while not is_done:
        step += 11
        left = step
        sys.settrace(traced)
        try:
            is_done = call(asked["name"], pattern=asked["pattern"], path=str(top)).code == ""
        except Cancelled:
            pass
        finally:
            sys.settrace(None)
        assert os.listdir("/proc/self/fd") == before
