"""`ctx agent new --skill` on a tree of plain files: abi.md 11.44."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.agents import records
from cortexfs.cli.main import main
from tests.shell.cli_tree import plant

TEXTS = """\
{"kind":"skill","name":"notes/review","description":"Reviews.","path":"/p","place":"/p"}
{"kind":"prompt","name":"notes/prompt","text":"Say"}
"""
NEW = ("agent", "new", "one", "--model", "openai/gpt-5", "--tools", "fs.read", "--skill")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("state", "config"):
        monkeypatch.setenv(f"CTX_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("CTX_ROOT", str(tmp_path / "ctx"))
    (plant(tmp_path / "ctx") / ".texts").write_text(TEXTS)
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("name", "near"),
    [("notes/revew", "; did you mean notes/review?"), ("zzz/zzz", "; to make"), ("notes/prompt", "")],
)
def test_a_skill_that_is_not_there_is_refused(
    name: str, near: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*NEW, name]) == 2
    assert f"there is no skill {name}{near}" in capsys.readouterr().err
    assert "one" not in records.names_of_agents(state)


def test_one_that_is_there_or_is_to_come_is_given(state: Path) -> None:
    assert main([*NEW, "notes/review"]) == 0
    assert main(["agent", "new", "two", "--anyway", "--skill", "notes/nope"]) == 0
    (two,) = (one for one in records.load(state).objects if one.name == "two")
    assert two.extra["skills"] == "notes/nope\n"
