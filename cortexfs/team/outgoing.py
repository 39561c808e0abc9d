"""Calls of this machine's users to objects of others: a host to the daemon, a client to the other machine.

Main path: `Outgoing.call` reads the request as a host does, signs a `CallBegin`, and says to the daemon in a
host's words what the other machine's runner would have printed.

Rules: the daemon's word says who calls. What the other machine says is a stranger's word: it is decoded, and
said again in messages that are made here. A machine that has not taken a call within BEGIN_SECONDS is away.
This file must never know how the other machine runs it.
"""

from __future__ import annotations

import contextlib
import pwd
import secrets
import socket
from collections.abc import Callable, Iterator

import msgspec
import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.lines import LineSplitter
from cortexfs.peers.streams import receive, send
from cortexfs.team import keys, messages, subjects
from cortexfs.team.line import CallLine, CallLines
from cortexfs.team.messages import CallBegin, CallOpening
from cortexfs.team.nats_client import Client

BEGIN_SECONDS = 2.0
MAX_REQUEST = wire.MAX_STRINGS + (1 << 20)
# Of the caller's environment, what says how to answer; paths, homes and names are the other machine's own.
TRAVELS = frozenset(b"LANG LANGUAGE TZ TERM COLUMNS LINES NO_COLOR".split())

_pack = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[hostcalls.Request] = msgspec.msgpack.Decoder(hostcalls.Request)


class Outgoing:
    def __init__(self, client: Client, machine: str, key: keys.Key, is_live: Callable[[str], bool]) -> None:
        self._client = client
        self._machine = machine
        self._key = key
        self._is_live = is_live
        self.lines = CallLines()

    async def call(self, opening: CallOpening, stream: socket.socket) -> None:
        """The whole call, until the daemon is told of its end."""
        try:
            try:
                await self._call(opening, stream)
            except Fault as fault:
                await send(stream, wire.message(wire.FAULT, _pack((fault.code, fault.message))))
                await send(stream, wire.message(wire.DONE))
        except OSError:  # the daemon has given it up
            return
        finally:
            stream.close()

    async def _call(self, opening: CallOpening, stream: socket.socket) -> None:
        request = await self._request(stream)
        if request is None:
            return
        machine, run = opening.machine, secrets.token_hex(16)
        if not self._is_live(machine):
            raise Fault("EHOSTDOWN", f"the machine {machine} is away; see: ctx team status")
        line = CallLine(self._client, subjects.run(machine, self._machine, run), machine)
        end = self.lines.begin(machine, run, line)
        try:
            self._begin(opening, request, run)
            await self._begun(line, machine)
            conversion = _Conversion(opening.class_)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._from_daemon, stream, line, nursery.cancel_scope)
                    await self._to_daemon(stream, line, conversion)
                    nursery.cancel_scope.cancel()
            except* (Fault, OSError) as problems:
                raise problems.exceptions[0] from None
        finally:
            end()

    async def _request(self, stream: socket.socket) -> hostcalls.CallRequest | None:
        """The call's request; None where the daemon has given it up."""
        splitter = wire.Splitter(MAX_REQUEST)
        while data := await receive(stream):
            for kind, payload in splitter.feed(data):
                request = _requests.decode(payload) if kind == wire.REQUEST else None
                if isinstance(request, hostcalls.CallRequest):
                    return request
                raise Fault("EPROTO", "an object of another machine is asked for what only a host here has")
        return None

    def _begin(self, opening: CallOpening, request: hostcalls.CallRequest, run: str) -> None:
        arguments = [request.input or b"{}"] if request.args is None else request.args
        environment = {
            name: value
            for name, value in request.environment.items()
            if name in TRAVELS or name.startswith(b"LC_")
        }
        begin = CallBegin(run, _name(opening.uid), opening.label, opening.depth, arguments, environment)
        subject = subjects.call(opening.machine, self._machine, opening.class_, opening.name)
        answers = subjects.run(self._machine, opening.machine, run)
        self._client.publish(subject, keys.seal(self._key, subject, _pack(begin)), answers)

    async def _begun(self, line: CallLine, machine: str) -> None:
        with trio.move_on_after(BEGIN_SECONDS):
            first, *rest = await line.next()
            if first[0] == messages.REFUSED:
                raise _refused(first[1])
            if first[0] != messages.BEGUN:
                raise Fault("EPROTO", f"{machine} answers a call before it has taken it")
            line.put_back(rest)
            return
        raise Fault("EHOSTDOWN", f"the machine {machine} has not answered within {BEGIN_SECONDS:g} s")

    async def _from_daemon(self, stream: socket.socket, line: CallLine, scope: trio.CancelScope) -> None:
        """Standard input, until the daemon half-closes, which cancels the call."""
        splitter = wire.Splitter()
        try:
            while data := await receive(stream):
                for kind, payload in splitter.feed(data):
                    if kind == wire.STDIN:
                        line.say((wire.STDIN, payload))
                await self._client.room()
                await trio.lowlevel.checkpoint()
        except OSError:
            pass
        except Fault:  # the connection is away, which the other direction hears
            return
        with contextlib.suppress(Fault):
            line.say((messages.CANCEL, b""))
        scope.cancel()

    async def _to_daemon(self, stream: socket.socket, line: CallLine, conversion: _Conversion) -> None:
        while True:
            for kind, payload in await line.next():
                if kind == wire.STDOUT:
                    await send(stream, conversion.said(payload))
                    line.took(len(payload))
                elif kind == wire.WANT and len(payload) == wire.U32.size:
                    await send(stream, wire.message(wire.WANT, payload))
                elif kind == messages.REFUSED:
                    raise _refused(payload)
                elif kind == wire.EXIT:
                    await send(stream, conversion.end(payload))
                    return
            await trio.lowlevel.checkpoint()


