"""The daemon: read this file first.

`run` creates the parts and joins them, in the order in which they need each other:

    pool            hosts; starter and fork server begin before a file is open that hosts must not inherit
    state           files that outlive the daemon: controls, logs of runs
    tree            the tree under the mount point (core/tree/tree.py shows it)
    plugins         `enabled`: the enabled plugins, checked, and copied to where hosts may read them;
                    `catalog`: asks them for their tools; the registry is replaced as a whole
    models          providers' files become objects; drivers answer for them; `local`: this machine's models
    agents          the loop of an agent, and its permissions
    run             `.run.sock`: a runner connects, a Relay copies between it and a host
    sessions        the logs of conversations; talk/conversations.py answers in them
    talk            `.sock`: a client connects, a Connection reads its requests and sends it events

One nursery holds every task. Stopping: no new runs, a short grace, cancel, then sockets, hosts and
mount, in that order (a bound socket pins the mount).
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pyfuse3
import trio

from cortexfs.agents.loop import Agents
from cortexfs.config import Config
from cortexfs.core import hostcalls, starts
from cortexfs.core.errors import EXIT_OK, Fault, code_of, exit_status
from cortexfs.core.registry import Key, Object, Registry
from cortexfs.core.tree.places import ALLOWED, COMMANDS, EVENTS, TEXTS
from cortexfs.daemon import limits as terms
from cortexfs.daemon import signals, status
from cortexfs.daemon import starts as daemonstarts
from cortexfs.daemon.agent_ports import AgentWorld
from cortexfs.daemon.allowed import AllowedTools
from cortexfs.daemon.confined import Scripts
from cortexfs.daemon.reload import Reload
from cortexfs.daemon.selfconfinement import give_up
from cortexfs.daemon.team import Team
from cortexfs.hooks.middleware import Middleware
from cortexfs.hooks.turn_events import Turns
from cortexfs.linux import heap, mount_table, own_descriptors
from cortexfs.linux.service_manager import ServiceManager
from cortexfs.linux.syscalls import PR_SET_DUMPABLE, prctl
from cortexfs.models.ask.driver import Driver
from cortexfs.models.drivers import Drivers
from cortexfs.models.exchange.as_user import AsUser
from cortexfs.models.local.driver import Locals
from cortexfs.models.local.engine import Engines, EngineTerms
from cortexfs.models.local.weights import DRIVER
from cortexfs.models.meter import Meter
from cortexfs.models.own_providers import MANAGED, OwnProviders
from cortexfs.models.plugin_model import DRIVER as PLUGGED
from cortexfs.models.plugin_model import PluginModels
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.secrets import Secrets
from cortexfs.peers import safe_sockets, trace
from cortexfs.peers.guests import Arrivals
from cortexfs.plugins import mcp_logins, mcp_servers, mcp_watch
from cortexfs.plugins.catalog import Catalog
from cortexfs.plugins.command_file import Commands
from cortexfs.plugins.description_cache import Descriptions
from cortexfs.plugins.enabled import Offers
from cortexfs.plugins.texts import PluginTexts
from cortexfs.pool.host import Host
from cortexfs.pool.pool import Pool
from cortexfs.pool.run_table import Runs
from cortexfs.pool.starter import Starter
from cortexfs.pool.starter_ends import StarterEnds
from cortexfs.pool.tool_call import ToolCalls
from cortexfs.run import shebang
from cortexfs.run.listener import Exec, ExecTree
from cortexfs.sessions.layout import Address, Space
from cortexfs.sessions.store import Sessions
from cortexfs.state.control_store import ControlStore
from cortexfs.state.run_logs import Logs
from cortexfs.state.usage_ledger import UsageLedger
from cortexfs.talk.conversations import Conversations
from cortexfs.talk.listener import Sockets, listen
from cortexfs.tree import kernel, readers
from cortexfs.tree.forgetting import Forgetting
from cortexfs.tree.fuse import Filesystem

GRACE_SECONDS = 0.5
LEAVE_SECONDS = 0.2  # for clients to read their last frames
SWEEP_SECONDS = 15.0
GC_THRESHOLDS = (20_000, 20, 20)  # measured: 6 % less CPU a call than with the defaults

log = logging.getLogger("cortexfs")


def run(
    root: Path,
    config: Config,
    starter: StarterEnds,
    ready: Callable[[str | None], None],
    manager: ServiceManager | None = None,
) -> int:
    """Serve `root` until it is unmounted or the daemon is stopped. Returns an exit status. `ready` gets None
    when the mount answers, the reason if it cannot, and before that an empty text at each step. The caller
    holds the state's lock."""
    sys.setswitchinterval(0.001)  # a thread that makes a large request must not hold the tree up for 5 ms
    try:
        trace.begin(os.environ.get("CTX_TRACE", ""), config.state)
        daemon = Daemon(root, config, Starter(starter), lambda: ready(""), manager)
        return daemon.serve(ready)
    except Fault as fault:
        ready(fault.message)
        return exit_status(fault.code)
    except ExceptionGroup as problems:  # raised by the loop
        only = _only_fault(problems)
        ready(only.message)
        return exit_status(only.code)


