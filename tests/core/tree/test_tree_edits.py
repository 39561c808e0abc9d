"""One open of a control (abi.md 3, the paragraph on writing), and editors' temporary files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core.errors import Fault
from cortexfs.core.tree import edits
from cortexfs.core.tree.controls import MAX_VALUE, find, judge
from cortexfs.core.tree.edits import Edit, Temporaries, Temporary, is_temporary
from tests.tables import each_of

EFFORT = find("model", "effort")
PROMPT = find("agent", "system.md")


class Judge:
    """Judges `effort`, and keeps the data of each question."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def __call__(self, data: bytes) -> bytes:
        self.asked.append(data)
        assert EFFORT is not None
        return judge(EFFORT, data)


def prose(data: bytes) -> bytes:
    assert PROMPT is not None
    return judge(PROMPT, data)


def opened(judge_: Judge, truncated: bool = False, appending: bool = False) -> Edit:
    return Edit(b"auto\n", judge_, truncated=truncated, appending=appending)


def test_echo_of_a_bad_value_fails_at_once_and_spoils_the_open() -> None:
    # abi.md 3.10
    judge_ = Judge()
    edit = opened(judge_, truncated=True)
    with pytest.raises(Fault, match="bad"):
        edit.write(0, b"bad\n")
    for again in (lambda: edit.write(0, b"low\n"), lambda: edit.truncate(0), edit.pending):
        with pytest.raises(Fault, match="bad"):
            again()
    assert judge_.asked == [b"bad\n"]  # judged once, so that the log reports it once


def test_echo_of_a_bad_line_to_the_end_fails_at_once() -> None:
    # abi.md 3.10: a shell ignores the error of close(2)
    edit = Edit(b"auto\n", Judge(), truncated=False, appending=True)
    with pytest.raises(Fault, match="exactly one line"):
        edit.write(0, b"bad\n")
    with pytest.raises(Fault, match="exactly one line"):
        edit.pending()


@each_of(("truncated", "offset", "data"), [(True, 0, b"bad"), (False, 0, b"bad\n"), (True, 4, b"bad\n")])
def test_everything_else_is_judged_at_flush(truncated: bool, offset: int, data: bytes) -> None:
    # abi.md 3.11
    judge_ = Judge()
    edit = opened(judge_, truncated=truncated)
    edit.write(offset, data)
    assert judge_.asked == []
    with pytest.raises(Fault):
        edit.pending()


def test_a_good_value_in_pieces_counts_as_a_whole() -> None:
    judge_ = Judge()
    edit = opened(judge_, truncated=True)
    edit.write(0, b"lo")
    edit.write(2, b"w")
    assert edit.pending() == b"low\n"
    assert edit.pending() is None  # handed over only once


def test_an_open_that_wrote_nothing_changes_nothing() -> None:
    # abi.md 3.11
    judge_ = Judge()
    assert opened(judge_, truncated=True).pending() is None
    assert opened(judge_).pending() is None
    assert judge_.asked == []


def test_a_refused_flush_is_judged_once_and_may_be_mended() -> None:
    judge_ = Judge()
    edit = opened(judge_)
    edit.write(0, b"b")
    for _ in range(2):
        with pytest.raises(Fault):
            edit.pending()
    assert judge_.asked == [b"buto\n"]
    edit.write(0, b"a")
    assert edit.pending() == b"auto\n"


def test_ftruncate_is_a_write() -> None:
    edit = opened(Judge())
    edit.truncate(0)
    with pytest.raises(Fault):
        edit.pending()
    edit.write(0, b"high\n")
    assert edit.pending() == b"high\n"


def test_appending_goes_to_the_end_of_this_open_wherever_the_kernel_thinks_that_is() -> None:
    edit = Edit(b"a\n", prose, truncated=False, appending=True)
    edit.write(2, b"b\n")
    edit.write(2, b"c\n")
    assert edit.pending() == b"a\nb\nc\n"


def test_a_reader_of_the_same_open_sees_what_it_wrote() -> None:
    edit = Edit(b"0123456789\n", prose, truncated=False, appending=False)
    assert edit.read(2, 3) == b"234"
    edit.write(2, b"xyz")
    assert edit.read(0, 99) == b"01xyz56789\n"
    assert edit.pending() == b"01xyz56789\n"
    assert edit.read(0, 99) == b"01xyz56789\n"


