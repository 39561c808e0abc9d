"""The answer of a run, for programs that run Trio."""

from __future__ import annotations

from collections.abc import AsyncIterable

from cortexfs.client.results import Text
from cortexfs.core.frames import AnyFrame


async def text(run: AsyncIterable[AnyFrame]) -> str:
    """Read a run to its end: its answer, or Failed when it fails, is cancelled or is refused."""
    answer = Text()
    async for frame in run:
        answer.add(frame)
    return answer.whole()
