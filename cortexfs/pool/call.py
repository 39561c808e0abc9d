"""The daemon's side of a call that a host answers, for whoever is no runner: an agent, a conversation.

Main path: `HostCall.run` sends the request to a host of the pool and passes on what the host says until it is
done.

Rules: a call that is given up is half-closed, which cancels it; a host that does not let go, or that broke
the protocol, is replaced. A call that its host does not begin is taken back, whole, and given to another
host, so no call is run twice. What a host says is a stranger's word.
This file must never know what is asked, nor what becomes of the answer. A runner's run, where each hop
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
from cortexfs.peers import safe_sockets, trace
from cortexfs.peers.prompt import in_task
from cortexfs.peers.streams import receive, send
from cortexfs.pool.host import Host, announce
from cortexfs.pool.pool import Pool

# A second is what a cancel may take (abi.md 5.26); the rest of it is for the answer.
LET_GO_SECONDS = 0.8
LOOK_SECONDS = 0.05  # between two looks for a host that begins its call
# A tool that keeps the interpreter may hold others up for a second, with the start of another host.
# Looks are counted and not seconds: on a machine where nobody gets on, a host is given more time.
LOOKS = 12
EXIT_SECONDS = 2.0  # how long the end of a dead host is waited for at most, to name its cause

heard_observers = msgspec.msgpack.Decoder(tuple[str | None, str])
_questions = msgspec.json.Decoder(hostcalls.ToolQuestion)
heard_faults = msgspec.msgpack.Decoder(tuple[str, str])
# What decoding the word of a stranger raises.
GARBAGE = (Fault, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, struct.error)

Hear = Callable[[int, bytes], frames.Frame | None]
Say = Callable[..., Awaitable[None]]
Ask = Callable[[hostcalls.ToolQuestion], Awaitable[hostcalls.ToolAnswer]]
Find = Callable[[], Awaitable[Host]]


class HostCall:
    """One call of a host, until it is done or given up. `hear` makes a frame of a message, or none; `say` is
    given those that came together, `ask` the tool's questions. The request of a secret one is in no trace.

    Its attributes are what the host has said and wants, and what became of the host.
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
        self, pool: Pool, find: Find, asked: hostcalls.CallRequest, seconds: float, cwd: int | None = None
    ) -> None:
        """The whole call, to `fault` or without one, in a host that `find` takes from the pool."""
        host = await find()
        with trio.move_on_after(seconds) as clock:
            self._run, self._clock = asked.run, clock
            while not await self._tried(pool, host, announce(asked), cwd):
                host = await find()
        if clock.cancelled_caught:
            self.fault = Fault("ETIMEDOUT", timed_out(asked.invocation.tool_name, seconds))

    async def _tried(self, pool: Pool, host: Host, request: bytes, cwd: int | None) -> bool:
        """The call in this host, which is given back; False if the host did not begin it."""
        try:
            call, theirs, rest = host.open(cwd, request)
            if trace.calls and not self._is_secret:
                trace.calls(self._run, "said", request)
            with safe_sockets.closing(call), theirs:
                if probe := await self._ask(host, call, theirs, rest):
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
        self, host: Host, call: socket.socket, theirs: socket.socket, rest: memoryview
    ) -> socket.socket | None:
        """The whole call; a probe of the host if it was taken back."""
        self._let_go = False
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                if not await begins(host, call, theirs, bool(rest), never):
                    self._let_go = True
                    return call.dup()
                await send(call, rest.tobytes())
            await self._listen(call)
        finally:
            if not self._let_go:
                self._let_go = take_back(call, theirs) or await let_go(call)
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
            if said := self._frames(data):
                await self._say(*said)
            if self._question is not None:
                await self._answer(call)
            if self._wants:  # it has its input; there is no more
                self._wants = False
                with contextlib.suppress(OSError):  # what becomes of it is heard next
                    await send(call, wire.message(wire.STDIN, b""))
            await trio.lowlevel.checkpoint()

    async def _answer(self, call: socket.socket) -> None:
        """Have a person answer, whose time is not the tool's. The host says nothing else meanwhile."""
        assert self._question is not None
        assert self._ask_person is not None
        left, self._clock.deadline = self._clock.deadline - trio.current_time(), math.inf
        answer = await self._ask_person(self._question)
        self._question, self._clock.deadline = None, trio.current_time() + left
        with contextlib.suppress(OSError):  # what becomes of it is heard next
            await send(call, wire.message(wire.QUESTION, msgspec.json.encode(answer)))

    def _frames(self, data: bytes) -> list[frames.Frame]:
        """Returns the frames of these messages; frames before something that is wrong are among them."""
        if trace.calls:
            trace.calls(self._run, "heard", data)
        said: list[frames.Frame] = []
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
                    self._question = self._asked(payload)
                elif frame := self._hear(kind, payload):
                    said.append(frame)
        except GARBAGE as error:
            self._broken = True
            self.fault = bare(broken_by(error))
        return said

    def _asked(self, payload: bytes) -> hostcalls.ToolQuestion:
        if self._ask_person is None or self._question is not None:
            raise Fault("EPROTO", "it asks a question that nobody takes")
        return _questions.decode(payload)


