"""Dry runs by models: which call is one, and which call has had one.

    trials = Trials()
    wanted = trials.wanted(tool, input, now)      what a model's input asks for
    trials.ended(tool, wanted, now)               that was a dry run, and went well

Rules: a run remembers its own dry runs, each good for one call with the same input of the same tool. The host
remembers them too, and is who refuses: this is here so that nobody is asked about a call that cannot be.
This file must never know what a tool does.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec

from cortexfs.agents.toolbox import meant, schema_of
from cortexfs.core.arguments import dryrun
from cortexfs.core.errors import Fault
from cortexfs.core.policy.confirming import DryRuns
from cortexfs.core.registry import Object

FIRST = (
    f'it must be run dry first: call it with the same input and "{dryrun.PROPERTY}": true,'
    " see what it says, and call it again without"
)

_encode = msgspec.json.Encoder(order="deterministic").encode


class MeantCall(NamedTuple):
    """A call as a model means it: what its tool is given, whether it is a dry run, whether it had one."""

    input: Any
    dry: bool = False
    tried: bool = False
    wrong: str = ""  # why it is neither

    @property
    def arguments(self) -> tuple[list[bytes] | None, bytes | None]:
        """As a host takes them: words, or an input."""
        data = msgspec.json.encode(self.input)
        return ([data, dryrun.OPTION], None) if self.dry else (None, data)


class AgentDryRuns:
    def __init__(self) -> None:
        self._ended = DryRuns()

    def wanted(self, tool: Object, said: Any, now: float) -> MeantCall:
        """Takes the dry run that was good for this call, if there was one."""
        input_, dry = said, False
        if not dryrun.is_taken(schema_of(tool)):
            try:
                input_, dry = dryrun.parted(said)
            except Fault as fault:
                return MeantCall(said, wrong=fault.message)
        if dry and not tool.dry_run_flag:
            return MeantCall(input_, wrong=dryrun.lacking(tool.name, dryrun.PROPERTY))
        return MeantCall(input_, dry, not dry and self._ended.use(_key(tool, input_), now))

    def ended(self, tool: Object, wanted: MeantCall, now: float) -> None:
        self._ended.add(_key(tool, wanted.input), now)


def _key(tool: Object, input_: Any) -> bytes:
    return hashlib.sha256(repr(meant(tool)).encode() + _encode(input_)).digest()
