"""A call by an agent's model on its way to the tool: its id, its dry run, the changes by plugins, and its
user's permission for the session.

    CallNames().with_ids(calls)                  ids that the run has not seen, inputs of a bounded size
    AgentDryRuns().meant_call(tool, input, now)  the call that a model's input asks for
    call = await before(hooked, call, say)       the call as plugins change it; raises CallRefusal
    outcome = await around(hooked, input, run, say)
    Standing(memory, made).always(tool)          True if its user allows the tool for the whole session

Rules: plugins are asked before policy and people, so that these decide about the input that is used. If a
person edits the input, plugins and policy are asked again. A plugin that rewrites the input of a dry run
leaves it a dry run. A run remembers its own dry runs; each is good for one call of the same tool with the
same input. The host remembers them too, and refuses; they are remembered here so that no person is asked
about a call that would be refused. A permission for an agent does not hold for a later agent of the same
name. A tool that is asked about each time is never allowed for a session.
This file must never know which plugins there are, which person is asked, or what a tool does.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import msgspec
import trio
from msgspec.structs import replace

from cortexfs.agents.permissions import tool_of
from cortexfs.agents.toolbox import Meaning, meaning, schema_of
from cortexfs.core.arguments import dryrun
from cortexfs.core.arguments.dryrun import PROPERTY
from cortexfs.core.errors import Fault
from cortexfs.core.frames import ToolCall
from cortexfs.core.hooks import HookedCall
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.policy.confirming import Denials, DryRuns, asks_each_time
from cortexfs.core.registry import Object

MAX_INPUT = 256 << 10  # bytes of a call's input: it is logged, shown and asked about

Say: TypeAlias = Callable[..., Awaitable[None]]


class CallRefusal(Fault):
    """A plugin refuses the call, or cannot be asked."""


async def before(hooked: HookedCall | None, call: ToolCall, say: Say) -> ToolCall:
    """Returns the call as plugins change it. An input that is no object is refused later, when it is run."""
    if hooked is None or not isinstance(call.input, dict):
        return call
    try:
        input_, notes = await hooked.before(call.input)
    except Fault as fault:
        raise CallRefusal(fault.code, fault.message) from None
    if not notes:
        return call
    # Few plugins know this property and keep it, and a dry run must not become a real call.
    if PROPERTY in call.input:
        input_ = {PROPERTY: call.input[PROPERTY]} | input_
    if len(msgspec.json.encode(input_)) > MAX_INPUT:
        raise CallRefusal("EMSGSIZE", f"a plugin changed the input to over {MAX_INPUT >> 10} KiB, the limit")
    await say(*notes)
    return replace(call, input=input_)


async def around(
    hooked: HookedCall | None, input_: Any, run: Callable[[], Awaitable[CallOutcome]], say: Say
) -> CallOutcome:
    """Run the call. Returns its outcome as plugins change it."""
    if hooked is None:
        return await run()
    hooked.begin(input_ if isinstance(input_, dict) else {})
    try:
        outcome = await run()
        after = await hooked.after(outcome.output, outcome.fault, outcome.missing)
    except BaseException:  # a cancellation: it goes on once the plugins know of it
        hooked.end("", Fault("ECANCELED", ""))
        raise
    await say(*after.notes)
    if after.refused is not None:
        return CallOutcome("", after.refused)
    return outcome._replace(output=after.output)


MAX_NAME = 64  # the most characters that a tool's name has
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)


class CallNames:
    """The ids of the calls of one run."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._nested: dict[str, int] = {}

    def with_ids(self, calls: Iterable[ToolCall]) -> list[ToolCall]:
        result = []
        for call in calls:
            if len(msgspec.json.encode(call.input)) > MAX_INPUT:
                raise Fault("EMSGSIZE", f"the model made a call with an input over {MAX_INPUT >> 10} KiB")
            result.append(replace(call, call=self._id(call.call), name=call.name[:MAX_NAME]))
        return result

    def below(self, call: str) -> str:
        """Returns the id of a nested call, made by a program that the call `call` has started."""
        number = self._nested[call] = self._nested.get(call, 0) + 1
        return self._id(f"{call[: MAX_NAME - 8]}.{number}")

    def _id(self, name: str) -> str:
        found = name if _ID.fullmatch(name) else f"call{len(self._ids) + 1}"
        while found in self._ids:
            found = f"{found}.{len(self._ids) + 1}"
        self._ids.add(found)
        return found


