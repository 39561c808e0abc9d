"""Requests of a daemon that an attacker has taken over to its helpers, the fork server and the starter.

Used by taken_over.py, which passes its own folder, state and listener.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import msgspec

from cortexfs.core import hostcalls, starts, wire
from cortexfs.daemon.daemon import Daemon
from cortexfs.linux import syscalls
from cortexfs.state.directories import place_of

ALL = (1 << 41) - 1


def host(made: Daemon, identity: hostcalls.Identity, *shown: int) -> str:
    """Ask for a host with this identity, showing these descriptors as proof. Returns the fault or "done"."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        plugin = hostcalls.Plugin("builtin", "1", "python", "cortexfs.tools:tools")
        spawn = hostcalls.Spawn(1 << 20, plugin, identity, hostcalls.HostLimits(1 << 30, 64, 256))
        forks = made.pool._forks
        forks.send(spawn, [theirs.fileno(), 2, *shown])
        assert forks.wait(60)
        said = forks.next_message()
    assert isinstance(said, hostcalls.HostStart)
    return said.fault[0] if said.fault else "done"


def hosts(made: Daemon, state: Path, folder: Path, listener: socket.socket) -> dict[str, str]:
    """Ask for hosts of other users, in each way that the fork server might believe."""
    root = hostcalls.Identity(0, 0, (), ALL & syscalls.permitted())
    pair = socket.socketpair()
    with pair[0], pair[1]:
        return {
            "host of root": host(made, root),
            "host of root without powers": host(made, hostcalls.Identity(0, 0, ())),
            "host of a user": host(made, hostcalls.Identity(1000, 1000, ())),
            "host of root by our own sockets": host(made, hostcalls.Identity(0, 0, ()), pair[0].fileno()),
            "host of root by a standard stream": host(made, hostcalls.Identity(0, 0, ()), 0),
            "host of root by a listener": host(made, hostcalls.Identity(0, 0, ()), listener.fileno()),
            "host of root by a host of nobody": host_by_a_host(made, state, folder),
        }


# While a plugin describes itself, it shows a connection to a service of root's as proof.
NOBODYS = """
import os, socket, sys
from array import array
import msgspec
from cortexfs.core import hostcalls

channels = [int(fd) for fd in os.listdir("/proc/self/fd")]
shown = socket.socket(socket.AF_UNIX)
shown.bind(f"\\0cortexfs-test-{os.getpid()}")
shown.connect(SERVICE)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
plugin = hostcalls.Plugin("builtin", "1", "python", "cortexfs.tools:tools")
spawn = hostcalls.Spawn(1 << 21, plugin, hostcalls.Identity(0, 0, ()), hostcalls.HostLimits(1 << 30, 64, 256))
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [theirs.fileno(), 2, shown.fileno()]))]
said = []
for fd in channels:
    try:
        with socket.socket(fileno=os.dup(fd)) as channel:
            maker = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
            if channel.type == socket.SOCK_SEQPACKET and int.from_bytes(maker, sys.byteorder) == STARTER:
                channel.sendmsg([msgspec.msgpack.encode(spawn)], rights)
                said.append("asked")
    except OSError:
        pass
theirs.close()
ours.settimeout(10)
try:
    said.append("refused" if ours.recv(1) == b"" else "host")
except TimeoutError:  # somebody has the other end, and waits for calls
    said.append("host")
os.umask(0)
with open(PROOF, "w") as proof:
    proof.write(f"{os.getuid()} {' '.join(said)}")
tools = []
"""


def host_by_a_host(made: Daemon, state: Path, folder: Path) -> str:
    """Pass the channel to the fork server to a host of nobody, and let that host ask."""
    (evil := place_of(state) / "evil").mkdir(mode=0o755)
    proof = folder / "shared/proof"
    values = {"SERVICE": str(folder / "root's"), "STARTER": made.starter.pid, "PROOF": str(proof)}
    text = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + NOBODYS
    (evil / "nobodys.py").write_text(text)
    forks = made.pool._forks
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    call_, its = socket.socketpair()
    with ours, theirs, call_, its:
        plugin = hostcalls.Plugin("evil", "1", "python", "nobodys:tools", str(evil))
        limits = hostcalls.HostLimits(1 << 30, 64, 256)
        forks.send(hostcalls.Spawn(1 << 20, plugin, hostcalls.DESCRIBING, limits), [theirs.fileno(), 2])
        assert forks.wait(60)
        assert forks.next_message() is not None
        socket.send_fds(ours, [b"c"], [its.fileno(), forks.socket.fileno()])
        its.close()
        call_.sendall(wire.message(wire.REQUEST, msgspec.msgpack.encode(hostcalls.Describe())))
        while call_.recv(1 << 16):
            pass
    return proof.read_text()


def starter(made: Daemon, folder: Path) -> dict[str, str]:
    """Send requests to the starter, whose answers need no event loop."""
    asks = made.starter
    requests: dict[str, starts.ToStarter] = {
        "signature: an option": starts.StartChild(asks._next(), starts.SIGNATURE, f"--output={folder}/text"),
        "signature: elsewhere": starts.StartChild(asks._next(), starts.SIGNATURE, f"{starts.PREFIX}/../../x"),
        "mount: another": starts.MountDevice(asks._next(), os.stat(folder).st_dev),
        "listener: no path": starts.Bind(asks._next(), "model/\0", 1),
        "listener: elsewhere": starts.Bind(asks._next(), "../folder/own", 1),
    }
    said = {name: asks._answer_now(asks._ask(each)).done.error for name, each in requests.items()}
    return {f"starter {name}": errno.errorcode.get(error, "done") for name, error in said.items()}
