"""fs.replace: exactly the requested change, or none."""

from __future__ import annotations

import difflib
import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cortexfs.sdk import MemoryRuntime
from cortexfs.tools import fs_replace
from cortexfs.tools.support import patch
from tests.shell.tools.test_tools import Ran, as_nobody, call

LINES = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"\n", b"--- c\n", b"+x\n", b"@@ -1 +1 @@\n", b"d\r\n"]), max_size=12
)
TAIL = st.sampled_from([b"", b"a", b"end", b"\r"])


def diff_of(old: bytes, new: bytes, context: int) -> bytes:
    """Returns a diff as `diff -u` makes it; difflib leaves a missing newline to its caller."""
    pieces = difflib.diff_bytes(
        difflib.unified_diff, patch.lines_of(old), patch.lines_of(new), b"old", b"new", n=context
    )
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in pieces
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one\ntwo\nthree\ntwo\n")
    return path


def replace(path: Path, **input: object) -> Ran:
    ran = call("fs.replace", path=str(path), **input)
    assert os.listdir(path.parent) == [path.name]
    return ran


@given(LINES, TAIL, LINES, TAIL, st.integers(0, 3))
def test_a_diff_makes_the_new_of_the_old(
    old: list[bytes], old_tail: bytes, new: list[bytes], new_tail: bytes, context: int
) -> None:
    before, after = b"".join(old) + old_tail, b"".join(new) + new_tail
    assume(before != after)
    made, _ = patch.apply(before, patch.parse(diff_of(before, after, context)))
    assert made == after


@given(LINES, LINES, st.integers(1, 9))
def test_a_diff_finds_its_lines_where_they_have_moved(old: list[bytes], new: list[bytes], moved: int) -> None:
    # each line occurs once, so that there is only one place
    before = [b"%d %s" % (number, line) for number, line in enumerate(old)]
    after = [*before[: len(before) // 2], *new, *before[len(before) // 2 :]]
    assume(new)
    assume(before)
    diff = diff_of(b"".join(before), b"".join(after), 3)
    above = [b"moved %d\n" % number for number in range(moved)]
    made, _ = patch.apply(b"".join(above + before), patch.parse(diff))
    assert made == b"".join(above + after)


@given(st.binary(max_size=60))
def test_any_text_is_either_applied_or_refused(text: bytes) -> None:
    for diff in (text, b"@@ -1 +1 @@\n" + text):
        with suppress(patch.BadPatch, patch.Mismatch):
            patch.apply(b"a\nb\n", patch.parse(diff))


def test_one_occurrence_is_replaced(path: Path) -> None:
    assert replace(path, old="three\n", new="3\n").text == f"1 replacement in {path}\n"
    assert path.read_text() == "one\ntwo\n3\ntwo\n"
    assert not replace(path, old="3\n", new="").code
    assert path.read_text() == "one\ntwo\ntwo\n"


@pytest.mark.parametrize(
    ("old", "said"), [("four", "does not occur"), ("two", "occurs 2 times"), ("o\nt", "")]
)
def test_other_counts_say_how_many_and_what_to_do(path: Path, old: str, said: str) -> None:
    before = path.read_text()
    ran = replace(path, old=old, new="x")
    if said:
        assert (ran.code, path.read_text()) == ("EIO", before)
        assert said in ran.message
    else:
        assert not ran.code


def test_overlapping_occurrences_are_several(path: Path) -> None:
    path.write_text("aaa")
    assert "occurs 2 times" in replace(path, old="aa", new="x").message
    assert path.read_text() == "aaa"


def test_all_replaces_every_one(path: Path) -> None:
    assert replace(path, old="two", new="2", all=True).text == f"2 replacements in {path}\n"
    assert path.read_text() == "one\n2\nthree\n2\n"
    assert "does not occur" in replace(path, old="two", new="2", all=True).message


def test_bytes_that_are_no_text_stay(path: Path) -> None:
    path.write_bytes(b"\xff one \xfe")
    assert not replace(path, old="one", new="é").code
    assert path.read_bytes() == b"\xff \xc3\xa9 \xfe"


def test_crlf_stays_crlf(path: Path) -> None:
    path.write_bytes(b"one\r\ntwo\r\nend")
    assert not replace(path, old="one\ntwo\n", new="1\n2\n").code
    assert path.read_bytes() == b"1\r\n2\r\nend"
    diff = "@@ -2,2 +2,2 @@\n 2\n-end\n\\ No newline at end of file\n+END\n\\ No newline at end of file\n"
    assert not replace(path, diff=diff).code
    assert path.read_bytes() == b"1\r\n2\r\nEND"
    assert not replace(path, diff="@@ -1,1 +1,1 @@\n-1\r\n+one\r\n").code
    assert path.read_bytes() == b"one\r\n2\r\nEND"


def test_mixed_line_ends_are_taken_as_they_are(path: Path) -> None:
    path.write_bytes(b"one\r\ntwo\n")
    assert "does not occur" in replace(path, old="one\ntwo", new="x").message
    assert not replace(path, old="one\r\n", new="1\n").code
    assert path.read_bytes() == b"1\ntwo\n"


def test_a_git_diff_is_applied_whole(path: Path) -> None:
    diff = """\
diff --git a/whatever b/whatever
index 1..2 100644
--- a/whatever
+++ b/whatever
@@ -1,2 +1,2 @@ some function
-one
+ONE
 two
@@ -3,2 +3,3 @@
 three
-two
+TWO
+four
\\ No newline at end of file
"""
    assert replace(path, diff=diff).text == f"2 hunks applied at line 1, 3 in {path}\n"
    assert path.read_text() == "ONE\ntwo\nthree\nTWO\nfour"


@pytest.mark.parametrize(
    ("diff", "said"),
    [
        ("@@ -1 +1 @@\n-won\n+x\n", "line 1 is 'one', and the diff has 'won'"),
        ("@@ -1 +1 @@\n-two\n+x\n", "fits at 2 others (2, 4)"),
        ("@@ -4 +4 @@\n-two\n\\ No newline at end of file\n+x\n", "without a newline"),
        ("@@ -1 +1 @@\n-one\n+x\n\\ No newline at end of file\n", "in the middle of the file"),
        ("@@ -9,0 +10 @@\n+x\n", "the file has 4"),
        ("@@ -1 +1 @@\n-one\n+1\n@@ -5 +5 @@\n-x\n+y\n", "hunk 2 fits nowhere"),
        ("@@ -4,2 +4 @@\n two\n-x\n", "the file ends at line 4"),
    ],
)
def test_a_diff_that_does_not_fit_changes_nothing(path: Path, diff: str, said: str) -> None:
    before = path.read_text()
    ran = replace(path, diff=diff)
    assert (ran.code, path.read_text()) == ("EIO", before)
    assert said in ran.message


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"old": "one"},
        {"old": "", "new": "x"},
        {"old": "one", "new": "one"},
        {"old": "one", "new": "1", "diff": "@@ -1 +1 @@\n-one\n+1\n"},
        {"diff": ""},
        {"diff": "-one\n+1\n"},
        {"diff": "@@ -1,2 +1 @@\n-one\n+1\n"},
        {"diff": "@@ -1 +1 @@\n-one\n+1\n+2\n"},
        {"diff": "--- a\n+++ a\n@@ -1 +1 @@\n-one\n+1\n--- b\n+++ b\n@@ -1 +1 @@\n-one\n+1\n"},
    ],
)
def test_what_is_no_change_is_the_callers_fault(path: Path, wrong: dict[str, object]) -> None:
    before = path.read_text()
    assert replace(path, **wrong).code == "EINVAL"
    assert path.read_text() == before


