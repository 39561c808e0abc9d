"""Calls from users of other machines to the exports of this machine.

Main path: `Incoming.hear` checks the calling machine, and finds the user here. A stand-in of that user
connects to the mount. The link is then the runner of that call, and passes its output on unchanged.

Rules: the mount decides about the call as about any call of that user. Nothing runs twice: a run's name is
remembered as long as its proof is valid, and a call is for one life of this process only. All messages that
came with a call are read before it begins: while this process was delayed, the caller may have given it up.
The number of calls from a machine is bounded, and each of its users leaves a share to the others.
This file must never know what an object does.
"""

from __future__ import annotations

import logging
import re
import socket
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
import trio

from cortexfs.core import wire
from cortexfs.core.errors import Fault
from cortexfs.peers.prompt import Conversation, ShortConversations, is_readable
from cortexfs.peers.streams import receive, send
from cortexfs.team import keys, messages, subjects
from cortexfs.team.line import CallLine, CallLines, until_one_ends
from cortexfs.team.mapping import Mapping
from cortexfs.team.messages import CallBegin
from cortexfs.team.nats_client import Client
from cortexfs.team.nats_wire import Delivery, untoken
from cortexfs.team.standins import ConnectionRequest, StandIn, StandIns

UMASK = 0o022
MAX_CALLS = 256  # at a time
MAX_OF_ONE = 64  # from one machine
SHARE = 3  # a user's calls are at most so many times the free places among these
_KEPT = 65536  # names of runs
_RUN = re.compile(r"[0-9a-f]{32}")
_START = b'{"type":"start"'

log = logging.getLogger("cortexfs")

_pack = msgspec.msgpack.Encoder().encode
_begins = msgspec.msgpack.Decoder(CallBegin)


class AskedCall(NamedTuple):
    """The stand-in and the connection for a call."""

    standin: StandIn
    request: ConnectionRequest
    agents: str  # the agent whose policy decides about calls made by agents


class Incoming:
    """Its attributes and parameters are the parts that a call passes."""

    def __init__(
        self,
        client: Client,
        mapping: Mapping,
        standins: StandIns,
        prompt: ShortConversations,
        key_of: Callable[[str], bytes],
        incarnation: bytes,
    ) -> None:
        self._incarnation = incarnation
        self._client = client
        self._mapping = mapping
        self._standins = standins
        self._prompt = prompt
        self._key_of = key_of
        self._runs: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._conversations: deque[Conversation] = deque()
        self.lines = CallLines()

    def hear(self, delivery: Delivery) -> None:
        """Take in a call. A call without a valid proof gets no answer, and one of another time a refusal."""
        _, _, to, from_, class_, name = delivery.subject.split(".")
        data = keys.proven_data(self._client.key, self._key_of(from_), delivery.subject, delivery.data)
        begin = messages.decoded(_begins, data, "the call is not valid")
        if to != self._client.name or not _RUN.fullmatch(begin.run) or (from_, begin.run) in self._runs:
            raise Fault("EPROTO", "the call was made before, or is for another machine")
        line = CallLine(self._client, subjects.run(from_, self._client.name, begin.run), from_, begin.user)
        try:
            keys.check_time(delivery.data)
        except Fault as fault:  # its run is not remembered: old calls must not push out those of this minute
            return _refuse(line, fault)
        self._runs[from_, begin.run] = None
        if len(self._runs) > _KEPT:
            self._runs.popitem(last=False)
        if begin.incarnation != self._incarnation:
            why = "that machine's link has restarted; try again, or see there: ctx team status"
            return _refuse(line, Fault("EHOSTDOWN", why))
        if not has_room(self.lines, from_, begin.user):
            return _refuse(line, Fault("EAGAIN", "that machine has too many calls of yours; try again"))
        end = self.lines.begin(from_, begin.run, line)  # at once, as the next message may cancel it
        try:
            call = self._call(begin, from_, f"{class_}/{untoken(name)}")
        except Fault as fault:
            end()
            return _refuse(line, fault)
        except BaseException:
            end()
            raise
        self._conversations.append(self._serve(line, begin, call, end))

    def begin(self) -> None:
        """Begin the calls that have arrived, after all messages that came with them: these may cancel one."""
        while self._conversations:
            self._prompt.begin(self._conversations.popleft())

    def _call(self, begin: CallBegin, from_: str, path: str) -> AskedCall:
        """Ask the stand-in for a connection, before a turn of the loop is taken."""
        export = self._mapping.export(path, begin.user, from_)
        if begin.label and not export.agents:
            raise Fault("EACCES", f"{path} of that machine is only for people, not for {begin.label}")
        user = self._mapping.as_whom(export, begin.user, from_)
        if begin.talks and (begin.label or not path.startswith("agent/")):
            raise Fault("EACCES", f"{begin.label or begin.user} may not use the socket of {path} there")
        standin = self._standins.of(user)
        return AskedCall(standin, standin.ask(f"{path}.sock" if begin.talks else path), export.agents)

    async def _serve(
        self, line: CallLine, begin: CallBegin, call: AskedCall, end: Callable[[], None]
    ) -> None:
        try:
            try:
                inode, stream = await call.standin.connected(call.request)
                with stream:
                    await (_converse(line, stream) if begin.talks else _run(line, begin, call, inode, stream))
                if not begin.talks:
                    call.standin.prepare_later(call.request)
            except OSError as problem:  # a connection over a limit, for example
                raise Fault("EHOSTDOWN", f"that machine's daemon has hung up: {problem.strerror}") from None
        except Fault as fault:
            try:
                _refuse(line, fault)
            except Fault as problem:
                log.info("a failed call cannot be reported to %s: %s", line.peer, problem.message)
        finally:
            end()


