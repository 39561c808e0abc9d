"""The process that makes hosts: imported once, then forked for each.

    python -I -m cortexfs.host.forkserver FD [--serve MODULE:FUNCTION] [--preload MODULE]
                                             [--state DIR] [--sealed] [--daemon PID]

FD is the control socket of core/hostcalls.py. The starter starts this before the daemon opens anything, with
a clean environment (/proc/PID/environ of every host shows it) and no standard input. Hosts may share its
standard error, so that is a pipe or /dev/null: a tool could truncate a file. --serve names the function that
a host runs once it is the caller. --preload names a module that each host finds imported; tests pass a small
one. A host calls that module's `before_leaving` before it leaves for a caller's namespaces. --state is the
daemon's state directory. --sealed says that this program was executed through the mount of
readonly_mounts.sealed. --daemon is the daemon's pid, by default the parent's.

Rules: it is single-threaded, and waits only in `poll`. A starting host reports on a socket of its own, so a
host that hangs in a caller's strange namespace delays no other. A host that ends ends with all its
descendants; when the control socket ends, all hosts do. It never imports the modules that only hosts of MCP
servers need: a copy of it that has imported them forks those hosts (warm.py). It reads from connections as
whom a host may act (vouching.py), and never takes that from a message.
This file must never know what a call or a tool is.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import os
import pkgutil
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.starter_command import HOST_NAME
from cortexfs.host import spare, start, vouching, warm
from cortexfs.host.confine import identity, leftovers, limits, socket_gate, view
from cortexfs.linux import syscalls
from cortexfs.state.directories import kept_of

PRELOAD = "cortexfs.tools"
SERVE = "cortexfs.host.serve:serve"

_PACKET = 64 << 10  # the largest report of a starting host
_MAX_RIGHTS = 3
# A process in an uninterruptible wait dies when the wait ends; nothing waits longer for it than this.
_SWEEP_SECONDS = 2.0

_pack = msgspec.msgpack.Encoder().encode
_messages: msgspec.msgpack.Decoder[hostcalls.ToForkServer] = msgspec.msgpack.Decoder(hostcalls.ToForkServer)
_faults: msgspec.msgpack.Decoder[tuple[str, str]] = msgspec.msgpack.Decoder(tuple[str, str])


class HostProcess:
    """One host, as its parent sees it."""

    def __init__(
        self, spawn: hostcalls.Spawn, pid: int, status: socket.socket, group: limits.Group | None
    ) -> None:
        self.number = spawn.host
        self.identity, self.plugin = spawn.identity, spawn.plugin
        self.device = spawn.device
        self.pid = pid
        self.announced = False  # reported to the daemon
        self.deadline = time.monotonic() + limits.STARTING_SECONDS  # for its start, and later for its end
        self.exit = 0
        self.status: socket.socket | None = status  # None once the daemon has had its Spawned
        self.group = group
        self.gate = -1  # the socket by which a confined host asks; -1: none

    def close_gate(self) -> None:
        if self.gate >= 0:
            os.close(self.gate)
            self.gate = -1


class ForkServerProcess:
    """Its attributes are the channel to the daemon, the means to start a host, and the hosts."""

    def __init__(self, control: socket.socket, begin: warm.Begin, daemon: int) -> None:
        self._control = control
        self._control.setblocking(False)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._daemon, self._ends = daemon, os.pidfd_open(daemon)
        self._begin, self._warm = begin, warm.WarmFork(begin)
        self._groups = limits.Groups.find(daemon)
        self._spare = spare.Spare(begin, self._groups)
        self._children: dict[int, HostProcess] = {}  # by pid, starting and running
        self._vouching = vouching.Vouching(self._children)
        self._dead: list[HostProcess] = []  # ended hosts, whose descendants may still run
        self._outbox: deque[bytes] = deque()
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Processes that a dead host leaves become our children, so that they can be found and ended.
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        """Serve until the daemon is gone, and then end everything."""
        try:
            while self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._ends, select.POLLIN)
        poll.register(self._control, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        starting = {child.status.fileno(): child for child in self._children.values() if child.status}
        asking = {child.gate: child for child in self._children.values() if child.gate >= 0}
        for fd in (*starting, *asking):
            poll.register(fd, select.POLLIN)
        if self._warm.preparing >= 0:
            poll.register(self._warm.preparing, select.POLLIN)
        is_idle = self._spare.is_wanted and not (starting or self._dead)
        patience = spare.QUIET_SECONDS * 1000 if is_idle else self._patience(starting.values())
        ready = dict(poll.poll(patience))
        if is_idle and not ready:
            self._spare.make()
        if self._ends in ready:  # another process may still hold its end of the channel
            return False
        for fd in ready.keys() & asking.keys():
            socket_gate.answer(fd, asking[fd].device) if ready[fd] & select.POLLIN else asking[
                fd
            ].close_gate()
        # Reports before deaths: a host may report and die at once.
        for fd in ready.keys() & starting.keys():
            self._report(starting[fd])
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        for child in starting.values():
            if child.status and time.monotonic() >= child.deadline:
                os.kill(child.pid, signal.SIGKILL)
        self._reap()
        self._sweep()
        for held in self._warm.released() if self._warm.preparing in ready else ():
            self._take(*held)
        alive = self._hear() if ready.get(self._control.fileno(), 0) & ~select.POLLOUT else True
        return self._flush() and alive

    def _patience(self, starting: Collection[HostProcess]) -> float | None:
        """Returns the milliseconds until there is work without an event; None: there is none."""
        if self._dead:
            return limits.KILLING_SECONDS * 1000
        # A user can stop a host that has become that user. A killed host reports its end by itself.
        first = min((child.deadline for child in starting), default=None)
        if first is None:
            return None
        return max(first - time.monotonic(), limits.KILLING_SECONDS) * 1000

    # -- the daemon

    def _hear(self) -> bool:
        """Take one message. Returns False if the daemon is gone."""
        try:
            received = syscalls.receive_signed(self._control, hostcalls.MAX_SPAWN, _MAX_RIGHTS)
        except BlockingIOError:
            return True
        except OSError:
            return False
        data, rights, flags, sender = received
        if not data:
            return False
        try:
            # The daemon can pass its end to another user's host, which can make connections for it.
            if sender is not None and sender.pid == self._daemon:
                self._take(_messages.decode(data), [] if flags & socket.MSG_CTRUNC else rights)
            else:
                print(f"fork server: {sender} is not the daemon, so its message was ignored", file=sys.stderr)
        except UNREADABLE as error:
            print(f"fork server: not a message: {error}", file=sys.stderr)
        finally:
            for fd in rights:
                os.close(fd)
        return True

    def _take(self, message: hostcalls.ToForkServer, rights: list[int]) -> None:
        """`rights` is empty if some were lost."""
        if isinstance(message, hostcalls.Spawn):
            if self._warm.holds(message, rights):
                return
            try:
                self._admit(message, rights)
            except Fault as fault:
                self._say(hostcalls.HostStart(message.host, 0, (fault.code, fault.message)))
        elif isinstance(message, hostcalls.KillHost):
            for child in self._children.values():  # not reaped yet, so that the pid is still this host's
                if child.number == message.host:
                    os.kill(child.pid, signal.SIGKILL)
        elif isinstance(message, hostcalls.Forget):
            self._vouching.part(message.number)
        elif rights:
            self._vouching.meet(message.number, rights[0])
            self._say(hostcalls.Met(message.number))

    def _say(self, message: hostcalls.FromForkServer) -> None:
        self._outbox.append(_pack(message))

    def _flush(self) -> bool:
        while self._outbox:
            try:
                self._control.send(self._outbox[0])
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            self._outbox.popleft()
        return True

    # -- beginnings

    def _admit(self, spawn: hostcalls.Spawn, rights: list[int]) -> None:
        if len(rights) < 2:
            raise Fault("EHOSTDOWN", "no host can start: file descriptors were lost; too many are open")
        control, errors, *connections = rights
        connection = connections[0] if connections else None
        try:
            with self._vouching.rights(spawn.identity, spawn.met, connection) as following:
                self._spawn(spawn, [control, errors, *following])
        except OSError as error:
            raise Fault("EHOSTDOWN", f"no host can start: {error.strerror}") from error

    def _spawn(self, spawn: hostcalls.Spawn, rights: list[int]) -> None:
        if spawn.identity.label and self._groups is None and identity.enters_pid_namespace(spawn.identity):
            # ancestry.ancestor_host says why.
            raise Fault("EACCES", "an agent's run cannot enter a container: there is no cgroup to hold it")
        if self._warm.is_for(spawn):
            self._spare.pass_over(spawn.host)
        elif spare := self._spare.become(spawn, rights):
            self._children[spare[0]] = HostProcess(spawn, *spare)
            return
        group = None
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                if self._groups is not None:
                    group = self._groups.create(spawn.host, spawn.limits.processes)
                ours.setblocking(False)
                pid = self._warm.host(spawn, rights, theirs, group) or os.fork()
                if not pid:
                    self._begin(spawn, rights, theirs, group)
                self._children[pid] = HostProcess(spawn, pid, ours, group)
        except OSError:
            if group is not None:
                group.kill()
            raise

    def _report(self, child: HostProcess) -> None:
        """Receive from a starting host its report, or the end of its socket if it died."""
        status = child.status
        assert status is not None
        while child.status is not None:
            try:
                report, rights, _ = syscalls.receive(status, _PACKET, 1)
            except BlockingIOError:
                return
            except OSError:
                report, rights = b"", []
            if report == start.ASKS:
                child.gate = rights[0] if rights else -1  # too many files are open here: no socket is allowed
                continue
            if report.startswith(start.MOVED):
                self._move(child, int(report[1:]))
                with suppress(OSError):
                    status.send(b"k")
                continue
            child.status = None
            status.close()
            if report == start.READY:
                child.announced = True
                self._say(hostcalls.HostStart(child.number, child.pid))
            else:
                fault = (
                    _faults.decode(report[1:]) if report else ("EHOSTDOWN", "the host died while it started")
                )
                self._say(hostcalls.HostStart(child.number, 0, fault))

    def _move(self, child: HostProcess, pid: int) -> None:
        """The host is in a pid namespace. Its first process waits for our answer before it ends, so that
        `pid` cannot have been reaped and reused."""
        del self._children[child.pid]
        child.pid = pid
        self._children[pid] = child

    # -- ends

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            child = self._children.get(pid)
            self._spare.died(pid)
            if pid == self._warm.pid:
                self._warm.pid = 0
            if child is None:
                continue  # an orphan of a host
            if child.status is not None:
                self._report(child)
            # Reading its report may have shown that the host goes on in another process.
            if child.pid == pid:
                child.close_gate()
                del self._children[pid]
                child.exit = os.waitstatus_to_exitcode(status)
                child.deadline = time.monotonic() + _SWEEP_SECONDS
                self._dead.append(child)

    def _sweep(self) -> None:
        """Kill the descendants that dead hosts left. Report a host's exit once it has none left."""
        if not self._dead:
            return
        quiet = limits.kill_strays({*self._children, self._warm.pid, self._spare.pid})
        hosts = []
        for dead in self._dead:
            empty = (dead.group is None or dead.group.kill()) and quiet
            if not empty and time.monotonic() < dead.deadline:
                hosts.append(dead)
            elif dead.announced:
                self._say(hostcalls.HostExit(dead.number, dead.exit))
        self._dead = hosts

    def _end(self) -> None:
        """The daemon is gone: end all hosts."""
        deadline = time.monotonic() + _SWEEP_SECONDS
        self._spare.end()
        groups = [each.group for each in (*self._children.values(), *self._dead) if each.group is not None]
        while time.monotonic() < deadline:
            # Every group is killed before the first result counts.
            empty = [group.kill() for group in groups]
            quiet = limits.kill_strays(())
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if quiet and all(empty):
                break
            time.sleep(limits.KILLING_SECONDS)
        if self._groups is not None:
            self._groups.remove()


