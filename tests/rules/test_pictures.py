"""Pictures in git are few and small, and each is shown in the docs (`make pictures` takes them)."""

from __future__ import annotations

from tests.places import PROJECT
from tests.web.pictures import FOLDER, MAX_BYTES


def test_pictures_are_small_and_shown() -> None:
    found = sorted(FOLDER.glob("*.png"))
    assert [path.name for path in found] == ["approvals.png", "talk.png"]
    assert sum(path.stat().st_size for path in found) <= MAX_BYTES
    page = (PROJECT / "docs/web.md").read_text()
    for path in found:
        assert f"](pictures/{path.name})" in page, path.name
