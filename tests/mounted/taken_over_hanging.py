"""A daemon that an attacker has taken over, and that makes its helpers outlive it.

    python taken_over_hanging.py ROOT STATE CONFIG [undead]

It answers no request of the helpers for its files, and leaves its end of the mount with them. A process that
waits for such an answer cannot be killed. Prints the pids of its starter and its fork server when it serves,
and "it waits" when the starter waits. Prints "it goes on" if the fork server does not wait, and ends. With
`undead`, it then waits for its own answer to the close of a file.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from pathlib import Path

import msgspec
import pyfuse3
import trio

from cortexfs import config as configuration
from cortexfs.core import hostcalls, starts
from cortexfs.daemon import daemon
from cortexfs.pool.starter_ends import begin
from cortexfs.state import directories, state_lock
from cortexfs.tree.fuse import Filesystem

ROOT, STATE, CONFIG = map(Path, sys.argv[1:4])
made: list[daemon.Daemon] = []
lookup = Filesystem.lookup
binding, met = threading.Event(), threading.Event()
MEETING = 1 << 20


class TakenOver(daemon.Daemon):
    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        made.append(self)


async def nothing(*_: object) -> None:
    """Answer ENOSYS, so that the kernel never sends this request again."""
    raise pyfuse3.FUSEError(errno.ENOSYS)


async def never(*_: object) -> None:
    binding.set()
    await trio.sleep_forever()


async def forgotten(*given: object) -> pyfuse3.EntryAttributes:
    """Answer a lookup so that the kernel asks for a file's attributes each time."""
    found = await lookup(*given)  # type: ignore[arg-type]
    found.attr_timeout = 0
    return found


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def words(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def attack() -> None:
    asks, forks = made[0].starter, made[0].pool._forks
    (server,) = [pid for pid in children(asks.pid) if b"cortexfs.host.forkserver" in words(pid)]
    print(asks.pid, server, flush=True)
    hear = forks.next_message

    def heard() -> hostcalls.FromForkServer | None:
        if said := hear():
            met.set() if said == hostcalls.Met(MEETING) else None
        return said

    forks.next_message = heard  # type: ignore[method-assign]
    (fuse,) = [int(fd) for fd in os.listdir("/proc/self/fd") if leads(fd) == "/dev/fuse"]
    Filesystem.lookup = forgotten  # type: ignore[method-assign,assignment]
    status = os.open(ROOT / "status", os.O_RDONLY)
    if "undead" not in sys.argv:
        Filesystem.flush = nothing  # type: ignore[method-assign,assignment]
        os.close(os.dup(status))
    Filesystem.lookup = never  # type: ignore[method-assign,assignment]
    Filesystem.getattr = never  # type: ignore[method-assign,assignment]
    asks.control.send(msgspec.msgpack.encode(starts.Bind(1 << 20, "nothing/here", 1)))
    binding.wait()
    socket.send_fds(asks.control, [b"unread"], [fuse])
    print("it waits", flush=True)
    forks.send(hostcalls.Meet(MEETING), [status])
    met.wait()
    print("it goes on", flush=True)
    os._exit(1)


def leads(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def ready(problem: str | None) -> None:
    if problem is None:
        threading.Thread(target=attack, daemon=True).start()
    elif problem:
        print(problem, flush=True)


if __name__ == "__main__":
    daemon.Daemon = TakenOver  # type: ignore[assignment,misc]
    places = directories.Places(STATE, CONFIG)
    with state_lock.held(STATE):
        sys.exit(daemon.run(ROOT, configuration.load(places), begin(ROOT, STATE, CONFIG), ready))
