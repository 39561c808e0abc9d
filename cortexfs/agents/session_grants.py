"""A session's memory of its user's decisions: the tools allowed for all of it, and how often calls were
denied.

Rules: what was allowed to an agent is not allowed to one of the same name that was made since. A tool that is
asked about each time is never allowed for a session.
This file must never know who is asked, or how.
"""

from __future__ import annotations

from cortexfs.agents.permissions import tool_of
from cortexfs.agents.toolbox import Meant, meant
from cortexfs.core.errors import Fault
from cortexfs.core.policy.confirming import Denials, asks_each_time
from cortexfs.core.registry import Object

ALWAYS = "always"
DENIED = "denials"


class Standing:
    def __init__(self, memory: dict[str, object], made: float) -> None:
        self._memory = memory
        self._always = f"{ALWAYS} {made}"

    def always(self, tool: Object) -> bool:
        """Returns True if its user allows this tool for the whole session."""
        return meant(tool) in self._allowed() and not asks_each_time(tool_of(tool))

    def allow(self, tool: Object) -> None:
        self._allowed().add(meant(tool))

    def count(self, *, denied: bool) -> None:
        self._memory[DENIED] = self._denials().after(denied)

    def check(self) -> None:
        """Raises EACCES where calls are denied again and again: the run has to wait for its user."""
        denials = self._denials()
        if denials.pause:
            self._memory[DENIED] = Denials(0, denials.ever)
            why = f"{denials.in_a_row} calls in a row were denied"
            raise Fault("EACCES", f"{why}, so the agent stops; say what it should do instead, or allow more")
        if denials.escalate:
            raise Fault("EACCES", f"{denials.ever} calls of this session were denied; begin another one")

    def _allowed(self) -> set[Meant]:
        found = self._memory.setdefault(self._always, set())
        assert isinstance(found, set)
        return found

    def _denials(self) -> Denials:
        found = self._memory.get(DENIED, Denials())
        assert isinstance(found, Denials)
        return found