class RunClock:
    """The time that a run has. In `async with` a person is asked, one thing at a time: it stands still."""

    def __init__(self, secs: float) -> None:
        self.scope = trio.CancelScope(deadline=trio.current_time() + secs)
        self._lock = trio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        self._rest = self.scope.deadline - trio.current_time()
        self.scope.deadline = math.inf

    async def __aexit__(self, *_: object) -> None:
        self.scope.deadline = trio.current_time() + self._rest
        self._lock.release()


ALWAYS = "always"
DENIED = "denials"


class Standing:
    def __init__(self, memory: dict[str, object], created: float) -> None:
        self._memory = memory
        self._always = f"{ALWAYS} {created}"

    def always(self, tool: Object) -> bool:
        """Returns True if the agent's user allows this tool for the whole session."""
        return meaning(tool) in self._allowed() and not asks_each_time(tool_of(tool))

    def allow(self, tool: Object) -> None:
        self._allowed().add(meaning(tool))

    def count(self, *, denied: bool) -> None:
        self._memory[DENIED] = self._denials().after(denied)

    def check(self, *, is_nested: bool = False) -> None:
        """Raises EACCES after too many denied calls, as the run has to wait for its user. A nested call does
        not reset the count, so that the run ends once the agent's call around it has ended."""
        denials = self._denials()
        if denials.pause:
            if not is_nested:
                self._memory[DENIED] = Denials(0, denials.ever)
            why = f"{denials.in_a_row} calls in a row were denied"
            raise Fault("EACCES", f"{why}, so the agent stops; say what it should do instead, or allow more")
        if denials.escalate:
            raise Fault("EACCES", f"{denials.ever} calls of this session were denied; begin another session")

    def _allowed(self) -> set[Meaning]:
        found = self._memory.setdefault(self._always, set())
        assert isinstance(found, set)
        return found

    def _denials(self) -> Denials:
        found = self._memory.get(DENIED, Denials())
        assert isinstance(found, Denials)
        return found


FIRST = (
    f'it needs a dry run first: call it with the same input and "{dryrun.PROPERTY}": true,'
    " read its answer, and call it again without"
)

_encode = msgspec.json.Encoder(order="deterministic").encode


class MeantCall(NamedTuple):
    """A call as a model means it: the tool's input, True for a dry run, True if a dry run came before it."""

    input: Any
    dry: bool = False
    tried: bool = False
    wrong: str = ""  # the fault of an input that asks for neither

    @property
    def arguments(self) -> tuple[list[bytes] | None, bytes | None]:
        """The arguments for a host: words, or an input."""
        data = msgspec.json.encode(self.input)
        return ([data, dryrun.OPTION], None) if self.dry else (None, data)


class AgentDryRuns:
    def __init__(self) -> None:
        self._dry_runs = DryRuns()

    def meant_call(self, tool: Object, value: Any, now: float) -> MeantCall:
        """Returns the call that the model means. A dry run that was good for this call is used up."""
        input_, dry = value, False
        if not dryrun.is_taken(schema_of(tool)):
            try:
                input_, dry = dryrun.parted(value)
            except Fault as fault:
                return MeantCall(value, wrong=fault.message)
        if dry and not tool.dry_run_flag:
            return MeantCall(input_, wrong=dryrun.lacking(tool.name, dryrun.PROPERTY))
        return MeantCall(input_, dry, not dry and self._dry_runs.use(_key(tool, input_), now))

    def add(self, tool: Object, call: MeantCall, now: float) -> None:
        self._dry_runs.add(_key(tool, call.input), now)


def _key(tool: Object, input_: Any) -> bytes:
    return hashlib.sha256(repr(meaning(tool)).encode() + _encode(input_)).digest()
