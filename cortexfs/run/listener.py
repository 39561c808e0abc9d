"""The service for runners: one connection to `.run.sock` is one run of one object (abi.md 4).

Main path: `Exec.serve` accepts; `_converse` reads the greeting and finds the caller and the object. Requests
that need no run are answered here. A tool's run is a Relay, a model's a ModelRun.
Rules: the caller is the process that connected, never one that the greeting names. Nothing here touches a
path for a caller. Every conversation ends in an exit status, unless the runner has gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
import trio

from cortexfs.core import hostcalls, wire
from cortexfs.core.arguments import dryrun, usage
from cortexfs.core.arguments.schema import shape_of
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import HookedCall
from cortexfs.core.hostcalls import Identity
from cortexfs.core.mcp_session import refuse_agents
from cortexfs.core.registry import Object
from cortexfs.core.tree.places import COMMANDS, CONFINED, OWN
from cortexfs.hooks.middleware import Middleware, MiddlewareCall
from cortexfs.hooks.registry import Site
from cortexfs.models.ask.driver import Driver, Who
from cortexfs.models.own_providers import MANAGED
from cortexfs.peers import safe_sockets, trace
from cortexfs.peers.caller import Caller
from cortexfs.peers.guests import Arrivals, Guest, Guests
from cortexfs.peers.prompt import ShortConversations, in_task, is_readable
from cortexfs.peers.streams import RECEIVE, receive, send
from cortexfs.plugins.described import CALL, COMMAND_CLASS
from cortexfs.pool.callers import Look
from cortexfs.pool.pool import Pool
from cortexfs.pool.run_table import ObjectRun, Runs
from cortexfs.run import shebang
from cortexfs.run.hooked_tool_run import HookedRelay, NestedRuns
from cortexfs.run.model_run import ModelRun
from cortexfs.run.output import JsonlVoice, Voice, printed, voice_of
from cortexfs.run.runner import farewell
from cortexfs.run.tool_run import Relay

log = logging.getLogger("cortexfs")


class ExecTerms(NamedTuple):
    tool_timeout: float
    output_bytes: int
    connections: int
    depth: int
    serve_sandboxed: Callable[[int], bool]


class ScriptCalls(Protocol):
    """The scripts of clients, and the objects that they run (daemon/confined.py)."""

    async def begin(
        self, caller: Caller, patterns: Sequence[bytes], environment: dict[bytes, bytes]
    ) -> tuple[Object, Caller, dict[bytes, bytes]]: ...
    def inside(self, object_: Object, caller: Caller) -> Caller: ...


class ExecTree(NamedTuple):
    """The parts of the tree that exec uses."""

    root: str
    find: Callable[[int, int], Object | None]  # by inode (which any process can send), for a uid
    command: Callable[[list[bytes], int], Awaitable[tuple[Object, list[bytes]]]]  # by its words, for a uid
    driver: Callable[[Object, str], Driver]  # the driver that answers for a model or an agent, by its use
    # Raises a Fault where a run under a label may not run this object with these arguments.
    admit: Callable[[Object, Identity, list[bytes]], None]
    # Returns the identity with fewer rights, for a call from another machine (wire.UNDER).
    under: Callable[[Object, Identity, str], Awaitable[Identity]]
    renew: Callable[[Object, bytes], Awaitable[None]]  # the comment of a user's own script has changed
    # Files that are answered without a run, by inode: the lines for this caller, chosen by its arguments.
    files: Mapping[int, Callable[[Identity, list[bytes]], Awaitable[bytes]]]
    nested: Callable[[str], NestedRuns | None]  # the agent's call that runs in a host, by an Identity.call
    scripts: ScriptCalls


class _Call(NamedTuple):
    """One call: its caller, its object, and its circumstances."""

    object_: Object
    caller: Caller
    guest: Guest
    stream: socket.socket
    voice: Voice
    arguments: list[bytes]
    umask: int
    environment: dict[bytes, bytes]

    def alone(self) -> _Call:
        """Returns the same call, for a host that serves other calls as well. Only the built-in tools keep the
        caller's scratch folder, as they consist of the same code as the tool that the caller is in."""
        identity, plugin = self.caller.identity, self.object_.plugin
        scratch = identity.scratch if plugin is not None and plugin.name == "builtin" else ""
        identity = msgspec.structs.replace(identity, call="", scratch=scratch)
        return self._replace(caller=self.caller._replace(identity=identity))


