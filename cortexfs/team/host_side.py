"""The link's end of a call that the daemon has opened: it receives and sends the messages of a host.

    side = HostSide(stream)
    request = await side.request()                      None where the daemon has given it up
    arguments = await arguments_of(side, request, ...)  for the runner of the other machine
    await side.say(data)

Rules: if the daemon wants to see an input before the tool runs, the link shows it, and sends on the daemon's
version. The input is put together here, as in a host, and is checked by the machine that runs the tool.
This file must never know of machines.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

import msgspec

from cortexfs.core import hostcalls, wire
from cortexfs.core.arguments import dryrun, parse
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import json_object
from cortexfs.peers.streams import receive, send

MAX_REQUEST = wire.MAX_STRINGS + (1 << 20)

_requests: msgspec.msgpack.Decoder[hostcalls.Request | hostcalls.Converse] = msgspec.msgpack.Decoder(
    hostcalls.Request | hostcalls.Converse
)
_answers = msgspec.msgpack.Decoder(tuple[str, bytes])


class HostSide:
    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._splitter = wire.Splitter(MAX_REQUEST)
        self._waiting: deque[tuple[int, bytes]] = deque()

    async def next(self) -> tuple[int, bytes] | None:
        """Returns the daemon's next message, or None when it has given the call up."""
        while not self._waiting:
            data = await receive(self._stream)
            if not data:
                return None
            self._waiting += self._splitter.feed(data)
        return self._waiting.popleft()

    async def say(self, data: bytes) -> None:
        await send(self._stream, data)

    async def request(self) -> hostcalls.CallRequest | hostcalls.Converse | None:
        message = await self.next()
        if message is None:
            return None
        request = _requests.decode(message[1]) if message[0] == wire.REQUEST else None
        if isinstance(request, hostcalls.CallRequest | hostcalls.Converse):
            return request
        raise Fault("EPROTO", "this request works only for plugins of this machine, not of another")

    async def input(self) -> bytes:
        """Returns all of standard input."""
        await self.say(wire.message(wire.WANT, wire.U32.pack(parse.MAX_INPUT + 1)))
        data = bytearray()
        while (message := await self.next()) is not None:
            if message[0] == wire.STDIN:
                data += message[1]
                if not message[1] or len(data) > parse.MAX_INPUT:
                    return bytes(data)
        raise ConnectionResetError

    async def daemon_input(self, value: dict[str, Any]) -> bytes:
        """Show an input to the daemon. Returns it as the daemon wants it."""
        data = msgspec.json.encode(value)
        for at in range(0, len(data), wire.MAX_TEXT):
            await self.say(wire.message(wire.INPUT, data[at : at + wire.MAX_TEXT]))
        await self.say(wire.message(wire.INPUT))
        message = await self.next()
        if message is None:
            raise ConnectionResetError
        if message[0] != wire.INPUT:
            raise Fault("EPROTO", "the daemon did not answer about an input that it was shown")
        return _answers.decode(message[1])[1] if message[1] else data


class _InputWantedError(Exception):
    """The arguments take standard input as a part of the input."""


async def arguments_of(
    side: HostSide, request: hostcalls.CallRequest | hostcalls.Converse, schema: bytes
) -> list[bytes]:
    """Returns the arguments for the runner on the other machine."""
    if isinstance(request, hostcalls.Converse):
        return []
    if not isinstance(request, hostcalls.ShownCallRequest):
        return [request.input or b"{}"] if request.args is None else request.args
    tool_schema = msgspec.json.decode(schema)
    words, dry = request.args, False
    if words is None:
        return [await side.daemon_input(json_object(request.input or b"{}"))]
    if dryrun.is_among(words) and not dryrun.is_taken(tool_schema):
        words, dry = dryrun.without(words), True
    try:
        value = parse.tool_input(words, tool_schema, _not_yet)
    except _InputWantedError:
        data = await side.input()
        value = parse.tool_input(words, tool_schema, lambda: data)
    return [await side.daemon_input(value), *([dryrun.OPTION] if dry else [])]


def _not_yet() -> bytes:
    raise _InputWantedError
