"""Answering the runner: one connection to `.run.sock` is one run of one object (abi.md 4).

Main path: `Exec.serve` accepts; `_converse` reads the greeting, learns who calls and which object is
meant; what needs no tool is answered here, the rest is a Relay.

Rules: the caller is who connected, never what the greeting says. Nothing here touches a path for a
caller. Every conversation ends in an exit status, unless the runner has gone.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec
import trio

from cortexfs import strangers
from cortexfs.caller import Caller, caller_of, peer_uid
from cortexfs.core import calls, usage, wire
from cortexfs.core.arguments import wants_help
from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object
from cortexfs.guests import Guest, Guests
from cortexfs.hosts import Pool
from cortexfs.relay import Limits, Relay, farewell, receive, send
from cortexfs.runs import Runs
from cortexfs.voice import Jsonl, Text, Voice

GREETING_SECONDS = 5.0
ACCEPT_PAUSE = 0.05

# What a tool may see of the caller's environment; the runner sends no more, docs/ctx.md lists it.
ENVIRONMENT = frozenset(
    b"PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM COLUMNS LINES NO_COLOR TMPDIR"
    b" CTX_OUTPUT CTX_ROOT".split()
)
# What a greeting says of how to run: arguments, umask, environment.
Said: TypeAlias = tuple[list[bytes], int, dict[bytes, bytes]]

log = logging.getLogger("cortexfs")


class Settings(Limits, Protocol):
    """What exec needs of the configuration."""

    @property
    def tool_timeout(self) -> float: ...
    @property
    def connections(self) -> int: ...
    @property
    def depth(self) -> int: ...


class Exec:
    """The service behind `.run.sock`."""

    def __init__(
        self, find: Callable[[int], Object | None], pool: Pool, runs: Runs, settings: Settings, strict: bool
    ) -> None:
        self._strict = strict
        self._find = find
        self._pool = pool
        self._runs = runs
        self._settings = settings
        self._guests = Guests(settings.connections)

    async def serve(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept for ever. Over the limit, connections are closed, which the runner reports."""
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                stream, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError:  # no file descriptors left: others must end first
                await trio.sleep(ACCEPT_PAUSE)
                continue
            stream.setblocking(False)
            guest = self._guests.enter(peer_uid(stream))
            if guest is None:
                strangers.close(stream)
                continue
            nursery.start_soon(self._connection, stream, guest)

    async def _connection(self, stream: socket.socket, guest: Guest) -> None:
        """The guard of this edge: a bug ends its own connection and nobody else's."""
        try:
            with strangers.closing(stream), contextlib.suppress(OSError):  # gone: nobody to tell
                await self._converse(stream, guest)
        except Exception:
            log.exception("a connection was ended by a bug")
            if self._strict:
                raise
        finally:
            self._guests.leave(guest)

    async def _converse(self, stream: socket.socket, guest: Guest) -> None:
        voice: Voice = Jsonl("")
        try:
            with trio.move_on_after(GREETING_SECONDS) as patience:
                greeting, arguments, environ = await _greeting(stream, guest)
            if patience.cancelled_caught:
                return
            object_ = self._find(greeting.inode)
            voice = _voice(object_.name if object_ else "ctx", greeting.flags, environ)
            if object_ is None:
                raise Fault("ENOENT", "this is no object of the mount (any more); see: ctx ls")
            if answer := _without_running(object_, greeting, arguments):
                await send(stream, answer)
                return
            with caller_of(stream, self._pool.by_pid) as caller:
                await self._run(stream, voice, object_, caller, (arguments, greeting.umask, environ))
        except Fault as fault:
            await send(stream, voice.end("error", fault.code, fault.message) + farewell(fault))

    async def _run(
        self, stream: socket.socket, voice: Voice, object_: Object, caller: Caller, said: Said
    ) -> None:
        if caller.identity.depth > self._settings.depth:
            raise Fault("EAGAIN", f"tools call tools {self._settings.depth} deep already, which is the limit")
        if object_.plugin is None:
            raise Fault("EHOSTDOWN", f"{object_.name} cannot run: {object_.status}")
        uid = caller.identity.uid
        run = self._runs.open(object_.class_, object_.name, uid, "exec")
        voice.run = run.id
        relay = Relay(stream, voice, run, self._settings)
        timeout = object_.timeout or self._settings.tool_timeout
        arguments, umask, environ = said
        invocation = calls.Invocation(object_.name, None, str(uid), "exec")
        call = calls.Call(run.id, invocation, arguments, None, umask, environ)
        try:
            await relay.answer(self._pool, object_.plugin, call, caller, timeout)
        finally:
            self._runs.close(run, relay.status, relay.fault)


async def _greeting(
    stream: socket.socket, guest: Guest
) -> tuple[wire.Hello, list[bytes], dict[bytes, bytes]]:
    """Read a whole HELLO: who says it in pieces, or too much, is not let further."""
    data = await _more(stream)
    while len(data) < wire.HELLO.size:
        data += await _more(stream)
    greeting = wire.hello(data[: wire.HELLO.size])
    guest.hold(greeting.size)
    words = bytearray(data[wire.HELLO.size :])
    while len(words) < greeting.size:
        words += await _more(stream)
    arguments, environment = wire.strings(greeting, bytes(words))
    return greeting, arguments, _environment(environment)


async def _more(stream: socket.socket) -> bytes:
    data = await receive(stream)
    if not data:
        raise ConnectionResetError
    return data


def _environment(strings: list[bytes]) -> dict[bytes, bytes]:
    pairs = (string.partition(b"=") for string in strings)
    return {name: value for name, _, value in pairs if name in ENVIRONMENT or name.startswith(b"LC_")}


def _voice(name: str, flags: int, environ: dict[bytes, bytes]) -> Voice:
    """abi.md 4: JSONL when stdout is not a terminal, text on one; CTX_OUTPUT decides otherwise."""
    terminal = bool(flags & wire.TTY_STDOUT)
    chosen = environ.get(b"CTX_OUTPUT", b"")
    if chosen == b"text" or (terminal and chosen != b"jsonl"):
        return Text(name, terminal, bool(flags & wire.TTY_STDERR))
    return Jsonl(name)


def _without_running(object_: Object, greeting: wire.Hello, arguments: list[bytes]) -> bytes:
    """The answers that need no tool: --help, and usage on a terminal without arguments."""
    if wants_help(arguments):
        schema = msgspec.json.decode(object_.schema)
        effects = object_.capabilities.effects
        text = usage.help_text(object_.name, object_.description, schema, effects, object_.class_)
        return _printed(wire.STDOUT, text) + farewell(None)
    if not arguments and greeting.flags & wire.TTY_STDIN:
        text = usage.usage(object_.name, msgspec.json.decode(object_.schema))
        return _printed(wire.STDERR, text) + farewell(Fault("EINVAL", ""))
    return b""


def _printed(kind: int, text: str) -> bytes:
    """A text that may be longer than a message, as that of a large schema."""
    data = text.encode()
    parts = (data[start : start + wire.MAX_TEXT] for start in range(0, len(data), wire.MAX_TEXT))
    return b"".join(wire.message(kind, part) for part in parts)
