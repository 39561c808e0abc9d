"""A reader of a session's log from a given place on, like a connection but without one."""

from __future__ import annotations

import trio

from cortexfs.core.errors import Fault
from cortexfs.sessions.log import Log


async def grown(log: Log) -> None:
    """Wait until something happens in the log."""
    await log._lot.park()


class Reader:
    """One reader of a log. It holds nothing but its own position."""

    __slots__ = ("_log", "offset")

    def __init__(self, log: Log, offset: int = 0) -> None:
        self._log = log
        self.offset = offset

    @property
    def behind(self) -> int:
        """Returns the number of bytes that can be read without waiting."""
        return max(self._log.visible - self.offset, 0)

    async def read(self) -> bytes:
        """Wait for the next whole lines and return them, or b"" if the session was removed."""
        waited = False
        while not self._log.ended:
            if self.offset > self._log.size:
                raise Fault(
                    "EIO", "events that were read are lost, as the disk failed; resume from the beginning"
                )
            if data := await self._lines():
                if not waited:  # a reader that never has to wait must let others work too
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
            if self._log.ended:  # its file was removed during the read
                return b""
            raise
