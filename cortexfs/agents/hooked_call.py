"""The calls of an agent, where plugins are asked about them.

    call = await before(hooked, call, say)          with the input that is decided about; Refused by a plugin
    outcome = await around(hooked, input, run, say)

Rules: plugins are asked before policy and people are, who so decide about the input that is used. What a
person has made of it, they are asked about again. A plugin that rewrites the input of a dry run leaves
it a dry run.
This file must never know which plugins there are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from cortexfs.agents.ports import HookedCall
from cortexfs.core.arguments.dryrun import PROPERTY
from cortexfs.core.errors import Fault
from cortexfs.core.frames import ToolCall
from cortexfs.core.hostcalls import CallOutcome

MAX_INPUT = 256 << 10  # bytes of a call's input: it is logged, shown and asked about

Say: TypeAlias = Callable[..., Awaitable[None]]


class CallRefusal(Fault):
    """A plugin does not want the call, or cannot be asked."""


async def before(hooked: HookedCall | None, call: ToolCall, say: Say) -> ToolCall:
    """The call as plugins leave it. An input that is no object is refused by whoever runs it."""
    if hooked is None or not isinstance(call.input, dict):
        return call
    try:
        input_, notes = await hooked.before(call.input)
    except Fault as fault:
        raise CallRefusal(fault.code, fault.message) from None
    if not notes:
        return call
    # Few plugins know the word, and a call that was meant to be dry must not happen.
    if PROPERTY in call.input:
        input_ = {PROPERTY: call.input[PROPERTY]} | input_
    if len(msgspec.json.encode(input_)) > MAX_INPUT:
        raise CallRefusal("EMSGSIZE", f"a plugin has made an input over {MAX_INPUT >> 10} KiB of it")
    await say(*notes)
    return replace(call, input=input_)


async def around(
    hooked: HookedCall | None, input_: Any, run: Callable[[], Awaitable[CallOutcome]], say: Say
) -> CallOutcome:
    """Run it, and what plugins leave of its outcome."""
    if hooked is None:
        return await run()
    hooked.begin(input_ if isinstance(input_, dict) else {})
    try:
        outcome = await run()
        after = await hooked.after(outcome.output, outcome.fault, outcome.missing)
    except BaseException:  # a cancellation: it goes on when this is told
        hooked.end("", Fault("ECANCELED", ""))
        raise
    await say(*after.notes)
    if after.refused is not None:
        return CallOutcome("", after.refused)
    return outcome._replace(output=after.output)