def test_mode_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = tmp_path / "a/file"
    path.write_text("one")
    path.chmod(0o751)
    (tmp_path / "link").symlink_to("a/file")
    assert not call("fs.replace", path=str(tmp_path / "link"), old="one", new="1").code
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("1", 0o751)
    assert (tmp_path / "link").is_symlink()


def test_what_is_not_there_or_no_file_is_said(tmp_path: Path) -> None:
    assert call("fs.replace", path=str(tmp_path / "none"), old="a", new="b").code == "ENOENT"
    assert call("fs.replace", path=str(tmp_path), old="a", new="b").code == "EISDIR"
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_a_read_only_file_stays(path: Path) -> None:
    path.chmod(0o444)
    path.parent.chmod(0o777)
    assert (
        as_nobody(path.parent, lambda: call("fs.replace", path="file", old="one", new="1").code) == "EACCES"
    )
    assert path.read_text().startswith("one")


def test_a_change_by_somebody_else_is_not_overwritten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # design goal 2: "nothing is lost"
    apply = fs_replace._exchanged

    def meanwhile(old: bytes, new: bytes, all: bool, data: bytes) -> tuple[bytes, str]:
        path.write_text("theirs, one")
        return apply(old, new, all, data)

    monkeypatch.setattr(fs_replace, "_exchanged", meanwhile)
    assert replace(path, old="one", new="1").code == "EAGAIN"
    assert path.read_text() == "theirs, one"


def test_a_locked_file_is_not_waited_for(path: Path) -> None:
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert replace(path, old="one", new="1").code == "EAGAIN"
    assert not replace(path, old="one", new="1").code


def test_many_changes_at_once_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("".join(f"<{number}>\n" for number in range(8)))
    barrier = threading.Barrier(8)

    def change(number: int) -> None:
        barrier.wait()
        code = "EAGAIN"
        while code == "EAGAIN":  # EAGAIN's message asks for another try
            code = call("fs.replace", path=str(path), old=f"<{number}>", new=f"done {number}").code
        assert not code

    threads = [threading.Thread(target=change, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "".join(f"done {number}\n" for number in range(8))
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_too_large_to_hold_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs_replace, "MAX_SIZE", 3)
    assert replace(path, old="one", new="1").code == "EFBIG"


def test_a_cancelled_change_is_none(path: Path) -> None:
    runtime = MemoryRuntime()
    runtime.cancel()
    assert call("fs.replace", runtime, path=str(path), old="one", new="1").code == "ECANCELED"
    assert path.read_text().startswith("one")