def test_a_write_past_the_bound_is_refused_and_what_came_before_does_not_count() -> None:
    # abi.md 3.12
    edit = Edit(b"", prose, truncated=True, appending=False)
    edit.write(0, b"x" * MAX_VALUE)
    with pytest.raises(Fault) as raised:
        edit.write(MAX_VALUE, b"y\n")
    assert raised.value.code == "EFBIG"
    with pytest.raises(Fault):
        edit.pending()


def test_what_could_not_be_kept_is_tried_again() -> None:
    edit = opened(Judge(), truncated=True)
    edit.write(0, b"low\n")
    assert edit.pending() == b"low\n"
    edit.put_back()
    assert edit.pending() == b"low\n"


def test_a_draft_is_what_was_judged_or_else_what_was_written() -> None:
    edit = Edit(b"", bytes.upper, truncated=True, appending=False)
    edit.write(0, b"low\n")
    assert edit.draft() == b"LOW\n"
    edit.write(4, b"x")
    assert edit.draft() == b"low\nx"


changes = st.one_of(
    st.tuples(
        st.integers(0, 40), st.binary(min_size=1, max_size=20).map(lambda data: data.replace(b"\0", b"."))
    ),
    st.tuples(st.integers(0, 40), st.none()),
)


@given(start=st.binary(max_size=30), steps=st.lists(changes, max_size=12), truncated=st.booleans())
def test_writes_and_truncates_do_what_a_file_does(
    start: bytes, steps: list[tuple[int, bytes | None]], truncated: bool
) -> None:
    edit = Edit(start, lambda data: data, truncated=truncated, appending=False)
    model = bytearray() if truncated else bytearray(start)
    for offset, patch in steps:
        if patch is None:
            edit.truncate(offset)
            model = bytearray(model[:offset].ljust(offset, b"\0"))
        else:
            edit.write(offset, patch)
            model = bytearray(model.ljust(offset, b"\0"))
            model[offset : offset + len(patch)] = patch
    assert edit.pending() == (bytes(model) if steps else None)


CONTROLS = ("policy", "system.md")


@each_of(
    "name",
    [
        ".policy.aB3dE9",
        ".policy.swp",
        ".system.md.swx",
        ".policy.tmp-12-ab-0",
        "policy~",
        "policy.bak",
        "policy.orig",
        "#policy#",
        ".#policy",
        "sedQx12Yz",
        "aB3dE9xy",
        "4913",
        "policy.Xy12Zw",
        "tmpabc12345",
        ".goutputstream-ABC123",
    ],
)
def test_names_that_editors_make_are_let_in(name: str) -> None:
    # abi.md 3.15
    assert is_temporary(name, CONTROLS)


@each_of(
    "name",
    [
        "efort",
        "fallbakc",
        "polic",
        "policyx",
        "systemXmd~",
        ".other.swp",
        "12",
        "sed",
        "name.txt",
        "",
        "policy\n",
        "..",
    ],
)
def test_other_names_are_not(name: str) -> None:
    # abi.md 3.15
    assert not is_temporary(name, CONTROLS)


def temporary(number: int, folder: int = 1) -> Temporary:
    return Temporary(number, folder, f"tmp{number}", 0, 0, 0o600, 0)


def test_temporary_files_are_bounded_in_each_folder_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edits, "MAX_IN_FOLDER", 2)
    monkeypatch.setattr(edits, "MAX_IN_TREE", 3)
    files = Temporaries()
    files.add(temporary(1))
    files.add(temporary(2))
    with pytest.raises(Fault, match="remove some"):
        files.check_room(1)
    files.add(temporary(3, folder=2))
    with pytest.raises(Fault, match="remove some"):
        files.check_room(2)


def test_a_temporary_file_outlives_its_name() -> None:
    files = Temporaries()
    first, second = temporary(1), temporary(2)
    files.add(first)
    files.add(second)
    first.write(0, b"one", now=5)
    files.rename(first, "tmp2")
    assert files.find(1, "tmp2") is first
    assert files.find(1, "tmp1") is None
    assert not second.linked
    assert (first.read(0, 9), first.mtime) == (b"one", 5)
    with pytest.raises(Fault) as raised:
        first.write(edits.MAX_SIZE, b"x", now=6)
    assert raised.value.code == "EFBIG"
