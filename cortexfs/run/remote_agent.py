"""The driver of an agent of another machine, for single calls: it runs there, and its frames come here.

Rules: the run belongs to the other machine, which starts and ends it; here it is part of the caller's run.
Frames from that machine are untrusted: decoded, bounded, and stripped of its event numbers and run ids.
This file must never know how machines talk to each other.
"""

from __future__ import annotations

import msgspec
import trio

from cortexfs.core import frames, hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Done, Error, Start
from cortexfs.core.jsontext import UNREADABLE, clipped
from cortexfs.core.lines import LineSplitter
from cortexfs.core.registry import Object
from cortexfs.core.talk.protocol import is_foreign
from cortexfs.models.ask.driver import Turn
from cortexfs.peers import safe_sockets
from cortexfs.peers.streams import receive, send
from cortexfs.pool.call import of_the_tool
from cortexfs.pool.host import announce
from cortexfs.pool.pool import Pool

UMASK = 0o077


async def answer(pool: Pool, agent: Object, turn: Turn) -> None:
    assert agent.plugin is not None
    input_ = {"input": turn.input} if isinstance(turn.input, str) else turn.input
    invocation = hostcalls.Invocation(agent.name, None, str(turn.uid), "exec")
    request = hostcalls.CallRequest("", invocation, None, msgspec.json.encode(input_), UMASK, {})
    host = await pool.acquire(agent.plugin, turn.who.identity)
    with safe_sockets.closing(host.call(None)) as stream:
        await send(stream, announce(request))
        lines, said = LineSplitter(), _Said()
        while not said.is_done and (data := await receive(stream)):
            if heard := said.frames(lines.feed(data)):
                await turn.say(*heard)
            await trio.lowlevel.checkpoint()
    if said.fault is not None:
        raise said.fault
    if not said.is_done:
        raise Fault("EHOSTDOWN", "the link to the team has ended during the call")


class _Said:
    """A run on the other machine, as far as its frames have come."""

    def __init__(self) -> None:
        self.is_done = False
        self.fault: Fault | None = None

    def frames(self, lines: list[bytes | None]) -> list[frames.Frame]:
        """Returns the frames to pass on. Raises EPROTO."""
        found: list[frames.Frame] = []
        for line in lines:
            if not line:
                raise Fault("EPROTO", "the agent's machine has sent an empty line, or one that is too long")
            try:
                frame = frames.decode(line)
            except UNREADABLE as error:
                if is_foreign(line):
                    continue
                raise Fault("EPROTO", f"the agent's machine has sent an invalid frame: {error}") from None
            match frame:
                case Start():
                    continue
                case Error(code=code, message=message):
                    self.fault = of_the_tool(code, clipped(message))
                case Done(status=status, code=code):
                    self.is_done = True
                    if status != "ok" and self.fault is None:
                        self.fault = of_the_tool(code or "EPROTO", "the run has failed on that machine")
                case _:
                    found.append(msgspec.structs.replace(frame, id=None, run=None, request=None))
        return found