def main() -> None:
    # No collection runs here: hosts share these pages as long as no collection writes to them.
    gc.disable()
    parser = argparse.ArgumentParser(prog="cortexfs.host.forkserver")
    parser.add_argument("fd", type=int)
    parser.add_argument("--serve", default=SERVE)
    parser.add_argument("--preload", default=PRELOAD)
    parser.add_argument("--state", default="")
    parser.add_argument("--sealed", action="store_true")
    parser.add_argument("--daemon", type=int, default=os.getppid())
    options = parser.parse_args()
    control = socket.socket(fileno=options.fd)
    control.set_inheritable(False)
    syscalls.set_name(HOST_NAME)  # the kernel's name for a sealed program is a descriptor's number
    serve: start.Serve = pkgutil.resolve_name(options.serve)
    preloaded = importlib.import_module(options.preload)
    gc.freeze()
    ground = view.Ground(options.sealed)
    if options.state:
        state = os.path.realpath(options.state)
        mark = leftovers.name_of(state)
        leftovers.end(mark)
        ground = view.Ground(options.sealed, state, str(kept_of(Path(options.state))), mark)
    leaving: start.Leaving | None = getattr(preloaded, "before_leaving", None)
    begin = functools.partial(start.start, serve=serve, ground=ground, leaving=leaving)
    ForkServerProcess(control, begin, options.daemon).run()


if __name__ == "__main__":
    main()
