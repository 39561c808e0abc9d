"""One call of a tool for an agent, in a host with only the user's identity, and the output of the call.

Main path: `ToolCalls.call` takes a host from the pool and collects the output that a `HostCall` receives. The
tool's other messages (progress, notes, media) are passed on as they come.
Rules: the kept part of an output is bounded, for each call and for each user; the rest is only counted.
This file must never know why a tool is called, or whether it may be.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import msgspec
import trio

from cortexfs.core import frames, hostcalls, jsontext, wire
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.mcp_session import refuse_agents
from cortexfs.core.registry import Object
from cortexfs.pool.call import Ask, HostCall, Say, ask, heard_observers
from cortexfs.pool.pool import Pool

FOLLOW_SECONDS = 5.0
MAX_KEPT = 2 << 20  # bytes of one output; a model gets far less of it
MAX_HELD = 64 << 20  # and of all outputs that are kept at a time for one user


class ToolCalls:
    """Calls of tools that come from no runner."""

    def __init__(self, pool: Pool, default_seconds: float) -> None:
        self._pool = pool
        self._seconds = default_seconds
        self._held: Counter[int] = Counter()  # by uid

    async def call(
        self,
        tool: Object,
        identity: hostcalls.Identity,
        request: hostcalls.CallRequest,
        say: Say,
        put: Ask | None = None,
    ) -> CallOutcome:
        """Run the tool to its end. The outcome holds any fault, of the tool or of the daemon. `put` puts
        questions of MCP servers to the person."""
        if tool.plugin is None:
            return CallOutcome("", Fault("EHOSTDOWN", f"{tool.name} cannot run: {tool.status}"))
        seconds = tool.timeout or self._seconds
        output = _Output(tool.path, identity.uid, self._held)
        host_call = HostCall(output.hear, say, ask=put if request.answers else None)
        try:
            refuse_agents(identity.label, request.environment)
            host_identity = identity
            if tool.plugin.kind == hostcalls.NATIVE:
                host_identity = hostcalls.of_call(identity, request.environment)
            find = partial(self._pool.acquire_in_turn, tool.plugin, host_identity)
            await host_call.run(self._pool, find, request, seconds)
            return output.outcome(host_call.fault)
        except Fault as fault:
            return output.outcome(fault)
        finally:
            output.forget()

    async def followed(
        self, plugin: hostcalls.Plugin, identity: hostcalls.Identity, paths: list[str]
    ) -> list[str]:
        """Returns these paths with all links followed, as a host of this identity finds them."""
        host = await self._pool.acquire_in_turn(plugin, identity)
        answer = None
        try:
            with trio.move_on_after(FOLLOW_SECONDS):
                answer = await ask(host, hostcalls.Follow(paths), wire.DESCRIPTORS)
            if answer is None:
                raise Fault("ETIMEDOUT", f"a file system of {', '.join(paths)} does not answer")
            return msgspec.json.decode(answer, type=list[str])
        except (OSError, *UNREADABLE) as error:  # the host died, or is broken
            raise Fault("EPROTO", f"the real paths of {', '.join(paths)} cannot be found: {error}") from None
        finally:
            self._pool.release(host, stuck=answer is None)


class _Output:
    """The output of one call: the kept part, and the size of all."""

    def __init__(self, path: str, uid: int, held: Counter[int]) -> None:
        self._path = path
        self._uid = uid
        self._held = held
        self._head = bytearray()  # joined, as each piece may be only a byte
        self._size = 0

    def outcome(self, fault: Fault | None) -> CallOutcome:
        text = self._head.decode(errors="ignore")  # the cut may be inside a character
        return CallOutcome(text, fault, self._size - len(self._head))

    def forget(self) -> None:
        """Stop counting it for its user."""
        self._held[self._uid] -= len(self._head)
        if not self._held[self._uid]:
            del self._held[self._uid]

    def hear(self, kind: int, payload: bytes) -> frames.Frame | None:
        if kind != wire.DELTA:
            return _frame(self._path, kind, payload)
        self._size += len(payload)
        # Keep as much as there is room for. Nothing after a gap is kept.
        if self._size - len(payload) == len(self._head):
            part = payload[: max(0, min(MAX_KEPT - len(self._head), MAX_HELD - self._held[self._uid]))]
            self._head += part
            self._held[self._uid] += len(part)
        return None


def _frame(path: str, kind: int, payload: bytes) -> frames.Frame | None:
    """Returns a tool's message other than output, as a frame. A note's source begins with the tool's path.
    The name alone may be `policy` or `approval`, the sources of the run's own notes about decisions."""
    if kind == wire.PROGRESS:
        return frames.Progress(message=payload.decode())
    if kind == wire.OBSERVER:
        source, content = heard_observers.decode(payload)
        return frames.Observer(source=f"{path}: {source}" if source else path, content=content)
    if kind == wire.MEDIA:
        return frames.Media(attachment=jsontext.decode(payload, "an attachment"))
    return None
