"""TOML as editors of other systems leave it."""

from __future__ import annotations

from cortexfs.core import tomltext


def test_the_mark_and_the_line_ends_of_windows_are_no_fault() -> None:
    said = '\ufeffname = "hello"\r\nversion = "1.0.0"\r\n'.encode()
    assert tomltext.table(said, "manifest.toml") == {"name": "hello", "version": "1.0.0"}
