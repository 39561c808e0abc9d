"""fs.list, fs.stat and fs.glob: the existing files, in order, on one line each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shell.tools.test_tools import as_nobody, call, standing

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("src/a.py", "src/deep/b.py", "src/deep/.hidden/c.py", "README.md", ".env", "src/a.pyc"):
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(name)
    (tmp_path / "src/loop").symlink_to("..")
    (tmp_path / "gone").symlink_to("nowhere")
    return tmp_path


def test_a_list_is_sorted_and_typed(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    assert call("fs.list", path=str(tree)).text == (
        "f\t9\tREADME.md\nl\t-\tgone -> nowhere\np\t-\tpipe\nd\t-\tsrc\n"
    )
    assert call("fs.list", path=str(tree), all=True).text.startswith("f\t4\t.env\nf\t9\tREADME.md\n")


def test_a_list_says_what_it_leaves_out(tree: Path) -> None:
    ran = call("fs.list", path=str(tree), all=True, max_entries=1)
    assert ran.text == "f\t4\t.env\n... 3 more; raise max_entries to see them\n"
    assert call("fs.list", path=str(tree), max_entries=0).code == "EINVAL"


def test_a_name_cannot_pretend_to_be_two(tmp_path: Path) -> None:
    for name in (b"two\nlines", b"\xff", "é".encode(), b"\x1b[31m"):
        (tmp_path / os.fsdecode(name)).touch()
    assert call("fs.list", path=str(tmp_path)).text == (
        "f\t0\t\\x1b[31m\nf\t0\ttwo\\nlines\nf\t0\té\nf\t0\t\\xff\n"
    )


@pytest.mark.parametrize("name", ["fs.list", "fs.glob", "fs.search"])
def test_a_directory_must_be_there(tmp_path: Path, name: str) -> None:
    more = {} if name == "fs.list" else {"pattern": "x"}
    assert call(name, path=str(tmp_path / "none"), **more).code == "ENOENT"


def test_a_file_is_no_list(tree: Path) -> None:
    assert call("fs.list", path=str(tree / ".env")).code == "ENOTDIR"


def test_stat_describes_a_file(tree: Path) -> None:
    path = tree / "README.md"
    path.chmod(0o640)
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    seen = json.loads(call("fs.stat", path=str(path)).text)
    assert seen["type"] == "file"
    assert seen["size"] == 9
    assert seen["mode"] == "0640"
    assert seen["modified"] == "2023-11-14T22:13:20.123456789Z"
    assert (seen["uid"], seen["gid"]) == (os.getuid(), os.getgid())
    assert "target" not in seen


def test_stat_follows_a_link_unless_told_not_to(tree: Path) -> None:
    loop = str(tree / "src/loop")
    assert json.loads(call("fs.stat", path=loop).text)["type"] == "directory"
    link = json.loads(call("fs.stat", path=loop, follow=False).text)
    assert (link["type"], link["target"]) == ("link", "..")
    assert call("fs.stat", path=str(tree / "gone")).code == "ENOENT"
    assert json.loads(call("fs.stat", path=str(tree / "gone"), follow=False).text)["target"] == "nowhere"


def test_stat_names_nobody_for_an_unknown_owner(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    (tmp_path / "x").touch()
    os.chown(tmp_path / "x", 3_999_999_999, 3_999_999_998)
    seen = json.loads(call("fs.stat", path=str(tmp_path / "x")).text)
    assert (seen["owner"], seen["group"], seen["uid"]) == (None, None, 3_999_999_999)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.md", ["README.md"]),
        ("**/*.py", ["src/a.py", "src/deep/b.py"]),
        ("src/**/*.py", ["src/a.py", "src/deep/b.py"]),
        ("src/**", ["src/a.py", "src/a.pyc", "src/deep/", "src/deep/b.py", "src/loop/"]),
        ("**/", ["src/", "src/deep/", "src/loop/"]),
        ("*", ["README.md", "gone", "src/"]),
        (".*", [".env"]),
        ("**/.hidden/*", ["src/deep/.hidden/c.py"]),
        ("src/loop/*.md", ["src/loop/README.md"]),
        ("src/l*/R*", ["src/loop/README.md"]),
        ("./src/a.p?", ["src/a.py"]),
        ("src/[!a]*/", ["src/deep/", "src/loop/"]),
        ("**/**/b.py", ["src/deep/b.py"]),
        ("nothing*", []),
    ],
)
def test_glob_finds(tree: Path, pattern: str, found: list[str]) -> None:
    assert standing(tree, lambda: call("fs.glob", pattern=pattern)).text.splitlines() == found


def test_glob_paths_can_be_used_as_they_are(tree: Path) -> None:
    assert call("fs.glob", pattern="*.md", path=str(tree)).text == f"{tree}/README.md\n"
    assert call("fs.glob", pattern=f"{tree}/s*/a.py").text == f"{tree}/src/a.py\n"
    assert standing(tree / "src", lambda: call("fs.glob", pattern="../*.md").text) == "../README.md\n"


def test_glob_takes_dots_when_asked(tree: Path) -> None:
    ran = standing(tree, lambda: call("fs.glob", pattern="**/*.py", all=True))
    assert ran.text == "src/a.py\nsrc/deep/.hidden/c.py\nsrc/deep/b.py\n"


def test_glob_says_that_there_is_more(tree: Path) -> None:
    ran = standing(tree, lambda: call("fs.glob", pattern="*", max_results=1))
    assert ran.text.splitlines()[0] == "README.md"
    assert ran.text.splitlines()[1].startswith("... there are more than 1;")
    assert "..." not in standing(tree, lambda: call("fs.glob", pattern="*", max_results=3)).text


@pytest.mark.parametrize("pattern", ["", "/", ".", "*/../x", "a\0b"])
def test_a_pattern_that_names_nothing_is_refused(pattern: str) -> None:
    assert call("fs.glob", pattern=pattern).code == "EINVAL"


@given(st.lists(st.sampled_from(["**", "*", "a", "b*"]), min_size=1, max_size=5))
def test_glob_finds_each_path_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    top = tmp_path_factory.getbasetemp() / "globbed"
    (top / "a/a/b").mkdir(parents=True, exist_ok=True)
    (top / "a/bb/a").mkdir(parents=True, exist_ok=True)
    found = call("fs.glob", pattern="/".join(parts), path=str(top)).text.splitlines()
    names = [line.rstrip("/").split("/") for line in found]
    assert names == sorted(names)
    assert len(set(found)) == len(found)
    plain = [*parts, "*"] if parts[-1] == "**" else parts
    assert {"/".join(name) for name in names} == {str(path) for path in top.glob("/".join(plain))}


@NEEDS_ROOT
def test_what_cannot_be_read_is_told_and_does_not_stop_the_rest(tree: Path) -> None:
    # abi.md 4.35
    tree.chmod(0o755)
    (tree / "src/deep").chmod(0o700)
    assert as_nobody(tree, lambda: call("fs.glob", pattern="**/*.py").text) == "src/a.py\n"
    assert (
        as_nobody(tree, lambda: call("fs.search", pattern="a.py").text)
        == "src/a.py:1:src/a.py\nsrc/a.pyc:1:src/a.pyc\n"
    )
    assert as_nobody(tree, lambda: call("fs.list", path="src/deep").code) == "EACCES"
