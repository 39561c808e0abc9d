"""Who reads a session's log from some place on, as a connection does, without being one."""

from __future__ import annotations

import trio

from cortexfs.core.errors import Fault
from cortexfs.sessions.log import Log


async def grown(log: Log) -> None:
    """Wait until something happened."""
    await log._lot.park()


class Reader:
    """One reader of a log, at its own position. It holds nothing but the position."""

    __slots__ = ("_log", "offset")

    def __init__(self, log: Log, offset: int = 0) -> None:
        self._log = log
        self.offset = offset

    @property
    def behind(self) -> int:
        """How many bytes can be read without waiting."""
        return max(self._log.visible - self.offset, 0)

    async def read(self) -> bytes:
        """The next whole lines, waiting until there are some; b"" when the session was removed."""
        waited = False
        while not self._log.ended:
            if self.offset > self._log.size:
                raise Fault(
                    "EIO", "events that were read are lost, as the disk failed; resume from the beginning"
                )
            if data := await self._lines():
                if not waited:  # one that never has to wait must let others work too
                    await trio.lowlevel.checkpoint()
                self.offset += len(data)
                return data
            await grown(self._log)
            waited = True
        return b""

    async def _lines(self) -> bytes:
        try:
            return await self._log.lines(self.offset)
        except Fault:
            if self._log.ended:  # its file went while it was read
                return b""
            raise
