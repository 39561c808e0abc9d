"""The files in the answers of an MCP server."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import pytest

from cortexfs import sdk
from cortexfs.host.mcp import answers


def keep(text: str) -> Path:
    blob = base64.b64encode(text.encode()).decode()
    said = answers.of_resource({"contents": [{"mimeType": "text/plain", "blob": blob}]}, sdk.MemoryRuntime())
    (medium,) = said.media
    return Path(medium.url)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_FILES", 2)
    kept = [keep(each) for each in "abc"]
    assert [each.exists() for each in kept] == [False, True, True]
    assert [each.read_text() for each in kept[1:]] == ["b", "c"]
    assert len({each.parent for each in kept}) == 1


@pytest.mark.parametrize("is_link", [True, False])
def test_what_a_stranger_made_is_not_written_to(is_link: bool, folder: Path) -> None:
    own = keep("a").parent
    own.rename(folder / "moved")
    if is_link:
        own.symlink_to("moved")
    else:
        own.mkdir(mode=0o777)
        own.chmod(0o777)
    other = keep("b").parent
    assert other not in (own, folder / "moved")
    assert "b" not in {each.read_text() for each in own.iterdir()}
    assert keep("c").parent == other, "there a limit holds"
