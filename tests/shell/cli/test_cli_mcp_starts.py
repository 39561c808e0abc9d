"""`ctx mcp add` and `list` show the output of a server that starts (docs/mcp.md, "HOMES")."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cortexfs.cli import reload
from cortexfs.cli.mcp import servers
from cortexfs.cli.mcp.starts import MAX_LAST, Starts, last_lines
from cortexfs.core.hostcalls import NOBODY
from cortexfs.core.manifest.mcp_server import ERRORS, STARTING


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    made.mkdir()
    return made


@pytest.fixture
def printed(state: Path) -> Path:
    """Returns the file of the lines that a server prints while it describes its tools."""
    home = state.with_name("state-kept") / "mcp@time" / str(os.getuid() or NOBODY)
    home.mkdir(parents=True)
    return home / ERRORS


def starting(why: str = f"{STARTING}, which may take long") -> dict[str, list[str]]:
    return {"broken plugin": [f"mcp:time: {why}"]}


def test_what_a_start_prints_is_shown_line_by_line(
    state: Path, printed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed.write_text("of a former start, which was long\n")
    starts = Starts(state, ["time"])
    assert starts.go_on(starting())
    assert capsys.readouterr().err == ""
    printed.write_text("first\nsec")
    assert starts.go_on(starting())
    with open(printed, "a") as file:
        file.write("ond\n\x1b[31mred\n")
    assert starts.go_on(starting())
    assert capsys.readouterr().err == "time: first\ntime: second\ntime: \\x1b[31mred\n"
    assert not starts.go_on(starting("it cannot be started"))
    assert not starts.go_on({})


def test_a_listing_has_the_last_lines(state: Path, printed: Path) -> None:
    assert last_lines(state, "time") == []
    printed.write_text("\n".join(f"line {number}" for number in range(2000)) + "\n\n")
    assert printed.stat().st_size > MAX_LAST
    assert last_lines(state, "time") == [f"line {number}" for number in range(1995, 2000)]


def test_only_a_plain_file_is_read(state: Path, printed: Path, tmp_path: Path) -> None:
    # docs/attacks.md: the user of a server can write anything in this folder
    secret = tmp_path / "secret"
    secret.write_text("of root's\n")
    printed.symlink_to(secret)
    assert last_lines(state, "time") == []
    printed.unlink()
    os.mkfifo(printed)
    starts = Starts(state, ["time"])
    assert last_lines(state, "time") == []
    assert not starts.go_on({})


LOGIN = "the MCP server docs answers HTTP 401; log in (ctx mcp login docs), or check its headers and secrets"


@pytest.mark.parametrize(
    ("broken", "said", "status"),
    [
        ({}, "it is in effect", 0),
        ({"time": "it was killed"}, "time: it was killed", 1),
        ({"docs": LOGIN}, f"docs: {LOGIN}", 0),
        ({"docs": LOGIN, "time": "it was killed"}, f"docs: {LOGIN}; time: it was killed", 1),
        ({"other": "it was killed"}, "it is in effect", 0),
    ],
)
def test_a_server_that_was_added_and_is_broken_is_a_failure(
    broken: dict[str, str], said: str, status: int, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 8.55
    facts = {"broken plugin": [f"mcp:{name}: {why}" for name, why in broken.items()]}
    monkeypatch.setattr(reload, "tell", lambda root, outcome, *_: outcome(facts) or "it is in effect")
    names = ["docs", "time"]
    assert servers.tell(None, names, Starts(state, names)) == (said, status)
