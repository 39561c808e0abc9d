"""Nested calls: calls of tools by programs that an agent's call has started.

    async with host(world, tool, call, identity, ports) as identity: ...    while the agent's call goes on
    calls = world.nested.of(token)                      those of the caller's host, or None
    one = calls.begin(tool, dry, depth)                 a hook of its run (run/hooked_tool_run.py)

Rules: a nested call is decided like a call of the model, with the input that its tool gets: by plugins,
policy and people, who are asked in the agent's session. It is logged there below the call that made it, with
as much of its input and output as a reader needs. None of it is told to the model. A call that may have
nested calls has a host alone, so that the kernel tells whose a nested call is. After its end nothing more is
logged of them, even if its programs go on.
This file must never know sockets, runners, or how a host is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import trio
from msgspec.structs import replace

from cortexfs.agents.calls import MAX_INPUT, MeantCall, Standing
from cortexfs.agents.permissions import delegates
from cortexfs.agents.ports import AgentPorts
from cortexfs.agents.toolbox import meaning
from cortexfs.agents.window import wording
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Frame, Observer, ToolCall, ToolResult
from cortexfs.core.hooks import HookedCall, HookedOutput
from cortexfs.core.hostcalls import Identity
from cortexfs.core.policy.decision import Decision
from cortexfs.core.registry import Object

MAX_CALLS = 1000  # nested calls of one call: each is some lines of its session's log
MAX_TOLD = 4 << 10  # bytes of an input or output in that log
RUNS_PROGRAMS = "run_process"
USER = "its user"


class NestedPorts(NamedTuple):
    """The part of an agent's run that its nested calls need."""

    # Decides about a call and logs the decision. Takes the caller's depth below the agent, and the
    # permission, if it is another one than to run the tool.
    decide: Callable[..., Awaitable[Decision]]
    approved: Callable[[ToolCall, Object, Decision], Awaitable[Any]]  # the input, or None
    standing: Standing
    next_id: Callable[[str], str]  # returns a new id below that of a call
    say: Callable[..., Awaitable[None]]
    session: tuple[str, ...]  # words that name the session


def runs_programs(tool: Object) -> bool:
    """Returns True for a built-in tool that runs programs. A plugin's host has state for other calls."""
    kinds = {effect.kind for effect in tool.capabilities.effects}
    return tool.origin == "builtin" and RUNS_PROGRAMS in kinds


@asynccontextmanager
async def host(
    world: AgentPorts, tool: Object, call: str, identity: Identity, ports: NestedPorts
) -> AsyncIterator[Identity]:
    """Yields the identity of the host for an agent's call. A call that runs programs has a host and the
    session's scratch folder, and may have nested calls while it goes on. No other call is in its host."""
    if not runs_programs(tool):
        yield identity
        return
    folder = hashlib.sha256("\0".join(ports.session).encode()).hexdigest()[:32]
    calls = NestedCalls(world, call, ports)
    try:
        yield replace(identity, call=calls.token, scratch=world.scratch(identity.uid, folder))
    finally:
        calls.close()
        await calls.end()


class Nested:
    """The agents' calls that may have nested calls now, by the token of their host."""

    def __init__(self) -> None:
        self._open: dict[str, NestedCalls] = {}
        self._number = 0

    def of(self, token: str) -> NestedCalls | None:
        return self._open.get(token)

    def add(self, calls: NestedCalls) -> str:
        self._number += 1
        token = str(self._number)
        self._open[token] = calls
        return token

    def remove(self, token: str) -> None:
        self._open.pop(token, None)


class NestedCalls:
    """The nested calls of one call."""

    def __init__(self, world: AgentPorts, call: str, ports: NestedPorts) -> None:
        self.world = world
        self.token = world.nested.add(self)
        self.call = call
        self.ports = ports
        self._nested: list[NestedCall] = []
        self._number = 0
        self._saying = trio.Lock()
        self.is_over = False

    def begin(self, tool: Object, dry: bool, depth: int) -> NestedCall:
        """Returns a new nested call. Raises a Fault if no more are allowed."""
        if self._number >= MAX_CALLS:
            raise Fault("EMFILE", f"one call of an agent runs at most {MAX_CALLS} tools; make another call")
        self.ports.standing.check(is_nested=True)
        self._number += 1
        call = NestedCall(self, tool, dry, depth)
        self._nested.append(call)
        return call

    async def say(self, *frames: Frame) -> None:
        async with self._saying:
            if not self.is_over:
                await self.ports.say(*frames)

    async def tell(self, call: NestedCall) -> None:
        """Log the end of a nested call."""
        if call in self._nested:
            self._nested.remove(call)
            if call.is_said:
                await self.say(call.result())

    def close(self) -> None:
        """Allow no more nested calls, and cancel those that wait for a decision."""
        self.is_over = True
        for call in self._nested:
            call.cancel()
        self.world.nested.remove(self.token)

    async def end(self, is_heard: bool = True) -> None:
        """Log the end of the nested calls that go on, and end the host, even if the run is cancelled."""
        results = [call.result() for call in self._nested if call.is_said and is_heard]
        try:
            async with self._saying:
                if results:
                    await self.ports.say(*results)
        finally:
            with trio.CancelScope(shield=True):
                await self.world.ended(self.token)