async def ask(
    host: Host, request: hostcalls.Request, wanted: int, limit: int = wire.MAX_SAID
) -> bytes | None:
    """Returns what the first message of this kind holds, None where the host breaks off. Raises its fault."""
    with safe_sockets.closing(host.call(None)) as call:
        await send(call, announce(request))
        splitter = wire.Splitter(limit)
        while data := await receive(call):
            for kind, payload in splitter.feed(data):
                if kind == wire.FAULT:
                    raise Fault(*heard_faults.decode(payload))
                if kind == wanted:
                    return payload
            await trio.lowlevel.checkpoint()
    return None


async def begins(
    host: Host, call: socket.socket, theirs: socket.socket, more: bool, has_left: Callable[[], bool]
) -> bool:
    """Wait until the host reads its request, and close its end here; False if the request was taken back, as
    the host does not. `more` says that a part of it is not sent yet. Who has left is not kept waiting."""
    wait = trio.lowlevel.wait_writable if more else trio.lowlevel.wait_readable
    looks = 0
    while _is_unread(theirs):
        with trio.move_on_after(LOOK_SECONDS) as clock:
            await wait(call)
        if not clock.cancelled_caught:
            break
        if has_left():
            return True  # whoever gives the call up takes it back
        looks += 1
        is_dead = not host.is_alive and not host.was_stopped
        if is_dead and not host.has_served:  # the next might die of the same
            break
        if is_dead or looks >= LOOKS or host.aside or host.was_stopped or host.is_stopped:
            return not take_back(call, theirs)
    theirs.close()
    return True


def take_back(call: socket.socket, theirs: socket.socket) -> bool:
    """Take back a request that the host has not read to its end; whether there was one. It never runs then.
    The host's end is closed here, so that the end of a call that goes on is seen.

    One call of the kernel takes all that was sent, and nothing is sent after it. Else the host could read a
    rest of it, which could look like another request.
    """
    try:
        room = call.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        with theirs:
            unread = theirs.recv(2 * room, socket.MSG_DONTWAIT)
    except OSError:  # nothing is there, or its end is closed here
        return False
    with contextlib.suppress(OSError):
        call.shutdown(socket.SHUT_WR)  # the host finds the end of it when it comes to it
    return bool(unread)


def _is_unread(theirs: socket.socket) -> bool:
    try:
        return bool(theirs.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
    except OSError:
        return False


def never() -> bool:
    return False


async def let_go(call: socket.socket) -> bool:
    """Half-close the call, which cancels it, and give the host a moment to let go; whether it did."""
    await in_task()
    with trio.move_on_after(LET_GO_SECONDS, shield=True):
        with contextlib.suppress(OSError):
            call.shutdown(socket.SHUT_WR)
            while await receive(call):
                await trio.lowlevel.checkpoint()  # one that floods is never waited for
        return True
    return False


async def name_the_end(host: Host) -> Fault:
    """The host closed the call without an answer: it has died, or is dying."""
    host.note_end()
    await in_task()
    await ended(host)
    return Fault("EPROTO", f"the tool's process {host.describe_end(' during the call')}")


async def ended(host: Host) -> None:
    """Wait until it is known how the host ended: it is told after the end of its calls is seen."""
    with trio.move_on_after(EXIT_SECONDS):
        await host.exited.wait()


def broken_by(error: Exception) -> Fault:
    return Fault("EPROTO", f"the tool's host broke the protocol: {error}")


def of_the_tool(code: str, message: str) -> Fault:
    """Returns the fault that a tool tells. Only callers cancel; a tool that says so has failed by itself."""
    if code == "ECANCELED":
        return Fault("EIO", message)
    return Fault(code if is_code(code) else "EPROTO", message)
