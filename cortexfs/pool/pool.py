"""The hosts that run tool code as their callers: one per plugin and identity, started on first use.

Main path: `Pool.acquire` returns a live host, `Host.open` opens one call on it (host.py). The fork server
makes the processes, kills them and reports their ends; this side only assigns hosts to callers.

Rules: everything between two awaits is atomic. A caller is counted before it waits, so a host in use is never
dismissed. A host that is stuck, broken or replaced is retired: it gets no new calls. It ends when its other
calls have ended, each of which has a limit of its own. It is asked to end, as it may have state to let go of.
A stuck host is killed, and a stopped one is killed at once. A host that does not begin a call, as it is
stopped or a tool keeps its interpreter, is set aside. Another host serves in its place until it has come to
that call. Then it serves again with the state that it holds. The fork server reads the identity of a host
from a connection of its caller: the call's own, or one that is kept (people.py).
This file must never know of frames, runners or the tree.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping

import trio

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.linux.subordinates import person_of
from cortexfs.peers import safe_sockets
from cortexfs.peers.prompt import in_task
from cortexfs.pool.callers import Looker
from cortexfs.pool.fork_client import ForkServer
from cortexfs.pool.host import Host, Pairs
from cortexfs.pool.people import People
from cortexfs.pool.printed import Printed
from cortexfs.pool.starter import Starter

RETIRED_SECONDS = 30.0  # for an idle host that was asked to end
# For idle hosts when the daemon ends: a library may run its plugin_drop, but none may delay the end.
LEAVE_SECONDS = 0.5
END_SECONDS = 5.0  # for a host that is killed
SPAWN_SECONDS = 10.0
# A caller can make any number of namespaces; each would get a host of some MiB.
HOSTS_PER_USER = 32
PATIENCE = 30.0  # seconds that a call waits for a host
LOOK = 1.0  # seconds after which a waiting call looks by itself


def _share(identity: hostcalls.Identity) -> tuple[int, str, bool]:
    """Returns the key of the hosts that share a limit: a user's own, and those of all agents that work for
    the user. Each working directory of an agent makes another host. The hosts that describe plugins share a
    limit of their own, so that no other host delays them."""
    confined = identity.view is not None
    return person_of(identity.uid), "" if confined else identity.label, confined


def _ends_idle(plugin: hostcalls.Plugin) -> bool:
    """Returns True for hosts of the built-in tools, and of JavaScript, whose Deno takes 50 MiB. A plugin with
    hooks is excluded, as it may have something to remember."""
    return plugin.name == "builtin" or (plugin.kind == hostcalls.ESM and not plugin.hooks)


class Pool:
    """Hosts by plugin and identity. Its attributes are the hosts by each of their keys, the hosts that are
    set aside, and the processes that serve them all."""

    def __init__(self, limits: hostcalls.HostLimits, starter: Starter) -> None:
        self._limits = limits
        self.starter = starter
        self._printed = Printed()
        self._forks = ForkServer(self.starter, self._printed)
        self.people = People(self._forks.send)
        self._hosts: dict[tuple[hostcalls.Plugin, hostcalls.Identity], Host] = {}
        self._aside: dict[tuple[hostcalls.Plugin, hostcalls.Identity], Host] = {}
        self._all: dict[int, Host] = {}
        self._waiting: dict[int, trio.lowlevel.ParkingLot] = {}  # the calls that wait for a host, by uid
        self.by_pid: dict[int, Host] = {}  # a caller inside one of these is a nested caller
        self.looker = Looker(self.starter, self.by_pid)
        self.pairs = Pairs()
        self._number = 0
        self.started: Callable[[Host], None] = lambda host: None  # is called with each host that begins
        self.remote: Callable[[hostcalls.Plugin, hostcalls.Identity], Host] | None = None  # of other machines
        self.device = 0  # of the mount, once there is one: the only mount that confined hosts may reach

    def __len__(self) -> int:
        return len(self._all)

    async def run(self) -> None:
        """Receive from the fork server. When it dies, its hosts are dead, and a new one takes its place."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.looker.run)
            nursery.start_soon(self._printed.run)
            await self._forks.run(self._handle, self._note_loss, self.people.introduce)
            nursery.cancel_scope.cancel()

    def _note_loss(self) -> None:
        """Note that the fork server has ended, and every host with it."""
        for host in list(self._all.values()):
            self._note_end(host, -signal.SIGKILL)

    @property
    def plugins(self) -> set[hostcalls.Plugin]:
        """Returns the plugins of all hosts, even of a host that only finishes its calls."""
        return {host.plugin for host in self._all.values()}

    @property
    def live(self) -> list[Host]:
        """Returns the hosts that take calls."""
        for key in list(self._aside):
            self._look_aside(key)
        return list(self._hosts.values())

    def _handle(self, message: hostcalls.FromForkServer) -> None:
        if isinstance(message, hostcalls.Met):
            self.people.note_read(message.number)
            return
        host = self._all.get(message.host)
        if host is None:
            return
        if isinstance(message, hostcalls.HostExit):
            self._note_end(host, message.status)
        elif message.fault is not None:
            host.fault = Fault(*message.fault)
            self._note_end(host, None)
        else:
            host.pid = message.pid
            self.by_pid[host.pid] = host
            host.ready.set()
            self.started(host)
            if host.retired and not host.calls:  # its caller gave up waiting
                host.end()

    def _note_end(self, host: Host, status: int | None) -> None:
        host.status = status
        host.last_words = self._printed.end(host.errors)
        self.retire(host)
        del self._all[host.number]
        if self.by_pid.get(host.pid) is host:
            del self.by_pid[host.pid]
        host.control.close()
        host.ready.set()
        host.exited.set()

    def retire(self, host: Host) -> None:
        """Give the host no more calls. It ends with its last call."""
        host.retired = True
        key = (host.plugin, host.identity)
        if self._hosts.get(key) is host:
            del self._hosts[key]
        if self._aside.get(key) is host:
            del self._aside[key]
        host.drop_probe()

    def set_aside(self, host: Host, probe: socket.socket) -> None:
        """Give the host no calls until it comes to the call that was taken back: then `probe` ends."""
        key = (host.plugin, host.identity)
        if host.aside is not None or host.retired:
            safe_sockets.close(probe)
            return
        host.aside = probe
        if self._aside.setdefault(key, host) is not host:  # a host that has served longer is aside already
            self.retire(host)
        elif self._hosts.get(key) is host:
            del self._hosts[key]

    def _look_aside(self, key: tuple[hostcalls.Plugin, hostcalls.Identity]) -> None:
        """Let the host that was set aside serve again, if it can, in place of its deputy."""
        host = self._aside[key]
        if not host.is_alive:
            self.retire(host)
        elif host.is_back():
            del self._aside[key]
            host.drop_probe()
            deputy = self._hosts.get(key)
            if deputy is not None:
                self._let_go_of(deputy)
            self._hosts[key] = host

    def is_warm(self, plugin: hostcalls.Plugin, identity: hostcalls.Identity) -> bool:
        """Returns True if `acquire` does not have to wait."""
        if plugin.kind == hostcalls.TEAM:
            return True
        host = self._hosts.get((plugin, identity))
        return host is not None and host.ready.is_set()

    async def acquire(
        self, plugin: hostcalls.Plugin, identity: hostcalls.Identity, connection: socket.socket | None = None
    ) -> Host:
        """Returns a live host for this plugin and caller. `connection` is the caller's, unless kept."""
        if plugin.kind == hostcalls.TEAM:
            if self.remote is None:
                raise Fault("EHOSTDOWN", "this machine is in no team now")
            return self.remote(plugin, identity)
        if self._aside and (plugin, identity) in self._aside:
            self._look_aside((plugin, identity))
        host = self._hosts.get((plugin, identity))
        if host is not None and not host.is_alive:
            self.retire(host)
            host = None
        is_ours = host is None
        host = host or self._spawn(plugin, identity, connection)
        host.calls += 1
        try:
            await self._await_start(host)
        except Fault:
            self.release(host)
            if is_ours or connection is None:
                raise
            # It was started for another caller, who may have left. This caller is there.
            return await self.acquire(plugin, identity, connection)
        except BaseException:  # also a cancellation: the call goes off the host's count
            self.release(host)
            raise
        return host

    async def acquire_for(
        self, plugin: hostcalls.Plugin, identity: hostcalls.Identity, connection: socket.socket | None = None
    ) -> Host:
        """Do the same. For an agent, as for its tools, it waits; a person gets EAGAIN at once."""
        if identity.view is None:
            return await self.acquire(plugin, identity, connection)
        return await self.acquire_in_turn(plugin, identity)

    async def acquire_in_turn(self, plugin: hostcalls.Plugin, identity: hostcalls.Identity) -> Host:
        """Do the same as soon as not all hosts of the user are at work. Raises EAGAIN after PATIENCE."""
        deadline = trio.current_time() + PATIENCE
        while True:
            try:
                return await self.acquire(plugin, identity)
            except Fault as fault:
                if fault.code != "EAGAIN" or trio.current_time() >= deadline:
                    raise
            waiting = self._waiting.setdefault(identity.uid, trio.lowlevel.ParkingLot())
            try:
                with trio.move_on_at(min(deadline, trio.current_time() + LOOK)):  # a host's end wakes none
                    await waiting.park()
            finally:
                if not waiting and self._waiting.get(identity.uid) is waiting:
                    del self._waiting[identity.uid]

    async def _await_start(self, host: Host) -> None:
        if not host.ready.is_set():
            await in_task()
            with trio.move_on_after(SPAWN_SECONDS):
                await host.ready.wait()
        if not host.ready.is_set():
            self.retire(host)
        if host.fault is not None:
            raise Fault(host.fault.code, host.fault.message)
        if host.pid == 0 or host.exited.is_set():
            raise Fault("EHOSTDOWN", f"the host of the plugin {host.plugin.name} did not start")

    def _spawn(
        self, plugin: hostcalls.Plugin, identity: hostcalls.Identity, connection: socket.socket | None
    ) -> Host:
        self._make_room(identity)
        self._number += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.shutdown(socket.SHUT_RD)  # a host has nothing to send here, and could send descriptors
        errors, writer = os.pipe()
        host = Host(self._number, (plugin, identity), ours, self._kill, self.pairs, errors)
        person = self.people.number(identity) if connection is None else 0
        connections = [] if connection is None else [connection.fileno()]
        self._printed.add(errors)
        try:
            with theirs, open(writer, "wb"):
                spawn = hostcalls.Spawn(host.number, plugin, identity, self._limits, self.device, person)
                self._forks.send(spawn, [theirs.fileno(), writer, *connections])
        except Fault:
            self._printed.end(errors)
            ours.close()
            raise
        self._hosts[plugin, identity] = self._all[host.number] = host
        return host

    def _kill(self, number: int) -> bool:
        """Returns True if the order was sent. The fork server may be gone."""
        try:
            self._forks.send(hostcalls.KillHost(number))
        except Fault:
            return False
        return True

    def _make_room(self, identity: hostcalls.Identity) -> None:
        """Keep one user's hosts bounded: end an idle one, if possible one without a plugin's state."""
        uid, share = identity.uid, _share(identity)
        owned = [host for host in self._all.values() if _share(host.identity) == share]
        # Retired hosts take memory until they have ended, and a user may stop them to delay that.
        if len(owned) >= 2 * HOSTS_PER_USER:
            raise Fault("EAGAIN", f"{len(owned)} hosts of uid {uid} are still ending; try again")
        owned = [host for host in owned if not host.retired]
        if len(owned) < HOSTS_PER_USER:
            return
        idle = [host for host in owned if host.pid and not host.calls]
        if not idle:
            raise Fault("EAGAIN", f"uid {uid} has {len(owned)} hosts at work, which is the limit; try again")
        self._dismiss(min(idle, key=lambda host: (host.plugin.name != "builtin", host.idle_since)))

    def release(self, host: Host, stuck: bool = False, worn: bool = False) -> None:
        """Note that a call has ended. A stuck call did not let go of its thread: its host is replaced. A worn
        host, in which calls have left too much behind, is replaced too."""
        host.calls -= 1
        host.has_served = host.has_served or not stuck
        host.idle_since = trio.current_time()
        if worn:
            self.retire(host)
        if stuck:
            host.stuck = True
            self.retire(host)
            if host.is_stopped:  # its other calls wait for a stopped process
                host.was_stopped = True
                host.kill()
        if host.retired and not host.calls:
            host.kill() if host.stuck else host.end()
        if self._waiting and (waiting := self._waiting.get(host.identity.uid)):
            waiting.unpark()

    def _dismiss(self, host: Host) -> None:
        self.retire(host)
        host.idle_since = trio.current_time()
        host.end()

    def renew(self, plugins: Mapping[hostcalls.Plugin, hostcalls.Plugin]) -> list[Host]:
        """Move the hosts of each old plugin to the new one from now on. Returns these hosts."""
        hosts = [host for host in self._hosts.values() if host.plugin in plugins]
        for host in hosts:
            del self._hosts[host.plugin, host.identity]
            host.plugin = plugins[host.plugin]
            if (other := self._hosts.get((host.plugin, host.identity))) is not None:
                self._let_go_of(other)
            self._hosts[host.plugin, host.identity] = host
        return hosts

    def replace(self, keep: Callable[[hostcalls.Plugin], bool]) -> None:
        """Retire the hosts of all plugins but those that `keep` accepts. Running calls finish."""
        for host in [*self._hosts.values(), *self._aside.values()]:
            if not keep(host.plugin):
                self._let_go_of(host)

    def _let_go_of(self, host: Host) -> None:
        if host.calls:
            self.retire(host)
        else:
            self._dismiss(host)

    async def ended(self, is_chosen: Callable[[hostcalls.Identity], bool]) -> list[hostcalls.Identity]:
        """End the idle hosts of these identities. Returns the identities of the hosts that go on."""
        chosen = [host for host in self._all.values() if is_chosen(host.identity)]
        idle = [host for host in chosen if not host.calls]
        for host in idle:
            self.retire(host)
            host.kill()
        with trio.move_on_after(END_SECONDS):
            for host in idle:
                await host.exited.wait()
        return list({host.identity for host in chosen if not host.exited.is_set()})

    def sweep(self, idle_seconds: float) -> None:
        """End the unused hosts that end when idle, and the hosts that were asked to end and did not."""
        now = trio.current_time()
        for host in list(self._all.values()):
            idle = now - host.idle_since
            if host.calls or not host.pid:
                continue
            if host.retired and idle > RETIRED_SECONDS:
                host.kill()
            elif _ends_idle(host.plugin) and not host.retired and idle > idle_seconds:
                self._dismiss(host)

    def stop(self) -> None:
        """End every host, and the starter with all that it has started. May be repeated."""
        self.dismiss()
        self.starter.stop()

    def dismiss(self) -> None:
        """End every host. Idle hosts are asked first, and have at most `LEAVE_SECONDS`."""
        idle = [host for host in self._all.values() if host.pid and not host.calls]
        for host in idle:
            host.end()
        self._forks.hear_until(
            lambda: all(each.exited.is_set() for each in idle), self._handle, LEAVE_SECONDS
        )
        self._forks.close()
        self.pairs.close()
        self._note_loss()
        self._printed.close()
