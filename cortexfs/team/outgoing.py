"""Calls of this machine's users to objects of others: a host to the daemon, a client to the other machine.

Main path: `Outgoing.call` reads the request as a host does, and sends a proven `CallBegin`. It turns the
output of the other machine's runner into a host's messages to the daemon.
Rules: the daemon names the caller. The other machine's output is untrusted: it is decoded, and sent on in
messages that are made here. A machine that has not taken a call within BEGIN_SECONDS is away.
This file must never know how the other machine runs it.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
from collections.abc import Iterator
from functools import partial

import msgspec
import trio
from msgspec.structs import replace

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.lines import LineSplitter
from cortexfs.core.talk import requests
from cortexfs.peers.prompt import in_task
from cortexfs.team import keys, messages, subjects
from cortexfs.team.directory import Directory
from cortexfs.team.host_side import HostSide, arguments_of
from cortexfs.team.line import CallLine, CallLines, until_one_ends
from cortexfs.team.mapping import user_name
from cortexfs.team.messages import CallBegin, CallOpening
from cortexfs.team.nats_client import Client
from cortexfs.team.pools import Pools

BEGIN_SECONDS = 2.0
NAMES_SECONDS = 1.0  # how long names of users are cached: looking one up delays all calls

_pack = msgspec.msgpack.Encoder().encode

log = logging.getLogger("cortexfs")


class Outgoing:
    def __init__(self, client: Client, pools: Pools, directory: Directory) -> None:
        self._directory = directory
        self._client = client
        self._machine = client.name
        self._pools = pools
        self._names: dict[int, str] = {}  # of users, by uid
        self._names_end = 0.0
        self.lines = CallLines()

    async def call(self, opening: CallOpening, stream: socket.socket) -> None:
        """Make the whole call, until the daemon knows how it ended."""
        side = HostSide(stream)
        try:
            try:
                await self._call(opening, side)
            except Fault as fault:
                await side.say(_end(opening.class_, fault))
            except OSError:
                raise
            except Exception as error:  # untrusted input broke one call; the others go on
                log.error("a call of %s+%s has caused an error: %r", opening.name, opening.machine, error)
        except OSError:  # the daemon has given the call up
            return
        finally:
            stream.close()

    async def _call(self, opening: CallOpening, side: HostSide) -> None:
        request = await side.request()
        if request is None:
            return
        targets = self._pools.choose(opening.machine, opening.class_, opening.name)
        arguments = await arguments_of(side, request, targets[0].schema)
        if isinstance(request, hostcalls.Converse):
            talks, environment = True, {}
        else:
            talks, environment = False, messages.travelling(request.environment)
        caller = self._name(opening.uid), opening.label, opening.depth
        begin = CallBegin("", *caller, arguments, environment, b"", talks)
        for number, target in enumerate(targets, 1):
            try:
                await self._on(target.machine, opening, side, begin)
                return
            except _NotTakenError as not_taken:
                if number == len(targets):
                    raise not_taken.fault from None

    async def _on(self, machine: str, opening: CallOpening, side: HostSide, begin: CallBegin) -> None:
        """Make the call on this machine. Raises _NotTakenError if it has certainly not begun there."""
        run = secrets.token_hex(16)
        line = CallLine(self._client, subjects.run(machine, self._machine, run), machine)
        end = self.lines.begin(machine, run, line)
        try:
            incarnation = self._directory.incarnation_of(machine)
            self._begin(machine, opening, replace(begin, run=run, incarnation=incarnation))
            await self._await_begin(line, machine)
            is_agents = opening.class_ == "agent"
            conversion = _Frames() if is_agents else _Conversion(opening.class_)
            if line.has_heard(wire.EXIT):  # a short answer, all at once, so nothing has to be waited for
                await self._to_daemon(side, line, conversion)
            else:
                say = partial(self._from_daemon, side, line, is_agents)
                await until_one_ends(partial(self._to_daemon, side, line, conversion), say)
        finally:
            end()

    def _begin(self, machine: str, opening: CallOpening, begin: CallBegin) -> None:
        subject = subjects.call(machine, self._machine, opening.class_, opening.name)
        answers = subjects.run(self._machine, machine, begin.run)
        public = self._directory.key_of(machine)
        self._client.publish(subject, keys.prove(self._client.key, public, subject, _pack(begin)), answers)

    def _name(self, uid: int) -> str:
        now = trio.current_time()
        if now >= self._names_end:
            self._names.clear()
            self._names_end = now + NAMES_SECONDS
        if uid not in self._names:
            self._names[uid] = user_name(uid)
        return self._names[uid]

    async def _await_begin(self, line: CallLine, machine: str) -> None:
        if not await line.hears_soon():
            await in_task()
            with trio.move_on_after(BEGIN_SECONDS) as patience:
                await line.hears()
            if patience.cancelled_caught:
                self._cancel(line)
                why = f"{machine} has not answered within {BEGIN_SECONDS:g} s, and may have begun the call"
                raise Fault("EHOSTDOWN", why)
        try:
            first, *rest = await line.next()
        except Fault as fault:
            raise _NotTakenError(fault) if line.is_unheard else fault from None
        if first[0] == messages.REFUSED:
            raise _NotTakenError(_refused(first[1]))
        if first[0] != messages.BEGUN:
            raise Fault("EPROTO", f"{machine} answers a call before it has taken it")
        line.put_back(rest)

    def _cancel(self, line: CallLine) -> None:
        with contextlib.suppress(Fault):  # the connection is away, which ends the call there too
            line.say((messages.CANCEL, b""))

    async def _from_daemon(self, side: HostSide, line: CallLine, is_agents: bool) -> None:
        """Pass on standard input, of an agent a client's lines, within the credit. The daemon half-closes to
        cancel the call, or when the client has gone."""
        with contextlib.suppress(OSError, Fault):
            while (message := await side.next()) is not None:
                if is_agents and message[1]:
                    await line.say_output(wire.STDOUT, message[1])
                elif message[0] == wire.STDIN:
                    line.say(message)
                await self._client.room()
                await trio.lowlevel.checkpoint()
        self._cancel(line)

    async def _to_daemon(self, side: HostSide, line: CallLine, conversion: _Conversion | _Frames) -> None:
        while True:
            out, size, ended = bytearray(), 0, False
            for kind, payload in await line.next():
                if kind == wire.STDOUT:
                    out += conversion.output(payload)
                    size += len(payload)
                elif kind == wire.WANT and len(payload) == wire.U32.size:
                    out += wire.message(wire.WANT, payload)
                elif kind == messages.REFUSED:
                    await side.say(bytes(out))
                    raise _refused(payload)
                elif kind == wire.EXIT:
                    out += conversion.end(payload)
                    ended = True
                    break
            await side.say(bytes(out))
            if ended:
                return
            line.took(size)
            await trio.lowlevel.checkpoint()


class _Typed(msgspec.Struct):
    type: str


_typed = msgspec.json.Decoder(_Typed)


class _Frames:
    """The frames of an agent, in a run or a conversation: lines of JSON, each with its type."""

    def __init__(self) -> None:
        self._lines = LineSplitter()

    def output(self, data: bytes) -> bytes:
        return b"".join(line + b"\n" for line in self._lines.feed(data) if line and _is_frame(line))

    def end(self, status: bytes) -> bytes:
        return b""


def _is_frame(line: bytes) -> bool:
    try:
        _typed.decode(line)
    except UNREADABLE:
        return False
    return True


def _end(class_: str, fault: Fault) -> bytes:
    """Returns the message to the daemon that there is no (more of an) answer."""
    if class_ == "agent":
        return frames.encode(requests.refusal(fault))
    return wire.message(wire.FAULT, _pack((fault.code, fault.message))) + wire.message(wire.DONE)


class _NotTakenError(Exception):
    """The other machine has not begun the call, and never will."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class _Conversion:
    """Turns the lines that a runner prints into the messages of a host."""

    def __init__(self, class_: str) -> None:
        self._class = class_
        self._lines = LineSplitter()
        self._fault: Fault | None = None
        self._has_deltas = False  # whether deltas were sent since the last message

    def output(self, data: bytes) -> bytes:
        out: list[bytes] = []
        for line in self._lines.feed(data):
            if not line:
                continue
            try:
                frame = frames.decode(line)
            except UNREADABLE:  # or a kind of frame that this version does not know
                continue
            out += self._messages(frame)
        return b"".join(out)

    def end(self, status: bytes) -> bytes:
        if self._fault is None and status != b"\0":
            self._fault = Fault("EPROTO", "the call has failed on that machine, which gives no reason")
        if self._fault is None:
            return wire.message(wire.DONE)
        fault = _pack((self._fault.code, self._fault.message[: wire.MAX_TEXT]))
        return wire.message(wire.FAULT, fault) + wire.message(wire.DONE)

    def _messages(self, frame: frames.AnyFrame) -> Iterator[bytes]:
        match frame:
            case frames.Delta(text=text):
                self._has_deltas = True
                yield from _texts(wire.DELTA, text)
            case frames.Message(role="assistant", content=content) if self._class == "model":
                has_deltas, self._has_deltas = self._has_deltas, False
                if not has_deltas:
                    yield from _texts(wire.DELTA, "".join(part.text for part in content))
            case frames.Progress(message=text):
                yield from _texts(wire.PROGRESS, text)
            case frames.Observer(source=source, content=content_):
                yield wire.message(wire.OBSERVER, _pack((source, content_[: wire.MAX_TEXT // 4])))
            case frames.Media(attachment=attachment):
                yield wire.message(wire.MEDIA, msgspec.json.encode(attachment))
            case frames.ReasoningDelta() | frames.ToolCall() | frames.Usage() if self._class == "model":
                yield wire.message(wire.EVENT, msgspec.json.encode(replace(frame, run=None)))
            case frames.Error(code=code, message=message):
                self._fault = Fault(code, message)


def _texts(kind: int, text: str) -> Iterator[bytes]:
    """Returns a text in pieces of a size that a host may send."""
    step = wire.MAX_TEXT // 4  # in characters, each of which has 4 bytes at most
    for at in range(0, len(text), step):
        yield wire.message(kind, text[at : at + step].encode(errors="replace"))


def _refused(payload: bytes) -> Fault:
    try:
        code, message = msgspec.msgpack.decode(payload, type=tuple[str, str])
    except UNREADABLE:
        code, message = "EPROTO", "the other machine refuses the call and gives no reason"
    return Fault(code, message[:1000])
