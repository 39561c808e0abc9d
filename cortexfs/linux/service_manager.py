"""Messages to a service manager: that a daemon is ready, that it still works, and that it ends.

    manager = ServiceManager(os.environ)    takes out the variables, which are for no child
    manager.tell("READY=1")                 nothing happens where there is no manager
    await manager.keep_telling()            for as long as the loop turns (sd_watchdog_enabled(3))

Rules: a manager that does not hear keeps nobody waiting. Its socket is opened at once, as a daemon of
root may open little later.
This file must never know what a daemon does.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

SOCKET = "NOTIFY_SOCKET"
WATCHDOG, WATCHDOG_PID = "WATCHDOG_USEC", "WATCHDOG_PID"
BEATS = 3  # that are told in the time after which it counts as dead


class ServiceManager:
    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop(SOCKET, "")
        useconds, pid = environ.pop(WATCHDOG, ""), environ.pop(WATCHDOG_PID, "")
        self.pause = 0.0  # seconds between two beats; none where nobody waits for one
        if useconds.isdecimal() and int(useconds) and pid in ("", str(os.getpid())):
            self.pause = int(useconds) / 1e6 / BEATS
        self._socket = _connected(address) if address.startswith(("/", "@")) else None

    def tell(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it has ended, or does not read
                self._socket.send("\n".join(lines).encode())

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def keep_telling(self) -> None:
        import trio  # commands that only make a manager do not pay for it

        while self.pause and self._socket is not None:
            self.tell("WATCHDOG=1")
            await trio.sleep(self.pause)


def _connected(address: str) -> socket.socket | None:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    try:
        made.connect(f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError:
        made.close()
        return None
    return made