class Exec:
    """The service behind `.run.sock`."""

    def __init__(
        self,
        tree: ExecTree,
        pool: Pool,
        runs: Runs,
        settings: ExecTerms,
        arrivals: Arrivals,
        middleware: Middleware | None = None,
        strict: bool = False,
    ) -> None:
        self._strict = strict
        self._arrivals = arrivals
        self._middleware = middleware or Middleware(pool)
        self._tree = tree
        self._pool = pool
        self._runs = runs
        self._settings = settings
        self._guests = Guests(settings.connections)

    async def serve(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept for ever. Connections over the limit are closed, which the runner reports."""
        prompt = ShortConversations(nursery)

        def begin(stream: socket.socket, guest: Guest) -> Callable[[], object]:
            look = Look(self._pool.looker, stream, self._settings.serve_sandboxed)
            return partial(prompt.begin, self._connection(stream, guest, look))

        nursery.start_soon(prompt.run)
        await self._arrivals.welcome(listener, self._guests, begin)

    async def _connection(self, stream: socket.socket, guest: Guest, look: Look) -> None:
        """Serve one connection, guarded: a bug ends its own connection and no other."""
        try:
            await self._converse(stream, guest, look)
        except OSError:
            pass  # the runner is gone
        except Exception:  # it would end all tasks of the nursery; the log has it
            log.exception("a bug ended a client's connection")
            if self._strict:
                raise
        finally:
            look.close()
            safe_sockets.close(stream)
            self._guests.leave(guest)
            self._pool.pairs.refill()

    async def _converse(self, stream: socket.socket, guest: Guest, look: Look) -> None:
        voice: Voice | None = None
        try:
            parts = await _greeting(stream, guest)
            if parts is None:
                return
            greeting, arguments, environ, under = parts
            object_ = self._tree.find(greeting.inode, guest.uid)
            if greeting.inode == COMMANDS:
                await in_task()
                voice = voice_of(None, greeting.flags, environ)
                object_, arguments = await self._tree.command(arguments, guest.uid)
            elif greeting.inode == OWN:
                object_ = MANAGED
            elif tell := self._tree.files.get(greeting.inode):
                await _send_lines(tell, stream, look, arguments)
                return
            elif greeting.inode == CONFINED:
                await in_task()
                with await look.caller() as caller:
                    voice = voice_of(None, greeting.flags, environ)
                    shell, caller, environ = await self._tree.scripts.begin(caller, arguments, environ)
                    call = _Call(shell, caller, guest, stream, voice, [], greeting.umask, environ)
                    await self._run(call, is_script=True)
                return
            voice = voice_of(object_, greeting.flags, environ)
            if object_ is None:
                raise Fault("ENOENT", "this object is gone from the mount, or is another user's; see: ctx ls")
            if not arguments and greeting.flags & wire.TTY_STDIN and _takes_nothing(object_):
                arguments = [b"{}"]  # abi.md 4.5
            if answer := self._without_running(object_, greeting, arguments):
                await send(stream, answer)
                return
            with await look.caller() as caller:
                if under:
                    identity = await self._tree.under(object_, caller.identity, under)
                    caller = caller._replace(identity=identity)
                umask = greeting.umask
                await self._run(_Call(object_, caller, guest, stream, voice, arguments, umask, environ))
        except Fault as fault:
            voice = voice or JsonlVoice("")
            await send(stream, voice.end("error", fault.code, fault.message) + farewell(fault))

    async def _run(self, call: _Call, is_script: bool = False) -> None:
        depth = self._settings.depth
        if call.caller.identity.depth > depth:
            raise Fault("EAGAIN", f"this call is over the limit of {depth} nested calls (limits.depth)")
        is_tool, identity = call.object_.class_ == "tool", call.caller.identity
        nested = self._tree.nested(identity.call) if identity.call else None
        if identity.call and nested is None:  # the program outlived its call, and is not heard any more
            raise Fault("ECANCELED", "the call of the agent that started this program has ended")
        nested = nested if is_tool else None
        call = call.alone() if identity.call else call
        if identity.script is not None and not is_script:
            refuse_agents("a script", call.environment)
            call = call._replace(caller=self._tree.scripts.inside(call.object_, call.caller))
        if identity.label:
            refuse_agents(identity.label, call.environment)
        if nested is None:
            self._admit(call, call.arguments)
        if is_tool or call.object_.class_ == COMMAND_CLASS:
            await self._tool(call, nested)
        else:
            await self._spoken(call)

    def _admit(self, call: _Call, arguments: list[bytes]) -> None:
        identity = call.caller.identity
        if identity.label:
            self._tree.admit(call.object_, identity, arguments)

    async def _tool(self, call: _Call, nested: NestedRuns | None) -> None:
        object_, caller = call.object_, call.caller
        if object_.plugin is None:
            raise Fault("EHOSTDOWN", f"{object_.name} cannot run: {object_.status}")
        dry = object_.dry_run_flag and dryrun.is_among(call.arguments)
        inner = nested.begin(object_, dry, caller.identity.depth - 1) if nested else None
        run = self._open(call, "agent" if inner else "exec")
        hooked = self._hooked(call, run) if self._middleware.hooks.of_tools else None
        if inner:
            inner.hooked = hooked
            identity = msgspec.structs.replace(caller.identity, delegates=inner.delegates, call=inner.token)
            caller = caller._replace(identity=identity)
        run.bytes_in = sum(map(len, call.arguments))
        relay = self._relay(call, run, inner or hooked, is_decided=inner is not None)
        timeout = object_.timeout or self._settings.tool_timeout
        invocation = hostcalls.Invocation(object_.extra.get(CALL, object_.name), None, str(run.uid), "exec")
        request = hostcalls.CallRequest(
            run.id, invocation, call.arguments, None, call.umask, call.environment
        )
        let_go = self._pool.people.keep(caller.identity, call.stream) if hooked else None
        try:
            if let_go:  # plugins may learn of this run after its caller has left
                await in_task()
                await self._pool.people.met(caller.identity)
            work = relay.work(self._pool, object_.plugin, request, caller, timeout)
            await relay.until_the_end(work)
            if inner:
                await inner.log_end()
            if relay.news and object_.home is not None and not caller.identity.label:
                await in_task()
                await self._tree.renew(object_, relay.news)
        finally:
            relay.close()
            if inner:
                inner.close()
            if let_go:
                let_go()
            self._runs.close(run, relay.fault)

    def _hooked(self, call: _Call, run: ObjectRun) -> MiddlewareCall | None:
        """Returns the call with its hooks, or None. A command is no tool, and has no hooks."""
        if call.object_.class_ != "tool":
            return None
        caller = call.caller
        site = Site(caller.identity, "", run.id, "", caller.cwd, call.stream, call.umask)
        return self._middleware.of(site, call.object_.name)

    def _relay(self, call: _Call, run: ObjectRun, hooked: HookedCall | None, is_decided: bool) -> Relay:
        most = self._settings.output_bytes
        if hooked is None:
            return Relay(call.stream, call.voice, run, most)

        def admit(changed: bytes) -> None:
            if not is_decided:
                self._admit(call, [changed])

        return HookedRelay(call.stream, call.voice, run, most, hooked, admit)

    async def _spoken(self, call: _Call) -> None:
        """Run a model or an agent."""
        await in_task()
        driver = self._tree.driver(call.object_, "exec")
        run = self._open(call)
        user = Who(call.caller.identity, _place(call.caller), run=run.id)
        let_go = self._pool.people.keep(user.identity, call.stream)
        answer = ModelRun(call.stream, call.voice, run, self._settings.output_bytes, user)
        try:
            await answer.until_the_end(answer.work(driver, call.arguments, call.guest))
        finally:
            let_go()
            self._runs.close(run, answer.fault)

    def _open(self, call: _Call, source: str = "exec") -> ObjectRun:
        run = self._runs.open(*call.object_.key, call.caller.identity.uid, source)
        call.voice.run = run.id
        return run

    def _without_running(self, object_: Object, greeting: wire.Hello, arguments: list[bytes]) -> bytes:
        """Returns the answers that need no run: to --help, and to no arguments on a terminal."""
        if arguments == [b"--help"]:  # abi.md 4.14
            schema = msgspec.json.decode(object_.schema)
            effects, dry = object_.capabilities.effects, object_.dry_run_flag
            text = usage.help_text(object_.name, object_.description, schema, effects, object_.class_, dry)
            return printed(wire.STDOUT, text.encode()) + farewell(None)
        if arguments or not greeting.flags & wire.TTY_STDIN:
            return b""
        if object_.class_ == "tool":
            text = usage.usage(object_.name, msgspec.json.decode(object_.schema))
            return printed(wire.STDERR, text.encode()) + farewell(Fault("EINVAL", ""))
        return self._chat(object_) if greeting.flags & wire.TTY_STDOUT else b""

    def _chat(self, object_: Object) -> bytes:
        """Returns the message that opens a conversation with a model or an agent (abi.md 4.6)."""
        words = (shebang.program("ctx"), "--root", self._tree.root, "chat", object_.path)
        return wire.message(wire.REPLACE, b"".join(os.fsencode(word) + b"\0" for word in words))


async def _send_lines(
    tell: Callable[[Identity, list[bytes]], Awaitable[bytes]],
    stream: socket.socket,
    look: Look,
    arguments: list[bytes],
) -> None:
    await in_task()
    with await look.caller() as caller:
        lines = await tell(caller.identity, arguments)
    await send(stream, printed(wire.STDOUT, lines) + farewell(None))


def _takes_nothing(object_: Object) -> bool:
    return object_.class_ == "tool" and not shape_of(msgspec.json.decode(object_.schema)).properties


def _place(caller: Caller) -> str:
    """Returns the name of the caller's working directory, without a look at the directory itself."""
    return "" if caller.cwd is None else os.readlink(f"/proc/self/fd/{caller.cwd}")


async def _greeting(
    stream: socket.socket, guest: Guest
) -> tuple[wire.Hello, list[bytes], dict[bytes, bytes], str] | None:
    """Returns a whole HELLO, or None if it takes too long. A HELLO that is too large raises a Fault."""
    hello = _Hello(guest)
    # Nearly always the HELLO is there by now, or comes in one piece. Then it costs no task and no time limit.
    with contextlib.suppress(BlockingIOError):
        hello.take(safe_sockets.receive(stream, RECEIVE))
    end = trio.current_time() + wire.GREETING_SECONDS
    if not hello.is_whole and await is_readable(stream, wire.GREETING_SECONDS):
        with contextlib.suppress(BlockingIOError):
            hello.take(safe_sockets.receive(stream, RECEIVE))
    if not hello.is_whole:
        await in_task()
        with trio.CancelScope(deadline=end):
            while not hello.is_whole:
                hello.take(await receive(stream))
    return hello.parts() if hello.is_whole else None


class _Hello:
    """Collects a HELLO, which may come in pieces."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._data = bytearray()
        self._greeting: wire.Hello | None = None

    def take(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError
        if trace.wire:
            trace.wire("a runner", "heard", data)
        self._data += data
        if self._greeting is None and len(self._data) >= wire.HELLO.size:
            self._greeting = wire.hello(bytes(self._data[: wire.HELLO.size]))
            self._guest.hold(self._greeting.size)

    @property
    def is_whole(self) -> bool:
        return self._greeting is not None and len(self._data) >= wire.HELLO.size + self._greeting.size

    def parts(self) -> tuple[wire.Hello, list[bytes], dict[bytes, bytes], str]:
        assert self._greeting
        arguments, environment = wire.strings(self._greeting, bytes(self._data[wire.HELLO.size :]))
        return self._greeting, arguments, wire.passed_on(environment), wire.under(environment)
