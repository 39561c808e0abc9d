"""state/no_links.py: a daemon under an attacker's control cannot lead root's commands out of its state."""

from __future__ import annotations

import io
import os
import stat
import sys
from pathlib import Path

import pytest

from cortexfs.cli.main import main
from cortexfs.core.errors import Fault
from cortexfs.state import no_links
from tests.shell.plugin_commands import hello


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTX_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CTX_ROOT", str(tmp_path / "ctx"))
    (tmp_path / "state").mkdir()
    (tmp_path / "outside").mkdir(mode=0o755)
    hello(tmp_path / "hello")
    return tmp_path / "outside"


COMMANDS = {
    "secrets": ["provider", "secret", "set", "mine"],
    "plugins": ["plugin", "install", "hello"],
    "agents": ["agent", "new", "other"],
}


@pytest.mark.parametrize("folder", COMMANDS)
def test_a_link_in_the_place_of_a_folder_is_not_followed(
    folder: str,
    outside: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config/providers").mkdir(parents=True)
    (tmp_path / "config/providers/mine.toml").write_text(
        'format = "openai.chat"\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    before = outside.stat()
    (tmp_path / "state" / folder).symlink_to(outside)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"s3cret\n")))
    assert main(COMMANDS[folder]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/state/{folder} is a link, which is refused here; remove it" in said
    assert os.listdir(outside) == []
    assert (outside.stat().st_mode, outside.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    (tmp_path / "state" / folder).unlink()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"s3cret\n")))
    assert main(COMMANDS[folder]) == 0
    assert os.listdir(tmp_path / "state" / folder)


def test_what_takes_its_place_is_not_worked_in(outside: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with no_links.folder(state, "a/b", 0o700) as folder:
        (state / "a").rename(state / "aside")
        (state / "a").symlink_to(outside)
        (folder / "file").touch()
        folder.chmod(0o711)
    assert os.listdir(outside) == []
    assert os.listdir(state / "aside/b") == ["file"]
    assert stat.S_IMODE((state / "aside/b").stat().st_mode) == 0o711
    for name in ("a", "a/b"):
        with pytest.raises(Fault, match=f"ELOOP: {state}/a is a link"), no_links.folder(state, name, 0o700):
            pass
    (state / "file").touch()
    with pytest.raises(NotADirectoryError), no_links.folder(state, "file", 0o700):
        pass


def test_the_state_itself_may_be_a_link(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(outside)
    with no_links.folder(tmp_path / "link", "a", 0o700) as folder:
        (folder / "file").touch()
    assert (outside / "a/file").exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_report_reads_the_log_and_nothing_else(
    kind: str, outside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A report is sent to strangers, and a pipe would make it wait for ever.
    (outside / "key").write_text("s3cret\n")
    log = tmp_path / "state/daemon.log"
    log.symlink_to(outside / "key") if kind == "link" else os.mkfifo(log)
    main(["doctor", "--report", "-"])
    said = capsys.readouterr().out
    assert "s3cret" not in said
    why = "is a link, " if kind == "link" else "is not a regular file; "
    assert f": {log} {why}" in said


def test_the_end_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one two")
    assert no_links.read(tmp_path / "log", -3, 10) == b"two"
    assert no_links.read(tmp_path / "log", -100, 3) == b"one"
    assert no_links.read(tmp_path / "log", 4, 10) == b"two"
