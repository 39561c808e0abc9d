"""fs.search: hits as grep would show them, in the files that git would show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.sdk import MemoryRuntime
from cortexfs.tools import fs_search
from tests.shell.tools.test_tools import call, standing

IGNORING = {
    ".gitignore": "*.log\n/build\n!keep.log\nsub/only\n\n# a comment\nspaced\\ \n",
    "a.txt": "",
    "a.log": "",
    "keep.log": "",
    "build/x.txt": "",
    "sub/build/x.txt": "",
    "sub/.gitignore": "!b.log\nlocal/\n*.tmp\n",
    "sub/b.log": "",
    "sub/c.log": "",
    "sub/only/x.txt": "",
    "sub/local/x.txt": "",
    "sub/deep/local": "",
    "sub/deep/x.tmp": "",
    "sub/deep/.gitignore": "!*.tmp\n",
    ".hidden/x.txt": "",
}


def fill(top: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text + "needle\n")
    return top


def files_of(text: str) -> list[str]:
    return [line.split(":")[0] for line in text.splitlines()]


def test_hits_name_path_line_and_text(tmp_path: Path) -> None:
    fill(tmp_path, {"b/c.txt": "one\r\ntwo needle 2\n", "a.txt": ""})
    assert call("fs.search", pattern=r"needle( \d)?$", path=str(tmp_path)).text == (
        f"{tmp_path}/a.txt:1:needle\n{tmp_path}/b/c.txt:2:two needle 2\n{tmp_path}/b/c.txt:3:needle\n"
    )
    assert standing(tmp_path, lambda: call("fs.search", pattern="^two").text) == "b/c.txt:2:two needle 2\n"
    one = str(tmp_path / "a.txt")
    assert call("fs.search", pattern="NEEDLE", path=one, ignore_case=True).text == f"{one}:1:needle\n"
    assert call("fs.search", pattern="none", path=one).text == ""


def test_context_comes_in_groups(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1\n2\nhit\n4\nhit\n6\n7\n8\n9\nhit\n")
    ran = standing(tmp_path, lambda: call("fs.search", pattern="hit", context=1))
    assert ran.text == "f-2-2\nf:3:hit\nf-4-4\nf:5:hit\nf-6-6\n--\nf-9-9\nf:10:hit\n"


@given(st.lists(st.sampled_from(["", "a", "ab", "é a", "\r"]), max_size=12), st.integers(1, 8))
def test_lines_are_numbered_wherever_a_block_ends(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "numbered"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs_search, "BLOCK", max(block, 8))  # no line is longer
        for pattern in ("a", "[a]"):
            found = call("fs.search", pattern=pattern, path=str(path)).text
            wanted = [f"{path}:{n}:{line}" for n, line in enumerate(lines, 1) if "a" in line]
            assert found.splitlines() == wanted


def test_ignored_files_are_left_out_as_git_leaves_them_out(tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("git is the judge")
    fill(tmp_path, IGNORING)
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, env=environment, check=True)
    told = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=tmp_path,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
    )
    listed = set(told.stdout.decode().strip("\0").split("\0"))
    found = files_of(standing(tmp_path, lambda: call("fs.search", pattern="^needle$").text))
    assert set(found) == listed
    # and the same from below, where the files above still count
    below = files_of(standing(tmp_path / "sub", lambda: call("fs.search", pattern="^needle$").text))
    assert {f"sub/{name}" for name in below} == {name for name in listed if name.startswith("sub/")}


def test_all_takes_ignored_files_but_never_git_itself(tmp_path: Path) -> None:
    fill(tmp_path, {**IGNORING, ".git/config": "", "sub/deep/.git": ""})
    ran = standing(tmp_path, lambda: call("fs.search", pattern="^needle$", all=True))
    assert set(files_of(ran.text)) == set(IGNORING)


def test_an_ignored_directory_that_is_named_is_searched(tmp_path: Path) -> None:
    fill(tmp_path, {**IGNORING, ".git/config": ""})
    ran = standing(tmp_path, lambda: call("fs.search", pattern="needle", path="build"))
    assert ran.text == "build/x.txt:1:needle\n"


def test_a_line_that_is_no_pattern_ignores_nothing(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt": "", "b.log": ""})
    (tmp_path / ".gitignore").write_text("!\n*.log\n/\n")
    assert files_of(standing(tmp_path, lambda: call("fs.search", pattern="needle").text)) == ["a.txt"]


def test_binaries_links_and_pipes_are_left_alone(tmp_path: Path) -> None:
    fill(tmp_path, {"text": "", "binary": "a\0b"})
    (tmp_path / "link").symlink_to("text")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    assert files_of(standing(tmp_path, lambda: call("fs.search", pattern="needle").text)) == ["text"]


def test_text_that_is_not_utf8_is_still_searched(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"caf\xe9 needle\n")
    assert standing(tmp_path, lambda: call("fs.search", pattern="needle").text) == "x:1:caf\ufffd needle\n"


def test_glob_narrows(tmp_path: Path) -> None:
    fill(tmp_path, {"a.py": "", "a.txt": "", "sub/b.py": ""})
    for glob, wanted in (("*.py", ["a.py", "sub/b.py"]), ("sub/*", ["sub/b.py"]), ("/*.py", ["a.py"])):
        ran = standing(tmp_path, lambda glob=glob: call("fs.search", pattern="needle", glob=glob))  # type: ignore[misc]
        assert files_of(ran.text) == wanted


def test_long_lines_are_cut_around_the_match(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a" * 5000 + "needle" + "b" * 5000)
    text = standing(tmp_path, lambda: call("fs.search", pattern="needle").text)
    assert re.fullmatch(r"x:1:…a{100}needleb{394}…\n", text)


def test_a_line_without_end_is_searched_in_bounded_pieces(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs_search, "BLOCK", 64)
        (tmp_path / "x").write_text("a" * 1000 + "needle\nlast needle\n")
        found = standing(tmp_path, lambda: call("fs.search", pattern="needle").text)
    assert [line[:4] for line in found.splitlines()][-1] == "x:2:"
    assert max(map(len, found.splitlines())) <= 2 * 64 + 8


def test_more_hits_than_wanted_are_said(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hit\n" * 3)
    text = standing(tmp_path, lambda: call("fs.search", pattern="hit", max_results=2).text)
    assert text.splitlines()[:2] == ["x:1:hit", "x:2:hit"]
    assert text.splitlines()[2].startswith("... there are more than 2 hits")
    assert "..." not in standing(tmp_path, lambda: call("fs.search", pattern="hit", max_results=3).text)


@pytest.mark.parametrize(
    "wrong", [{"pattern": "("}, {"pattern": "x", "context": -1}, {"pattern": "x", "glob": ""}]
)
def test_what_is_no_search_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    assert call("fs.search", path=str(tmp_path), **wrong).code == "EINVAL"


def test_a_cancelled_search_stops(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "", "b": ""})

    class Leaving(MemoryRuntime):
        def emit(self, text: str) -> None:
            super().emit(text)
            self.cancel()

    runtime = Leaving()
    assert call("fs.search", runtime, pattern="needle", path=str(tmp_path)).code == "ECANCELED"
    assert len(runtime.emitted) == 1
