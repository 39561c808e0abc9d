"""fs.read: exact content, exact ranges, bounded memory, and no waiting."""

from __future__ import annotations

import base64
import os
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.sdk import MemoryRuntime, run
from cortexfs.tools import fs_read
from tests.shell.tools.test_tools import call, standing

TEXTS = st.text(st.sampled_from("a\n\ré€😀"), max_size=60)


def read(data: bytes, chunk: int, **ranges: Any) -> str:
    with tempfile.NamedTemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs_read, "TEXT_CHUNK", chunk)
        patch.setattr(fs_read, "BASE64_CHUNK", chunk)
        file.write(data)
        file.flush()
        ran = call("fs.read", path=file.name, **ranges)
    assert not ran.code, ran
    return ran.text


@given(TEXTS, st.integers(1, 9))
def test_whole_text_is_exact_wherever_a_chunk_ends(text: str, chunk: int) -> None:
    assert read(text.encode(), chunk) == text


@given(TEXTS, st.integers(1, 9), st.integers(1, 12), st.none() | st.integers(1, 12))
def test_lines_are_as_in_a_list(text: str, chunk: int, offset: int, limit: int | None) -> None:
    lines = text.split("\n")
    lines = [line + "\n" for line in lines[:-1]] + lines[-1:]
    end = None if limit is None else offset - 1 + limit
    assert read(text.encode(), chunk, offset=offset, limit=limit) == "".join(lines[offset - 1 : end])


@given(TEXTS, st.integers(1, 9), st.none() | st.integers(0, 70), st.none() | st.integers(0, 70))
def test_a_character_belongs_where_its_first_byte_is(
    text: str, chunk: int, start: int | None, length: int | None
) -> None:
    first = start or 0
    expected, place = "", 0
    for character in text:
        if first <= place and (length is None or place < first + length):
            expected += character
        place += len(character.encode())
    assert read(text.encode(), chunk, start=start, length=length) == expected


@given(st.binary(max_size=60), st.integers(1, 9), st.integers(0, 70), st.none() | st.integers(0, 70))
def test_base64_is_exactly_the_bytes(data: bytes, chunk: int, start: int, length: int | None) -> None:
    text = read(data, chunk, start=start, length=length, encoding="base64")
    assert base64.b64decode(text, validate=True) == data[start:][:length]


@pytest.mark.parametrize("data", [b"\xff\xfe", b"text\n\xe2\x82", b"\xed\xa0\x80"])
def test_what_is_no_text_says_how_to_read_it(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    ran = call("fs.read", path=str(tmp_path / "x"))
    assert ran.code == "EILSEQ"
    assert "encoding=base64" in ran.message


def test_a_large_file_takes_no_memory(tmp_path: Path) -> None:
    # goal: constant memory for any size
    class Counting(MemoryRuntime):
        seen = 0

        def emit(self, text: str) -> None:
            self.seen += len(text)

    with open(tmp_path / "big", "wb") as file:
        file.truncate(100 << 20)
    runtime = Counting()
    tracemalloc.start()
    try:
        last = run(fs_read.read, {"path": str(tmp_path / "big")}, runtime).output
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert runtime.seen + len(last) == 100 << 20
    assert peak < 4 << 20


def test_a_piece_of_output_fits_a_frame(tmp_path: Path) -> None:
    # frames.MAX_LINE is 1 MiB, and a control character takes six bytes of JSON
    (tmp_path / "x").write_bytes(b"\x01" * (1 << 20))
    runtime = MemoryRuntime()
    run(fs_read.read, {"path": str(tmp_path / "x")}, runtime)
    assert max(map(len, runtime.emitted)) <= 128 << 10


def test_a_cancelled_read_stops(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a" * (1 << 20))

    class Leaving(MemoryRuntime):
        def emit(self, text: str) -> None:
            super().emit(text)
            self.cancel()

    runtime = Leaving()
    assert call("fs.read", runtime, path=str(tmp_path / "x")).code == "ECANCELED"
    assert len(runtime.emitted) == 1


def test_only_regular_files_are_read_and_none_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert call("fs.read", path=str(tmp_path)).code == "EISDIR"
    assert "is a pipe" in call("fs.read", path=str(tmp_path / "pipe")).message
    assert "is a character device" in call("fs.read", path="/dev/zero").message
    missing = call("fs.read", path=str(tmp_path / "none"))
    assert missing.code == "ENOENT"
    assert "none" in missing.message


@pytest.mark.parametrize(
    "ranges",
    [
        {"offset": 0},
        {"limit": 0},
        {"start": -1},
        {"length": -1},
        {"offset": 2, "start": 1},
        {"limit": 1, "length": 1},
        {"limit": 1, "encoding": "base64"},
        {"encoding": "latin-1"},
    ],
)
def test_ranges_that_mean_nothing_are_refused(tmp_path: Path, ranges: dict[str, Any]) -> None:
    (tmp_path / "x").write_text("x")
    assert call("fs.read", path=str(tmp_path / "x"), **ranges).code == "EINVAL"


def test_links_and_generated_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "to").symlink_to("x")
    (tmp_path / "x").write_text("content")
    assert standing(tmp_path, lambda: call("fs.read", path="to").text) == "content"
    assert call("fs.read", path="/proc/version").text == Path("/proc/version").read_text()
    assert call("fs.read", path=str(tmp_path / "x"), start=2**62).text == ""
