"""The way of a host from fork to its first call: it becomes its caller, confines itself, and reports.

Rules: it keeps only the descriptors passed to it, and nothing of the fork server's. Until it has reported, no
foreign code runs in it, and no other process can get into it. It never returns into the fork server's code.
This file must never know what a call or a tool is.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.host.call import plugin_state
from cortexfs.host.confine import identity, limits, view
from cortexfs.linux import own_descriptors, syscalls

Serve = Callable[[socket.socket, hostcalls.Plugin], NoReturn]
Leaving = Callable[[], None]  # opens files that cannot be found from the caller's namespaces

# The messages of a starting host on its status socket.
MOVED = b"p"  # and a pid in decimal: the host goes on in that process, and waits for a byte in answer
ASKS = b"a"  # and a descriptor, on which host/confine/socket_gate.py answers questions
READY = b"k"
FAILED = b"f"  # and msgpack (code, message)

_pack = msgspec.msgpack.Encoder().encode


def start(
    spawn: hostcalls.Spawn,
    rights: list[int],
    status: socket.socket,
    group: limits.Group | None,
    serve: Serve,
    ground: view.Ground,
    leaving: Leaving | None = None,
) -> NoReturn:
    """Become the caller, report to the parent, serve. Never returns into the parent's code."""
    try:
        control, pidfd, root_fd = _settle(rights, status)
        try:
            # Both before /proc and /sys become the caller's.
            if group is not None:
                group.enter()
            counted = group is not None and group.counts
            tasks = 0 if counted else limits.tasks_of(spawn.identity.uid)
            plugin_state.prepare(spawn.plugin, spawn.identity, ground.plugins_folder)
            plugin_state.prepare_scratch(spawn.identity, ground.plugins_folder)
            if leaving is not None and (spawn.identity.namespaces or any(spawn.identity.root)):
                leaving()
            plugin = plugin_state.of(spawn.plugin, spawn.identity)
            confinement = view.Confinement(spawn.identity, plugin, ground)
            enclosed = hostcalls.is_enclosed(spawn.plugin, spawn.identity)
            enclose = confinement.enclose if enclosed else None
            become = view.without_powers(spawn)
            identity.become(become, pidfd, root_fd, lambda pid: _hand_over(status, pid), enclose)
            limits.restrict(spawn.limits, None if counted else tasks)
            asks = confinement.close()
            if enclosed:
                _let_go_of_null()
            if asks is not None:
                socket.send_fds(status, [ASKS], [asks])
                os.close(asks)
        except Fault as fault:
            status.send(FAILED + _pack((fault.code, fault.message)))
            os._exit(os.EX_NOPERM)
        except OSError as error:
            status.send(FAILED + _pack(("EHOSTDOWN", f"no host can start: {error.strerror}")))
            os._exit(os.EX_OSERR)
        for fd in (pidfd, root_fd):
            if fd is not None:
                os.close(fd)
        # Fails if the fork server died before PR_SET_PDEATHSIG was set; then this process must end, too.
        status.send(READY)
        status.close()
        if spawn.identity.label != hostcalls.DESCRIBER and spawn.plugin.kind != hostcalls.EXCHANGE:
            identity.open_up()
        gc.enable()
        serve(control, plugin)
    except BaseException:  # a fork must not unwind into its parent's loop; the log has it
        traceback.print_exc()
    finally:
        os._exit(os.EX_SOFTWARE)


def helper(work: Callable[[socket.socket], object]) -> tuple[socket.socket, int]:
    """Fork a helper of the fork server, which keeps only a channel of the fork server's, and ends with it.
    Returns the other end of the channel, and its pid; 0 if there are too many processes."""
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, hostcalls.MAX_SPAWN)
    pid = 0
    with theirs, suppress(OSError):
        pid = os.fork()
        if not pid:
            _help(theirs, work)
    return channel, pid


def _help(channel: socket.socket, work: Callable[[socket.socket], object]) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        own_descriptors.close_all_but(0, 1, 2, channel.fileno())
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        work(channel)
    except BaseException:  # a fork must not unwind into its parent's loop; the log has it
        traceback.print_exc()
    finally:
        os._exit(os.EX_OK)


def _settle(rights: list[int], status: socket.socket) -> tuple[socket.socket, int | None, int | None]:
    """Keep the descriptors passed to this host, and nothing of the fork server's."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):  # the C library keeps two for itself
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python does at its start
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    control, errors, *own = rights
    os.dup2(errors, 2)
    own_descriptors.close_all_but(0, 1, 2, status.fileno(), control, *own)
    pidfd, root_fd = (*own, None, None)[:2]
    return socket.socket(fileno=control), pidfd, root_fd


def _let_go_of_null() -> None:
    """Replace standard input by an empty pipe: through a descriptor that the fork server opened, /dev/null
    itself could be changed."""
    empty, end = os.pipe()
    os.dup2(empty, 0)
    os.dup2(2, 1)
    os.close(empty)
    os.close(end)


def _hand_over(status: socket.socket, pid: int) -> None:
    status.send(MOVED + str(pid).encode())
    status.recv(1)
