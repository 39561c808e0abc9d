"""The daemon's end of the fork server: the process that makes hosts, what it is told, and what it tells.

Rules: it is started before the daemon opens anything that hosts must not inherit. What hosts print comes into
the log, bounded. Ending it ends every host.
This file must never know who gets which host.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from array import array
from pathlib import Path

import msgspec
import trio

from cortexfs.core import calls
from cortexfs.core.errors import Fault
from cortexfs.core.plain import one_line
from cortexfs.host import linux

MAX_OUTPUT = 1 << 10  # of what is printed at once, for one line of the log
_OUTPUT = 64 << 10

log = logging.getLogger("cortexfs")

_pack = msgspec.msgpack.Encoder().encode
_replies: msgspec.msgpack.Decoder[calls.FromForkServer] = msgspec.msgpack.Decoder(calls.FromForkServer)


class ForkServer:
    """The process that makes hosts, and the channel to it."""

    def __init__(self, state: Path | None = None) -> None:
        """Start it. Call this before the daemon opens anything that hosts must not inherit. In `state` lies
        what is the daemon's own."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, calls.MAX_SPAWN)
        self._output, output = os.pipe()
        options = ["--state", os.path.realpath(state)] if state else []
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-m", "cortexfs.host.sealing", str(theirs.fileno()), *options],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        os.close(output)
        self.socket.setblocking(False)

    def send(self, spawn: calls.Spawn, rights: list[int]) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", rights))]
        try:
            self.socket.sendmsg([_pack(spawn)], ancillary)
        except BlockingIOError:
            raise Fault("EAGAIN", "too many hosts are being started at once; try again") from None
        except OSError:
            raise Fault("EHOSTDOWN", "the fork server is gone and is being started again; retry") from None

    async def receive(self) -> tuple[calls.FromForkServer, list[int]] | None:
        """The next message and its rights, or None when the fork server is gone."""
        while True:
            try:
                data, rights, _ = linux.receive(self.socket, calls.MAX_SPAWN, 1)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self.socket)
            except ConnectionResetError:
                return None
            else:
                return (_replies.decode(data), list(rights)) if data else None

    async def overhear(self) -> None:
        """Log what hosts say on standard error. All of it is read, or who prints would have to wait."""
        while True:
            await trio.lowlevel.wait_readable(self._output)
            if not (said := os.read(self._output, _OUTPUT)):
                return
            log.info("host output: %s", one_line(said[-MAX_OUTPUT:].decode(errors="replace")))

    def stop(self) -> None:
        """End it and with it every host; reaped before this returns. May be repeated."""
        self.socket.close()
        if self._output >= 0:
            os.close(self._output)
            self._output = -1
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
