"""`ctx doctor --fix` at a terminal: it asks about each command, and checks again afterwards."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from cortexfs.cli.main import main
from cortexfs.cli.mount import doctor
from cortexfs.cli.mount.checks import state
from cortexfs.cli.mount.mount_checks import Check, Finding, Subject, fail, ok
from cortexfs.state.directories import Places


class Terminal(io.StringIO):
    """A terminal that gives a person's answers."""

    def isatty(self) -> bool:
        return True


def of(path: Path, by_root: bool = False) -> Check:
    """Returns a check that a file exists. `touch` mends its failure."""
    fix = ("touch", str(path))
    return lambda subject: ok("there") if path.exists() else fail("missing", "touch", fix, by_root=by_root)


def doctored(monkeypatch: pytest.MonkeyPatch, answers: str, checks: dict[str, Check]) -> int:
    monkeypatch.setattr("sys.stdin", Terminal(answers))
    answering: Check = lambda subject: ok("it does")  # noqa: E731
    monkeypatch.setattr(doctor, "CHECKS", {"mount answers": answering, **checks})
    return main(["doctor", "--fix", "--root", "/ctx"])


# abi.md 8.44
def test_each_command_is_asked_for_and_what_it_mended_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    one, two, three = tmp_path / "a b", tmp_path / "two", tmp_path / "three"
    three.touch()
    checks = {"one": of(one), "two": of(two), "three": of(three), "none": lambda _: fail("no", "nothing")}
    assert doctored(monkeypatch, "y\nn\n", checks) == 1
    assert (one.exists(), two.exists()) == (True, False)
    said = capfd.readouterr()
    assert f"run: touch '{one}' [y/N]" in said.err
    assert "one: ok: there" in said.err
    assert said.err.count("[y/N]") == 2
    assert "two" in said.out


def test_what_was_mended_fails_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctored(monkeypatch, "yes\n", {"one": of(tmp_path / "one")}) == 0


@pytest.mark.parametrize("answers", ["", "\n", "n\n", "no\n", "yy\n"])
def test_no_answer_is_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: str) -> None:
    assert doctored(monkeypatch, answers, {"one": of(tmp_path / "one")}) == 1
    assert not (tmp_path / "one").exists()


def test_a_command_that_fails_leaves_the_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctored(monkeypatch, "y\n", {"one": of(tmp_path / "no/folder")}) == 1


def test_what_is_roots_to_run_is_told_where_there_is_no_sudo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "sudo" else name)
    assert doctored(monkeypatch, "y\n", {"one": of(tmp_path / "one", by_root=True)}) == 1
    assert f"let root run: touch {tmp_path}/one" in capfd.readouterr().err
    assert not (tmp_path / "one").exists()


def test_without_a_terminal_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        doctor, "CHECKS", {"mount answers": lambda _: ok("it does"), "one": of(tmp_path / "one")}
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["doctor", "--fix", "--root", "/ctx"]) == 2
    assert "asks before each command" in capsys.readouterr().err
    assert not (tmp_path / "one").exists()


def test_a_state_that_is_open_to_others_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o755)
    subject = Subject("", Places(folder, tmp_path), os.getuid())
    real: Check = lambda _: state(subject)  # noqa: E731
    assert doctored(monkeypatch, "y\n", {"state": real}) == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    assert isinstance(real(subject), Finding)
