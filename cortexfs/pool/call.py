"""A call that a host answers for the daemon itself: for an agent or a conversation, and not for a runner.

Main path: `HostCall.run` sends the request to a host of the pool, and passes on the host's messages until the
call is done.
Rules: a call that is given up is half-closed, which cancels it. A host that does not let go, or that broke
the protocol, is replaced. If a host does not begin a call, the whole call is taken back and given to another
host, so no call runs twice. A host's messages are untrusted input: JSON of hundreds of levels could be read
here, and not be written to a session, or read by a client.
This file must never know the meaning of a request, nor the use of its answer. A runner's run, where each hop
costs, has a loop of its own (run/tool_run.py).
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
from collections.abc import Awaitable, Callable

import msgspec
import trio

from cortexfs.core import frames, hostcalls, wire
from cortexfs.core.errors import Fault, bare, is_code, timed_out
from cortexfs.core.jsontext import check_depth
from cortexfs.peers import safe_sockets, trace
from cortexfs.peers.prompt import in_task
from cortexfs.peers.streams import receive, send
from cortexfs.pool.host import Host, announce
from cortexfs.pool.pool import Pool

# A cancel may take a second (abi.md 5.26); the rest of that second is for the answer.
LET_GO_SECONDS = 0.8
LOOK_SECONDS = 0.05  # between two checks whether the host has begun its call
# A tool that keeps the interpreter may delay other calls by a second, the start of another host included.
# Checks are counted, not seconds: if the whole machine is slow, a host gets more time.
LOOKS = 12
EXIT_SECONDS = 2.0  # the longest wait for the end of a dead host, to name its cause

heard_observers = msgspec.msgpack.Decoder(tuple[str | None, str])
_questions = msgspec.json.Decoder(hostcalls.ToolQuestion)
heard_faults = msgspec.msgpack.Decoder(tuple[str, str])
# The errors of decoding untrusted input.
GARBAGE = (Fault, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, struct.error)

Hear = Callable[[int, bytes], frames.Frame | None]
Say = Callable[..., Awaitable[None]]
Ask = Callable[[hostcalls.ToolQuestion], Awaitable[hostcalls.ToolAnswer]]
Find = Callable[[], Awaitable[Host]]


class HostCall:
    """One call of a host, until it is done or given up. `hear` turns a message into a frame or None. `say`
    gets the frames that came together, `ask` the tool's questions. Requests of a secret call are not traced.

    Its attributes hold the messages and wishes of the host, and the state that the host is in.
    """

    def __init__(self, hear: Hear, say: Say, is_secret: bool = False, ask: Ask | None = None) -> None:
        self._is_secret = is_secret
        self._ask_person = ask
        self._question: hostcalls.ToolQuestion | None = None
        self._clock = trio.CancelScope()
        self._hear = hear
        self._say = say
        self._splitter = wire.Splitter(wire.MAX_SAID)
        self._run = ""
        self._done = False
        self._wants = False
        self._let_go = True
        self._broken = self._worn = False
        self.fault: Fault | None = None

    async def run(
        self, pool: Pool, find: Find, request: hostcalls.CallRequest, seconds: float, cwd: int | None = None
    ) -> None:
        """Make the whole call, in a host that `find` takes from the pool. `fault` is set if it fails."""
        host = await find()
        with trio.move_on_after(seconds) as clock:
            self._run, self._clock = request.run, clock
            while not await self._attempt(pool, host, announce(request), cwd):
                host = await find()
        if clock.cancelled_caught:
            self.fault = Fault("ETIMEDOUT", timed_out(request.invocation.tool_name, seconds))

    async def _attempt(self, pool: Pool, host: Host, request: bytes, cwd: int | None) -> bool:
        """Make the call in this host, and give the host back. Returns False if the host did not begin it."""
        try:
            call, host_end, rest = host.open(cwd, request)
            if trace.calls and not self._is_secret:
                trace.calls(self._run, "said", request)
            with safe_sockets.closing(call), host_end:
                if probe := await self._ask(host, call, host_end, rest):
                    pool.set_aside(host, probe)
                    return False
        finally:
            if self._broken and not self._done:
                host.note_end()
            pool.release(host, stuck=self._broken or not self._let_go, worn=self._worn)
        if not self._done and self.fault is None:
            self.fault = await name_the_end(host)
        return True

    async def _ask(
        self, host: Host, call: socket.socket, host_end: socket.socket, rest: memoryview
    ) -> socket.socket | None:
        """Make the whole call. If it was taken back, returns a probe of the host."""
        self._let_go = False
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                if not await begins(host, call, host_end, bool(rest), lambda: False):
                    self._let_go = True
                    return call.dup()
                await send(call, rest.tobytes())
            await self._listen(call)
        finally:
            if not self._let_go:
                self._let_go = take_back(call, host_end) or await let_go(call)
        return None

    async def _listen(self, call: socket.socket) -> None:
        while not self._done and not self._broken:
            try:
                data = await receive(call)
            except OSError:
                data = b""
            if not data:
                self._let_go = self._broken = True
                return
            if batch := self._frames(data):
                await self._say(*batch)
            if self._question is not None:
                await self._answer(call)
            if self._wants:  # the request held all of the input
                self._wants = False
                with contextlib.suppress(OSError):  # the next read tells how the call ended
                    await send(call, wire.message(wire.STDIN, b""))
            await trio.lowlevel.checkpoint()

    async def _answer(self, call: socket.socket) -> None:
        """Have a person answer. Their time does not count as the tool's. The host sends nothing meanwhile."""
        assert self._question is not None
        assert self._ask_person is not None
        seconds, self._clock.deadline = self._clock.deadline - trio.current_time(), math.inf
        answer = await self._ask_person(self._question)
        self._question, self._clock.deadline = None, trio.current_time() + seconds
        with contextlib.suppress(OSError):  # the next read tells how the call ended
            await send(call, wire.message(wire.QUESTION, msgspec.json.encode(answer)))

    def _frames(self, data: bytes) -> list[frames.Frame]:
        """Returns the frames of these messages. After an invalid message, returns the frames before it."""
        if trace.calls:
            trace.calls(self._run, "heard", data)
        batch: list[frames.Frame] = []
        try:
            for kind, payload in self._splitter.feed(data):
                if kind == wire.DONE:
                    self._done = self._let_go = True
                    self._worn = bool(payload)
                    break
                if kind == wire.FAULT:
                    self.fault = of_the_tool(*heard_faults.decode(payload))
                elif kind == wire.WANT:
                    self._wants = True
                elif kind == wire.QUESTION:
                    self._question = self._decode(payload)
                elif frame := self._hear(kind, payload):
                    batch.append(frame)
        except GARBAGE as error:
            self._broken = True
            self.fault = bare(broken_by(error))
        return batch

    def _decode(self, payload: bytes) -> hostcalls.ToolQuestion:
        if self._ask_person is None or self._question is not None:
            raise Fault("EPROTO", "it has asked a question, and none can be put now")
        question = _questions.decode(payload)
        check_depth([question.params, question.schema], "its question")
        return question