class NestedCall:
    """One nested call, from its input to its end. `hooked` asks the plugins about it, too."""

    def __init__(self, calls: NestedCalls, tool: Object, dry: bool, depth: int) -> None:
        self._calls = calls
        self._tool = tool
        self.hooked: HookedCall | None = None
        self._about = dry, depth
        self._name = calls.ports.next_id(calls.call)
        self._below = NestedCalls(calls.world, self._name, calls.ports) if runs_programs(tool) else None
        self._ending: tuple[str, Fault | None] = ("", Fault("ECANCELED", "the outer call has ended"))
        self._changed_by = ""
        self._deciding = trio.CancelScope()
        self.delegates = delegates(tool)
        self.is_said = False
        self.is_begun = False

    @property
    def changed_by(self) -> str:
        return self._changed_by or (self.hooked.changed_by if self.hooked else "")

    @property
    def holds(self) -> bool:
        return self.hooked is not None and self.hooked.holds

    @property
    def listens(self) -> bool:
        return True

    def hold(self, size: int) -> None:
        if self.hooked:
            self.hooked.hold(size)

    def let_go(self) -> None:
        if self.hooked:
            self.hooked.let_go()

    def too_large(self) -> None:
        if self.hooked:
            self.hooked.too_large()

    async def before(self, input_: dict[str, Any] | None) -> tuple[dict[str, Any], list[Observer]]:
        """Returns the input with which the call runs. Raises a Fault if it may not run."""
        if input_ is None or len(msgspec.json.encode(input_)) > MAX_INPUT:
            raise Fault("EMSGSIZE", f"an agent's call has an input of at most {MAX_INPUT >> 10} KiB")
        self.is_said = True
        await self._calls.say(replace(self._call(_excerpt(input_)), parent=self._calls.call))
        try:
            with self._deciding:
                return await self._allowed(input_)
            raise Fault("ECANCELED", "the outer call has ended")
        except Fault as fault:
            self._ending = "", fault
            await self._calls.tell(self)
            raise

    async def _allowed(self, input_: dict[str, Any]) -> tuple[dict[str, Any], list[Observer]]:
        ports, tool = self._calls.ports, self._tool
        input_, notes = await self._ask_hooks(input_)
        decision = await self._decided(input_)
        if decision.confirm and not ports.standing.always(tool):
            verdict = await ports.approved(self._call(input_), tool, decision)
            if verdict is None:
                raise self._denied("the user did not allow it")
            now = self._calls.world.find(*tool.key)
            if now is None or meaning(now) != meaning(tool):
                raise self._denied("the tool has changed since its user was asked, or is gone")
            if verdict is not input_:
                input_, more = await self._ask_hooks(verdict)
                notes, self._changed_by = [*notes, *more], USER
            await self._decided(input_)
        ports.standing.count(denied=False)
        return input_, notes

    async def _ask_hooks(self, input_: dict[str, Any]) -> tuple[dict[str, Any], list[Observer]]:
        return await self.hooked.before(input_) if self.hooked else (input_, [])

    async def _decided(self, input_: dict[str, Any]) -> Decision:
        dry, depth = self._about
        if self._calls.is_over:
            raise Fault("ECANCELED", "the outer call has ended")
        call = MeantCall(input_, dry=dry, tried=True)  # the host asks for a dry run that must come first
        decision = await self._calls.ports.decide(self._call(input_), self._tool, call, depth)
        if not decision.allowed:
            raise self._denied(f"{decision.reason} ({decision.rule})")
        return decision

    def _denied(self, reason: str) -> Fault:
        self._calls.ports.standing.count(denied=True)
        return Fault("EACCES", reason)

    def begin(self, input_: dict[str, Any]) -> None:
        self.is_begun = True
        if self.hooked:
            self.hooked.begin(input_)

    async def after(self, output: str, fault: Fault | None, missing: int = 0) -> HookedOutput:
        assert self.hooked
        answer = await self.hooked.after(output, fault, missing)
        self._ending = answer.output, answer.refused or fault
        return answer

    def end(self, output: str, fault: Fault | None, length: int = 0) -> None:
        if self.hooked:
            self.hooked.end(output, fault)
        self._ending = output, fault

    def result(self) -> ToolResult:
        output, fault = self._ending
        text = wording.bounded(output, MAX_TOLD)
        if fault is not None:
            words = wording.denied if fault.code == "EACCES" and not self.is_begun else None
            sentence = words(fault.message) if words else wording.failed(fault.code, fault.message)
            text = f"{sentence}\n{text}".rstrip()
        return ToolResult(call=self._name, name=self._tool.name, output=text, is_error=fault is not None)

    @property
    def token(self) -> str:
        """The token of the host that this call has alone, or an empty text if it has none."""
        return self._below.token if self._below else ""

    async def log_end(self) -> None:
        """Log the end of this call and of the calls below it."""
        if self._below:
            self._below.close()
            await self._below.end(is_heard=not self._calls.is_over)
        await self._calls.tell(self)

    def close(self) -> None:
        """Allow no more nested calls below this one, however it ended."""
        if self._below:
            self._below.close()

    def cancel(self) -> None:
        self.close()
        self._deciding.cancel()

    def _call(self, input_: Any) -> ToolCall:
        return ToolCall(call=self._name, name=self._tool.name, input=input_)


def _excerpt(input_: dict[str, Any]) -> Any:
    """Returns the input for the log, cut if it is long."""
    text = msgspec.json.encode(input_).decode()
    return input_ if len(text) <= MAX_TOLD else wording.bounded(text, MAX_TOLD)
