"""Messages to a service manager, such as systemd: the daemon is ready, works, or ends (sd_notify(3)).

    manager = ServiceManager(os.environ)    removes the variables, so that no child gets them
    manager.tell("READY=1")                 does nothing without a manager
    await manager.keep_telling()            while the event loop works (sd_watchdog_enabled(3))

Rules: a manager that does not read never holds up the daemon. The socket is opened at once, as a daemon of
root confines itself later.
This file must never know what a daemon does.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

SOCKET = "NOTIFY_SOCKET"
WATCHDOG, WATCHDOG_PID = "WATCHDOG_USEC", "WATCHDOG_PID"
BEATS = 3  # in the time after which the manager takes the daemon for dead


class ServiceManager:
    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop(SOCKET, "")
        useconds, pid = environ.pop(WATCHDOG, ""), environ.pop(WATCHDOG_PID, "")
        self.pause = 0.0  # seconds between two beats; 0 if the manager expects none
        if useconds.isdecimal() and int(useconds) and pid in ("", str(os.getpid())):
            self.pause = int(useconds) / 1e6 / BEATS
        self._socket = _connected(address) if address.startswith(("/", "@")) else None

    def tell(self, *lines: str) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the manager has ended, or does not read
                self._socket.send("\n".join(lines).encode())

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def keep_telling(self) -> None:
        import trio  # imported here, as commands that only make a manager do without

        while self.pause and self._socket is not None:
            self.tell("WATCHDOG=1")
            await trio.sleep(self.pause)


def _connected(address: str) -> socket.socket | None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.setblocking(False)
    try:
        channel.connect(f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError:
        channel.close()
        return None
    return channel
