"""The answer of a run, for programs that run Trio."""

from __future__ import annotations

from collections.abc import AsyncIterable

from cortexfs.client.results import Text
from cortexfs.core.frames import AnyFrame


async def text(run: AsyncIterable[AnyFrame]) -> str:
    """The whole answer of a run; raises Failed when the run fails, is cancelled or is refused."""
    answer = Text()
    async for frame in run:
        answer.add(frame)
    return str(answer)
