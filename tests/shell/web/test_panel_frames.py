"""The frames that the process of a page keeps open, without a browser."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.web import panels
from cortexfs.web.http import PageAnswer, PageRequest
from cortexfs.web.panels import PanelFrame, PanelFrames

PLACE: Any = None


async def shown() -> None: ...


async def gone() -> None:
    raise Fault("EACCES", "it was disabled")


def frame(size: int, watched: tuple[str, ...] = (), look: Any = shown) -> PanelFrame:
    return PanelFrame("plugin", "panel/main", "p.html", {"p.html": PageAnswer(b"x" * size)}, [*watched], look)


def named(one: PanelFrame) -> PageRequest:
    return PageRequest("POST", "/api/frame/still", {"frame": one.id}, True)


async def still(frames: PanelFrames, one: PanelFrame) -> bool:
    """Returns True if the frame is still shown. Any answer other than this or ENOENT fails."""
    try:
        await frames.still(named(one))
    except Fault as fault:
        if fault.code != "ENOENT":
            raise
        return False
    return True


async def test_their_files_are_bounded_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 13.36
    monkeypatch.setattr(panels, "MAX_BYTES", 100)
    frames = PanelFrames(PLACE)
    first, second, third = frame(40), frame(60), frame(1)
    for one in (first, second):
        await frames.add(one)
    assert [await still(frames, one) for one in (first, second)] == [True, True]
    await frames.add(third)
    assert [await still(frames, one) for one in (first, second, third)] == [False, True, True]
    await frames.add(large := frame(100))
    assert [await still(frames, one) for one in (second, third, large)] == [False, False, True]


async def test_their_number_is_bounded() -> None:
    frames = PanelFrames(PLACE)
    made = [frame(1) for _ in range(panels.MAX_FRAMES + 1)]
    for one in made:
        await frames.add(one)
    assert [await still(frames, one) for one in (made[0], made[1], made[-1])] == [False, True, True]


async def test_one_is_looked_at_when_its_files_change(tmp_path: Any) -> None:
    # abi.md 13.31
    file = tmp_path / "file"
    file.write_text("x")
    frames = PanelFrames(PLACE)
    stays, goes = frame(1, (str(file),)), frame(1, (str(file),), gone)
    for one in (stays, goes):
        await frames.add(one)
    assert [await still(frames, one) for one in (stays, goes)] == [True, True]
    file.write_text("xy")
    assert [await still(frames, one) for one in (stays, goes)] == [True, False]
    assert goes.id not in frames._open