def _only_fault(problems: ExceptionGroup[Exception]) -> Fault:
    """Returns the first Fault if there are only Faults. Else raises the problems again."""
    faults, others = problems.split(Fault)
    if faults is None or others is not None:
        raise problems
    found: BaseException = faults
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Fault)
    return found


class Daemon:
    """The parts, and how they begin and end. Each part is an attribute, as only this class joins them."""

    def __init__(
        self,
        root: Path,
        config: Config,
        starter: Starter,
        further: Callable[[], None],
        manager: ServiceManager | None = None,
    ) -> None:
        self.root = root
        self.manager = manager or ServiceManager({})
        self.config = config
        self.began = time.time()
        self.began_boottime = time.clock_gettime(time.CLOCK_BOOTTIME)  # steps of the clock do not change it
        self.bugs = status.Bugs()
        log.addHandler(self.bugs)
        runner = shebang.runner()
        limits = config.limits
        hosts = hostcalls.HostLimits(limits.memory_mib << 20, limits.processes, limits.open_files)
        self.starter = starter
        self.pool = Pool(hosts, self.starter)
        self.logs = Logs(config.state / "log", limits.log_kib << 10)
        self.runs = Runs(self.logs, limits.calls_per_user, limits.messages_per_user)
        self.middleware = Middleware(self.pool, config.plugins.hook_failure)
        turns = Turns(self.middleware.hooks, self.middleware.events)
        self.pool.started = self._host_started
        self.catalog = Catalog(self.pool, Descriptions(config.state), further)
        self.offers = Offers(
            config, further, lambda folder: trio.from_thread.run(daemonstarts.signature, starter, folder)
        )
        self.texts = PluginTexts()
        self.commands = Commands(config.state, self.catalog.serving, self.offers.one)
        self._connections = terms.connections(limits.connections)  # of each kind, at most
        self.sessions = Sessions(
            config.state / "sessions",
            _report,
            removed=self._removed,
            vacate=lambda address: self.conversations.vacate(address),
            most=terms.most(config),
        )
        self.fs = Filesystem(
            store=ControlStore(config.state / "tree"),
            logs=self.logs,
            sessions=self.sessions,
            status=lambda: status.text(self),
            unlisted={COMMANDS: self.commands.text, TEXTS: self.texts.lines},
            shebang=shebang.line(runner),
            bin_targets={"ctx": shebang.program("ctx"), "cortexfs-object-runner": runner},
            tool_timeout=float(config.turn.tool_timeout_secs),
            state=config.state,
            forgotten=lambda key: self.logs.drop(*key),
            forget=partial(kernel.forget, names=Forgetting(own_descriptors.keep_only_mount)),
        )
        engine = config.engine
        engine_terms = EngineTerms(engine.idle_secs, streams=engine.streams, threads=engine.threads)
        self.engines = Engines(engine_terms, partial(self.starter.start, starts.ENGINE))
        self.locals = Locals(self.engines, self.fs.control)
        seconds = float(config.turn.tool_timeout_secs)
        plugged = PluginModels(self.pool, self.fs.control, seconds)
        makers = {DRIVER: self.locals.driver, PLUGGED: plugged.driver}
        self.as_user = AsUser(self.pool)
        find, control, clients = self.fs.tree.object_of, self.fs.control, self.as_user.clients
        meter = Meter(UsageLedger(self.logs.root), config.usage.limits, config.usage.known)
        self.drivers = Drivers(
            find, control, makers, heard=turns.model, as_user=clients, metered=meter.around
        )
        self.own = OwnProviders(
            config.state,
            self.as_user,
            lambda name: name in self.fs.tree.registry.within(""),
            lambda: self.reload.show_own(),
        )
        self.tools = ToolCalls(self.pool, seconds)
        self.world = AgentWorld(self)
        self.agents = Agents(self.world, turns.agent)
        self.drivers.agent = self.agents.driver
        self.conversations = Conversations(
            self.sessions,
            self.runs,
            self.drivers.of,
            config.agent.approval_secs,
            self._agent_key,
            turns.talked,
            turns.over,
        )
        self.sessions.on_loss(self.conversations.log_lost)
        self.arrivals = Arrivals()
        self.sockets = Sockets(
            self.fs.bindings,
            self.conversations,
            self.pool,
            self._connections,
            self.arrivals,
            config.callers.serve_sandboxed,
        )
        self.watch = mcp_watch.Watch(self.catalog, lambda: self.reload.renew())
        self.secrets = Secrets(config.state, partial(daemonstarts.key, self.starter))
        self.servers = mcp_servers.Servers(config.directory, config.state)
        self.providers = Providers(config.directory, config.state)
        self.logins = mcp_logins.Logins(self.servers, lambda: self.reload.renew())
        self.reload = Reload(self)
        self.team = Team(self)
        self._stop = trio.Event()

    def serve(self, ready: Callable[[str | None], None]) -> int:
        # Keys are in this memory: no core of it is written, and no other process of this user can read it.
        # Children are programs of their own, and dumpable as usual (prctl(2): execve sets it back).
        prctl(PR_SET_DUMPABLE, 0)
        options = {*pyfuse3.default_options, "fsname=cortexfs", "subtype=cortexfs"}
        if os.geteuid() == 0:
            options.add("allow_other")
        try:
            pyfuse3.init(self.fs, str(self.root), options)
        except RuntimeError as error:
            self.pool.stop()
            raise Fault("EHOSTDOWN", f"{self.root} cannot be mounted: {error}; see: ctx doctor") from None
        try:
            self.pool.device = mount_table.device(self.root)
            self.starter.mounted(self.pool.device)
            channels = [self.starter.control.fileno(), self.starter.looks.fileno()]
            give_up(self.config.state, self.config.directory, channels)
            try:
                self.fs.load(Registry({}))
            except OSError as problem:
                why = f"{problem.filename} cannot be used: {problem.strerror}"
                raise Fault(code_of(problem.errno), why) from None
            # Objects of now stay for good; a call makes a few hundred, and cycles among them are rare.
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            gc.enable()
            heap.give_back()
            trio.run(self._main, ready, strict_exception_groups=True)
        finally:
            self.logs.flush()
            daemonstarts.end(self.pool, self.root)
        return EXIT_OK

    def _host_started(self, host: Host) -> None:
        self.middleware.events.started(host)
        self.watch.began(host)

    async def _main(self, ready: Callable[[str | None], None]) -> None:
        async with trio.open_nursery() as services:
            services.start_soon(self._until, readers.serve)  # it returns when the mount is unmounted
            for task in (self._begin, self.pool.run, self.logs.run, self._sweep, self.manager.keep_telling):
                services.start_soon(task)
            await services.start(signals.hear, self._stop.set, self.reload.again)
            # `umount -l` by hand ends the daemon too; else the bound socket would keep a hidden mount alive.
            services.start_soon(self._until, mount_table.wait_until_gone, self.root)
            await services.start(self.middleware.events.run)
            await services.start(self.engines.run)
            self.as_user.calls = services
            for part in (self.sessions, self.conversations, self.sockets, self.watch, self.logins):
                await services.start(part.run)
            services.start_soon(terms.retain, self.sessions, self.config)
            await self.reload.begin()
            services.start_soon(self.reload.check_agents)
            services.start_soon(self.team.run)
            listener = await listen(self.starter, self.fs.bindings)
            with safe_sockets.closing(listener):
                async with trio.open_nursery() as calls_:
                    fs, world = self.fs, self.world
                    tree = ExecTree(
                        str(self.root),
                        fs.object_of,
                        self.commands.chosen,
                        self._driver,
                        world.admit,
                        world.under,
                        fs.own.renew,
                        {
                            ALLOWED: AllowedTools(world, lambda: fs.tree.registry).answer,
                            EVENTS: self.middleware.events.recent.answer,
                        },
                        world.nested.of,
                        Scripts(world),
                    )
                    settings = terms.of_exec(self.config, self._connections)
                    exec_ = Exec(tree, self.pool, self.runs, settings, self.arrivals, self.middleware)
                    calls_.start_soon(exec_.serve, listener, calls_)
                    calls_.start_soon(self.arrivals.run)
                    ready(None)
                    await self._stop.wait()
                    await self._drain()
                    calls_.cancel_scope.cancel()
            await self.middleware.events.end(self.pool.live)
            await self.drivers.apply({})
            await self.engines.end()
            services.cancel_scope.cancel()

    async def _until(self, ended: Callable[..., Awaitable[object]], *about: object) -> None:
        await ended(*about)
        self._stop.set()

    async def _begin(self) -> None:
        """Serve the starter until it ends. Without it nothing can be started or unmounted, so we end, too."""
        await self.starter.run()
        log.error("the process that starts others has ended; the daemon ends, too")
        self._stop.set()

    async def _drain(self) -> None:
        """Refuse new runs; give active ones a moment to end by themselves."""
        self.manager.tell("STOPPING=1")
        self.sockets.close()
        self.conversations.close()
        with trio.move_on_after(GRACE_SECONDS):
            await self.runs.drained()
        with trio.move_on_after(GRACE_SECONDS):
            await self.conversations.stop()
        with trio.move_on_after(LEAVE_SECONDS):
            await self.sockets.let_go()

    def _driver(self, object_: Object, use: str) -> Driver:
        return self.own.answer if object_ is MANAGED else self.drivers.chosen(object_, use)

    def _removed(self, address: Address) -> None:
        self.conversations.removed(address)
        self.team.removed(address)

    def _agent_key(self, address: Address) -> Key:
        """Returns the agent of these sessions. In a home, its user's own agent of that name comes first."""
        space = address.space
        uid = None if space == Space.shared() else space.uid
        return self.fs.tree.registry.key_of(address.class_, address.object, uid)

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_SECONDS)
            self.pool.sweep(self.config.limits.idle_secs)


def _report(address: Address, remark: str) -> None:
    log.warning("session %s: %s", "/".join(address.parts), remark)
