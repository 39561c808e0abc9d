"""`ctx plugin` on files, without a mount: its directories, its output, and a plugin to work on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.cli.main import main
from cortexfs.state import directories
from tests.shell.plugin_files import TOOL, plugin


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> directories.Places:
    """A state and a configuration of the test's own, no mount, and a working directory."""
    found = directories.Places(tmp_path / "state", tmp_path / "config")
    monkeypatch.setenv("CTX_STATE", str(found.state))
    monkeypatch.setenv("CTX_CONFIG", str(found.config))
    monkeypatch.setenv("CTX_ROOT", str(tmp_path / "ctx"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return found


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)


class Said:
    """Runs a command, and returns its exit status and its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        status = main(["plugin", *words])
        out, err = self._capsys.readouterr()
        return status, out, err

    def ok(self, *words: str) -> str:
        status, out, err = self(*words)
        assert status == 0, err
        return out or err


def hello(where: Path, text: str = "") -> Path:
    script = "#!/bin/sh\necho '\"hello\"'\n"
    return plugin(where, text + TOOL % "bin/hello", {"bin/hello": script})


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "manifest.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
