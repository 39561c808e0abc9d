"""media.py: the first bytes of a file decide its type, and only a file that does not block is read."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from cortexfs.client import media


@pytest.mark.parametrize(("data", "mime"), [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\x89PNG\r\n\x1a", None),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF89a", "image/gif"),
    (b"RIFF....WEBP", "image/webp"),
    (b"RIFF....WAVE", "audio/wav"),
    (b"RIFF....AVI ", None),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"\0\0\0\x18ftypmp42", "video/mp4"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"%PDF-1.7", "application/pdf"),
    (b"<svg xmlns=", None),
    (b"", None),
])  # fmt: skip
def test_the_first_bytes_decide(data: bytes, mime: str | None) -> None:
    assert media.mime_of(data) == mime


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert media.at(str(path), 4) == b"1234"
    assert media.at(str(path), 3) is None


def test_nothing_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for url in (
        str(tmp_path / "pipe"),
        str(tmp_path),
        "/dev/zero",
        "relative",
        "https://x.example/a",
        "/a\0",
    ):
        assert media.at(url, 4) is None


def test_an_address_may_have_the_data() -> None:
    assert media.at(f"data:image/png;base64,{base64.b64encode(b'abc').decode()}", 1 << 20) == b"abc"
    assert media.at(f"data:image/png;base64,{base64.b64encode(b'abc').decode()}", 2) is None
    assert media.at("data:image/png;base64,*", 1 << 20) is None
    assert media.at("data:image/png,abc", 1 << 20) is None