def has_room(lines: CallLines, machine: str, user: str) -> bool:
    """Returns True if this user of a machine may have one more call."""
    room = min(MAX_CALLS - len(lines), MAX_OF_ONE - lines.of(machine))
    return lines.of(machine, user) < SHARE * room


def _refuse(line: CallLine, fault: Fault) -> None:
    line.say((messages.REFUSED, _pack((fault.code, fault.message))))


async def _run(line: CallLine, begin: CallBegin, call: AskedCall, inode: int, stream: socket.socket) -> None:
    """Act as the runner of the call."""
    if line.is_cancelled:
        raise Fault("ECANCELED", "the call was cancelled before it began")
    agent = call.agents if begin.label else ""
    await send(stream, _greeting(inode, begin, f"{agent} {begin.depth}"))
    words = MountWords(stream, line)
    await words.pass_first()
    if not words.ended:
        await until_one_ends(words.pass_on, partial(_to_mount, stream, line))


async def _converse(line: CallLine, stream: socket.socket) -> None:
    """Act as a client of the agent's socket, for a person on the other machine."""
    line.say((messages.BEGUN, b""))
    await until_one_ends(partial(_lines_from_mount, stream, line), partial(_lines_to_mount, stream, line))


def _greeting(inode: int, begin: CallBegin, under: str) -> bytes:
    """Returns the greeting of a runner that has no terminal and wants JSONL. `under` takes powers away."""
    variables = [b"%b=%b" % pair for pair in messages.travelling(begin.environment).items()]
    strings = [*begin.arguments, *variables, b"CTX_OUTPUT=jsonl", b"%b=%b" % (wire.UNDER, under.encode())]
    if any(b"\0" in each for each in strings):
        raise Fault("EINVAL", "an argument or variable holds a NUL")
    text = b"".join(each + b"\0" for each in strings)
    counts = len(begin.arguments), len(strings) - len(begin.arguments)
    return wire.HELLO.pack(wire.MAGIC, wire.PROTOCOL, inode, 0, UMASK, *counts, len(text)) + text


class MountWords:
    """The daemon's messages to its runner, as far as the other machine needs them. Messages that come
    together are sent together. A prompt answer goes out with the message that the call was taken."""

    def __init__(self, stream: socket.socket, line: CallLine) -> None:
        self._stream = stream
        self._line = line
        self._splitter = wire.Splitter()
        self._waiting = [(messages.BEGUN, b"")]
        self._has_said = False
        self.ended = False

    async def pass_first(self) -> None:
        """Send an answer that comes within a moment along with the message that the call was taken. Do not
        wait any longer for an answer that has more than a start and no end yet."""
        while self._is_start and await is_readable(self._stream):
            await self._hear(await receive(self._stream))
        self.say()

    @property
    def _is_start(self) -> bool:
        """Returns True if nothing has come, or only a start."""
        payloads = [payload for kind, payload in self._waiting if kind != messages.BEGUN]
        return not self._has_said and (
            not payloads or (len(payloads) == 1 and payloads[0].startswith(_START))
        )

    async def pass_on(self) -> None:
        while not self.ended:
            await self._hear(await receive(self._stream))
            self.say()
            await trio.lowlevel.checkpoint()

    def say(self) -> None:
        self._line.say(*self._waiting)
        self._waiting, self._has_said = [], True

    async def _hear(self, data: bytes) -> None:
        if not data:
            self.say()  # the daemon may have begun the call, so no other machine may make it
            raise Fault("EHOSTDOWN", "the daemon of that machine has ended during the call")
        for kind, payload in self._splitter.feed(data):
            if kind == wire.STDOUT and not self._line.has_room(payload):
                self.say()
                await self._line.say_output(kind, payload)
            elif kind in (wire.STDOUT, wire.WANT, wire.EXIT):
                self._waiting.append((kind, payload))
            self.ended = self.ended or kind == wire.EXIT


async def _lines_from_mount(stream: socket.socket, line: CallLine) -> None:
    while data := await receive(stream):
        await line.say_output(wire.STDOUT, data)
        await trio.lowlevel.checkpoint()
    line.say((wire.EXIT, b"\0"))


async def _to_mount(stream: socket.socket, line: CallLine) -> None:
    """Pass on standard input and a cancel. A daemon that reads no more may have sent the end already."""
    while True:
        for kind, payload in await line.next():
            with suppress(OSError):
                if kind == wire.STDIN:
                    await send(stream, wire.message(wire.STDIN, payload))
                elif kind == messages.CANCEL:
                    stream.shutdown(socket.SHUT_WR)


async def _lines_to_mount(stream: socket.socket, line: CallLine) -> None:
    """Pass on the lines of a person, until the caller has gone."""
    while True:
        for kind, payload in await line.next():
            if kind == wire.STDOUT:
                await send(stream, payload)
                line.took(len(payload))
            elif kind == wire.STDIN:  # the person has closed their side
                stream.shutdown(socket.SHUT_WR)
            elif kind == messages.CANCEL:
                return