async def ask(
    host: Host, request: hostcalls.Request, expected: int, limit: int = wire.MAX_SAID
) -> bytes | None:
    """Returns the first message of this kind, or None if the host breaks off. Raises the host's fault."""
    with safe_sockets.closing(host.call(None)) as call:
        await send(call, announce(request))
        splitter = wire.Splitter(limit)
        while data := await receive(call):
            for kind, payload in splitter.feed(data):
                if kind == wire.FAULT:
                    raise Fault(*heard_faults.decode(payload))
                if kind == expected:
                    return payload
            await trio.lowlevel.checkpoint()
    return None


async def begins(
    host: Host, call: socket.socket, host_end: socket.socket, more: bool, has_left: Callable[[], bool]
) -> bool:
    """Wait until the host reads its request, and close the host's end here. Returns False if the request was
    taken back, as the host does not read it. With `more`, a part is unsent. `has_left()` ends the wait."""
    wait = trio.lowlevel.wait_writable if more else trio.lowlevel.wait_readable
    looks = 0
    while _is_unread(host_end):
        with trio.move_on_after(LOOK_SECONDS) as clock:
            await wait(call)
        if not clock.cancelled_caught:
            break
        if has_left():
            return True  # the code that gives the call up takes it back
        looks += 1
        is_dead = not host.is_alive and not host.was_stopped
        if is_dead and not host.has_served:  # the next host might die of the same call
            break
        if is_dead or looks >= LOOKS or host.aside or host.was_stopped or host.is_stopped:
            return not take_back(call, host_end)
    host_end.close()
    return True


def take_back(call: socket.socket, host_end: socket.socket) -> bool:
    """Take back a request that the host has not read to its end; it never runs then. Returns True if there
    was one. The host's end is closed here, so that the end of a call that goes on is noticed.

    One system call takes all that was sent, and nothing is sent after it. Otherwise the host could read a
    rest of the request, which could look like another request.
    """
    try:
        room = call.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        with host_end:
            unread = host_end.recv(2 * room, socket.MSG_DONTWAIT)
    except OSError:  # nothing is there, or the host's end is closed here
        return False
    with contextlib.suppress(OSError):
        call.shutdown(socket.SHUT_WR)  # the host finds the end of the call when it comes to it
    return bool(unread)


def _is_unread(host_end: socket.socket) -> bool:
    try:
        return bool(host_end.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
    except OSError:
        return False


async def let_go(call: socket.socket) -> bool:
    """Half-close the call, which cancels it, and give the host a moment. Returns True if the host let go."""
    await in_task()
    with trio.move_on_after(LET_GO_SECONDS, shield=True):
        with contextlib.suppress(OSError):
            call.shutdown(socket.SHUT_WR)
            while await receive(call):
                await trio.lowlevel.checkpoint()  # a host that floods is never waited for
        return True
    return False


async def name_the_end(host: Host) -> Fault:
    """Returns the fault for a host that closed the call without an answer: it has died, or is dying."""
    host.note_end()
    await in_task()
    await ended(host)
    return host.end_of_call()


async def ended(host: Host) -> None:
    """Wait until it is known how the host ended. This is known only after the end of its calls is seen."""
    with trio.move_on_after(EXIT_SECONDS):
        await host.exited.wait()


def broken_by(error: Exception) -> Fault:
    return Fault("EPROTO", f"the tool's host broke the protocol: {error}")


def of_the_tool(code: str, message: str) -> Fault:
    """Returns the fault that a tool reports. Only callers cancel, so ECANCELED becomes EIO."""
    message = message if message.strip() else "it failed without a message"
    if code == "ECANCELED":
        return Fault("EIO", message)
    return Fault(code if is_code(code) else "EPROTO", message)