class _Conversion:
    """The lines that a runner prints, as the messages of a host."""

    def __init__(self, class_: str) -> None:
        self._class = class_
        self._lines = LineSplitter()
        self._fault: Fault | None = None
        self._told = False  # in deltas, since the last message

    def said(self, data: bytes) -> bytes:
        out: list[bytes] = []
        for line in self._lines.feed(data):
            if not line:
                continue
            try:
                frame = frames.decode(line)
            except (msgspec.MsgspecError, RecursionError):  # a kind of frame that is newer than this
                continue
            out += self._messages(frame)
        return b"".join(out)

    def end(self, status: bytes) -> bytes:
        if self._fault is None and status != b"\0":
            self._fault = Fault("EPROTO", "the call has failed on that machine, which does not say why")
        if self._fault is None:
            return wire.message(wire.DONE)
        fault = _pack((self._fault.code, self._fault.message[: wire.MAX_TEXT]))
        return wire.message(wire.FAULT, fault) + wire.message(wire.DONE)

    def _messages(self, frame: frames.AnyFrame) -> Iterator[bytes]:
        match frame:
            case frames.Delta(text=text):
                self._told = True
                yield from _texts(wire.DELTA, text)
            case frames.Message(role="assistant", content=content) if self._class == "model":
                told, self._told = self._told, False
                if not told:
                    yield from _texts(wire.DELTA, "".join(part.text for part in content))
            case frames.Progress(message=text):
                yield from _texts(wire.PROGRESS, text)
            case frames.Observer(source=source, content=content_):
                yield wire.message(wire.OBSERVER, _pack((source, content_[: wire.MAX_TEXT // 4])))
            case frames.Media(attachment=attachment):
                yield wire.message(wire.MEDIA, msgspec.json.encode(attachment))
            case frames.ReasoningDelta() | frames.ToolCall() | frames.Usage() if self._class == "model":
                yield wire.message(wire.EVENT, msgspec.json.encode(msgspec.structs.replace(frame, run=None)))
            case frames.Error(code=code, message=message):
                self._fault = Fault(code, message)


def _texts(kind: int, text: str) -> Iterator[bytes]:
    """A text in pieces that a host may say."""
    step = wire.MAX_TEXT // 4  # of characters, each of which has 4 bytes at most
    for at in range(0, len(text), step):
        yield wire.message(kind, text[at : at + step].encode(errors="replace"))


def _refused(payload: bytes) -> Fault:
    try:
        code, message = msgspec.msgpack.decode(payload, type=tuple[str, str])
    except msgspec.MsgspecError:
        code, message = "EPROTO", "the other machine refuses without a reason"
    return Fault(code, message[:1000])


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise Fault("EACCES", f"uid {uid} has no name here, by which another machine could know it") from None
