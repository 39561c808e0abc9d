"""fs.search: hits as grep would show them, in the files that git would show."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.sdk import MemoryRuntime
from cortexfs.tools import fs_search
from cortexfs.tools.support import ripgrep
from cortexfs.tools.support.paths import sorted_entries
from cortexfs.tools.support.process_groups import Job
from tests.shell.tools.test_tools import Ran, call, standing

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
        patch.setattr(fs_search, "BLOCK", max(block, 8))  # no line is longer than 8
        patch.setattr(fs_search, "SNIFFED", 1)
        for pattern in ("a", "[a]"):
            found = call("fs.search", pattern=pattern, path=str(path)).text
            wanted = [f"{path}:{n}:{line}" for n, line in enumerate(lines, 1) if "a" in line]
            assert found.splitlines() == wanted


def test_ignored_files_are_left_out_as_git_leaves_them_out(tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("git is the judge")
    fill(tmp_path, IGNORING)
    (tmp_path / "sub/linked").mkdir()
    (tmp_path / "sub/linked/x.txt").write_text("needle\n")
    (tmp_path / "sub/linked/.gitignore").symlink_to(tmp_path / "all")
    (tmp_path / "all").write_text("*\nneedle\n")
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, env=environment, check=True)
    told = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=tmp_path,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
    )
    listed = set(told.stdout.decode().strip("\0").split("\0")) - {"sub/linked/.gitignore"}
    found = files_of(standing(tmp_path, lambda: call("fs.search", pattern="^needle$").text))
    assert set(found) == listed
    # the same from a folder below, where the ignore files above still count
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


NAMES = [f"{number:02}" for number in range(2 * fs_search.TOGETHER + 3)]


def test_files_that_change_after_they_are_listed_take_no_others_along(tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys(NAMES, ""))

    def listed(folder: int) -> list[os.DirEntry[str]]:
        entries = sorted_entries(folder)
        for name in ("00", "17", "18", "20"):
            (tmp_path / name).unlink()
        os.mkfifo(tmp_path / "18")
        (tmp_path / "20").symlink_to("19")
        return entries

    runtime = MemoryRuntime("fs.search")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs_search, "sorted_entries", listed)
        ran = standing(tmp_path, lambda: call("fs.search", runtime, pattern="needle"))
    assert files_of(ran.text) == [name for name in NAMES if name not in ("00", "17", "18", "20")]
    assert runtime.progress == ["4 files and directories could not be read"]


def test_a_file_that_cannot_be_read_takes_no_others_along(tmp_path: Path) -> None:
    fill(tmp_path, dict.fromkeys(NAMES, ""))
    read = os.read

    def failing(file: int, size: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{file}").endswith("/03"):
            raise OSError(errno.EIO, "the disk")
        return read(file, size)

    runtime = MemoryRuntime("fs.search")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", failing)
        ran = standing(tmp_path, lambda: call("fs.search", runtime, pattern="needle"))
    assert files_of(ran.text) == [name for name in NAMES if name != "03"]
    assert runtime.progress == ["1 files and directories could not be read"]


@pytest.mark.parametrize("more", [-14, -3, 0, 3])
def test_a_file_is_searched_whole_if_its_size_is_wrong_and_it_cannot_seek(tmp_path: Path, more: int) -> None:
    fill(tmp_path, dict.fromkeys(NAMES, "a line\n"))
    fstat = os.fstat

    def refused(*_: int) -> int:
        raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))

    def wrong(file: int) -> os.stat_result:
        there = fstat(file)
        return os.stat_result((*there[:6], there.st_size + more, *there[7:]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fstat", wrong)
        patch.setattr(os, "lseek", refused)
        ran = standing(tmp_path, lambda: call("fs.search", pattern="needle"))
    assert ran.text == "".join(f"{name}:2:needle\n" for name in NAMES)


def test_a_binary_file_is_known_by_its_first_bytes_though_they_come_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"needle\n\0")
    read = os.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", lambda file, size: read(file, min(size, 1)))
        patch.setattr(fs_search, "SMALL", 0)
        assert standing(tmp_path, lambda: call("fs.search", pattern="needle").text) == ""


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
        patch.setattr(fs_search, "SMALL", 64)
        patch.setattr(fs_search, "SNIFFED", 64)
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


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(a*)*b", "(?:a|a?)+b", ".*.*.*.*.*b$"])
@pytest.mark.parametrize("ignore_case", [False, True])
def test_no_pattern_takes_more_than_linear_time(tmp_path: Path, pattern: str, ignore_case: bool) -> None:
    # Python's re would take years for these patterns.
    (tmp_path / "x").write_text("a" * 100_000 + "!\n")
    found = standing(tmp_path, lambda: call("fs.search", pattern=pattern, ignore_case=ignore_case))
    assert found == Ran("")


def test_where_a_match_begins_is_found_in_linear_time(tmp_path: Path) -> None:
    # An engine that looks for all matches in a line needs quadratic time for this.
    (tmp_path / "x").write_text("é" * 200 + "A" * 300_000 + "\n")
    text = standing(tmp_path, lambda: call("fs.search", pattern="[A-Z].*[^A-Z]|[A-Z]").text)
    assert re.fullmatch(r"x:1:…é{100}A{400}…\n", text)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("a(?=b)", "a lookahead"),
        ("a(?!b)", "a negative lookahead"),
        ("(?!)", "a negative lookahead"),
        ("(?<=a)b", "a lookbehind"),
        ("(?<!a)b", "a negative lookbehind"),
        (r"(a)\1", "a backreference"),
        ("(?P<x>a)(?P=x)", "a backreference"),
        ("(a)?(?(1)b|c)", "a condition on a group"),
        ("(?>a+)b", "an atomic group"),
        ("a++b", "a possessive repetition"),
        (r"x(?:y(\bz(?=b))*|q)", "a lookahead"),
    ],
)
def test_what_takes_more_than_linear_time_is_refused_by_name(
    tmp_path: Path, pattern: str, named: str
) -> None:
    refused = call("fs.search", path=str(tmp_path), pattern=pattern)
    assert refused.code == "EINVAL"
    assert refused.message.startswith(f"invalid input: pattern: it has {named}, ")
    assert refused.message.endswith("write the pattern without it and choose among the hits")


@pytest.mark.parametrize("pattern", [r"\w{1000}x", "(?:" * 90 + "a{9}b" + "){9}" * 90, "[é-ž]" * 20000])
def test_a_pattern_over_the_limits_is_refused(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "x").write_text("a\n")
    for path in (tmp_path, tmp_path / "x"):  # also if there is nothing to search
        refused = call("fs.search", path=str(path), pattern=pattern)
        assert (refused.code, refused.message[:24]) == ("EINVAL", "invalid input: pattern: "), refused


LINES = [
    "", "a", "ab", "aab", "A", "é", "É", "ß", "\u017f", "K", "k", "i", "I", "İ", "\u0131", "_", "a b", "a\tb",
    "a.b", "\x1c", "\x85", "\u2028", "\u3000", "\ufffd", "٣", "x٣", "½", "²", "一", "e\u0301", "-",
    "[a]", "a{", "{,3}", "a\\b", "1", "foo bar", "foo_bar", "a\rb", "\U0001f600", "\x0b",
]  # fmt: skip
PATTERNS = [
    "", "a", "^a", "b$", "^$", r"\Aa\Z", "a*", "a+?b", "a{2}", "a{,3}b", "a{1,}b", "[ab]+$", "[^a]",
    "[^ab]$", ".", "^.$", "^..$", r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", r"[\d_]", r"[^\d_]",
    r"[^\W\d]", r"[\s-]", r"\.", r"\[a\]", "[]a]", r"[\]a]", "[a-]", r"a\{", "a{", r"\{,3}", "(a)(b)?",
    "(?:a|b)+", "(?P<x>a)b", "(?#hi)a", "(?i)a", "(?i:a)b", "(?i)É", "(?-i:a)B", "(?x) a b # c",
    "(?s)a.b", "(?m)^a", r"(?a)\w", r"(?a)\d", r"(?a)\s", "(?ai)k", "(?ai)é", r"\x41", r"\u00e9",
    r"\U0001F600", r"\N{LATIN SMALL LETTER E WITH ACUTE}", "\\t", r"a\\b", r"\0b", "é|ß", "[à-ž]",
    "[^à-ž]", "\ufffd", "a\nb", "a|\n", "[\n]", "[^\n]", "[\ud800-\udfff]", "[^\ud800-\udfff]",
    "\ud800|a", "a&&b", r"foo\b", r"\bbar", r"\d\b", "i", "I", "[h-j]", "[^i]", "s", "k", "ss", "a.b",
    "(?:)", "()", "a||b", "x*$", "$", "^",
]  # fmt: skip


@pytest.mark.parametrize("ignore_case", [False, True])
def test_hits_are_those_of_pythons_re(tmp_path: Path, ignore_case: bool) -> None:
    (tmp_path / "x").write_bytes("".join(line + "\n" for line in LINES).encode())
    for pattern in PATTERNS:
        finds = re.compile(pattern, re.IGNORECASE if ignore_case else 0).search
        found = call(
            "fs.search", path=str(tmp_path / "x"), pattern=pattern, ignore_case=ignore_case, all=True
        )
        hits = {
            int(line.removeprefix(f"{tmp_path}/x:").partition(":")[0]) for line in found.text.split("\n")[:-1]
        }
        wanted = {number for number, line in enumerate(LINES, 1) if finds(line)}
        assert hits == wanted, pattern


def test_bytes_that_are_no_text_are_searched_as_they_are_shown(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"caf\xe9 x\r\n\xff\xfe\r\n\xed\xa0\x80y\nz\xc3")
    for pattern, numbers in (
        ("\ufffd", "1 2 3 4"),
        ("^caf. x$", "1"),
        ("^..$", "2 4"),
        ("[^\ufffd]y|x$", "1"),
    ):
        found = standing(tmp_path, lambda pattern=pattern: call("fs.search", pattern=pattern).text)  # type: ignore[misc]
        assert " ".join(line.split(":")[1] for line in found.splitlines()) == numbers, pattern


def test_a_search_that_its_engine_is_busy_with_stops_at_once(tmp_path: Path) -> None:
    # The search is linear, but takes many seconds for each piece.
    (tmp_path / "x").write_text("a" * fs_search.BLOCK)
    runtime = MemoryRuntime("fs.search", {"PATH": os.defpath})
    follow = Job._follow

    def followed(self: Job, *arguments: Any) -> None:
        runtime.cancel()
        follow(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "_follow", followed)
        ended = call("fs.search", runtime, pattern="a{60000}", path=str(tmp_path))
    assert ended.code == "ECANCELED"


def test_without_its_engine_a_search_says_so(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ripgrep, "PROGRAM", str(tmp_path / "none"))
        failed = call("fs.search", pattern="[ab]", path=str(tmp_path))
    assert failed == Ran(
        "",
        "ENOENT",
        "execution failed: ripgrep is missing here; install CortexFS again",
    )


def test_a_cancelled_search_stops(tmp_path: Path) -> None:
    fill(tmp_path, {"a": "", "b": ""})

    class Leaving(MemoryRuntime):
        def emit(self, text: str) -> None:
            super().emit(text)
            self.cancel()

    runtime = Leaving()
    assert call("fs.search", runtime, pattern="needle", path=str(tmp_path)).code == "ECANCELED"
    assert len(runtime.emitted) == 1
