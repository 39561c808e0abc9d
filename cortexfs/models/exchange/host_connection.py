"""An exchange over HTTP that a host makes (models/exchange/as_user.py), with the interface of a connection.

Rules: the host's output is untrusted input, and is read no faster than it is used. To close the connection
cancels the host's call, and the server sees that no client waits any more.
This file must never know the content of a request.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from cortexfs.core import hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta, Frame
from cortexfs.core.hostcalls import Identity
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.models.exchange.endpoint import Lost
from cortexfs.models.exchange.http1 import HttpConnection
from cortexfs.pool.call import HostCall
from cortexfs.version import VERSION

if TYPE_CHECKING:
    from cortexfs.models.exchange.as_user import AsUser

# This plugin has no state, like the built-in tools, and its hosts end as theirs do.
PLUGIN = hostcalls.Plugin("builtin", VERSION, hostcalls.EXCHANGE, "")
MAX_HEAD = 64 << 10
LASTING = "EINVAL"  # host/net/exchange.py: another try would fail, too
ITS = ("EHOSTDOWN", LASTING)  # codes of the provider's faults


class _Head(msgspec.Struct):
    status: int
    headers: dict[str, str]


class HostConnection(HttpConnection):
    def __init__(self, users: AsUser, identity: Identity, origin: str, seconds: float) -> None:
        self._users = users
        self._identity = identity
        self._origin = origin
        self._seconds = seconds
        self._scope = trio.CancelScope()
        self._in, self._out = trio.open_memory_channel[bytes](0)
        self._fault: Fault | None = None
        self._rest = b""
        self.status = 0
        self.headers = {}

    def close(self) -> None:
        self._scope.cancel()

    def is_over(self) -> bool:
        return False  # a host serves one exchange

    async def begin(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> None:
        fields = {"method": method, "url": self._origin + target, "headers": headers, "body": body.decode()}
        data = msgspec.json.encode(fields | {"connect": self._seconds})
        invocation = hostcalls.Invocation("exchange", None, str(self._identity.uid), "model")
        request = hostcalls.CallRequest("", invocation, None, data, 0o077, {}, "/")
        assert self._users.calls
        self._users.calls.start_soon(self._ask, request)
        answer = b""
        while b"\n" not in answer:
            answer += (piece := await self._next_piece(connected=False))
            if not piece or len(answer) > MAX_HEAD:
                raise Lost("the connection broke off", connected=False)
        line, _, self._rest = answer.partition(b"\n")
        try:
            head = msgspec.json.decode(line, type=_Head)
        except UNREADABLE:
            raise Lost("it does not speak HTTP", connected=False, lasting=True) from None
        self.status, self.headers = head.status, head.headers

    async def receive(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest or await self._next_piece(connected=True)

    async def _next_piece(self, connected: bool) -> bytes:
        try:
            return await self._out.receive()
        except trio.EndOfChannel:
            fault = self._fault
        if fault is None:
            return b""
        if fault.code in ITS:
            raise Lost(fault.message, connected, lasting=fault.code == LASTING)
        raise fault

    async def _ask(self, request: hostcalls.CallRequest) -> None:
        async def pass_on(*frames: Frame) -> None:
            for frame in frames:
                assert isinstance(frame, Delta)
                await self._in.send(frame.text.encode("latin-1"))

        call, pool = HostCall(_piece, pass_on, is_secret=True), self._users.pool
        with self._scope, self._in:
            try:
                await call.run(pool, partial(pool.acquire_for, PLUGIN, self._identity), request, math.inf)
                self._fault = call.fault
            except Fault as fault:
                self._fault = fault


def _piece(kind: int, payload: bytes) -> Frame | None:
    if kind != wire.DELTA:
        return None
    text = payload.decode()
    if text and max(text) > "\xff":  # the user controls the host, so its output may be wrong
        raise Fault("EPROTO", "the process that asks your provider sent characters that are not bytes")
    return Delta(text=text)
