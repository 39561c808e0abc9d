"""The machines that a call may go to: the named machine, or any that exports the object.

`NAME+any` exists while at least one other machine exports NAME. A call of it goes to the least busy machine,
by that machine's report and by our own calls there. If that machine has not begun it, it goes to the next.

Rules: a pool has the effects of all its machines together. A call that may have begun goes to no other. This
machine is in no pool of its own: its objects are called by their own names.
This file must never know how a call is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.team.messages import ANY, FromLink, MachineState, ObjectGone, RemoteObject
from cortexfs.team.presence import Presence


class Pools:
    def __init__(self, presence: Presence, machine: str, tell: Callable[[FromLink], None]) -> None:
        self._presence = presence
        self._machine = machine
        self._tell = tell
        self._members: dict[tuple[str, str], dict[str, RemoteObject]] = {}
        self._is_live = False
        self.going: Callable[[str], int] = lambda machine: 0  # the number of our calls on a machine

    def choose(self, machine: str, class_: str, name: str) -> Sequence[RemoteObject]:
        """Returns the machines for a call, the best first. Raises EHOSTDOWN if none is present."""
        members = self._members.get((class_, name), {})
        if machine == ANY:
            candidates = [member for member in members.values() if self._presence.is_live(member.machine)]
            if not candidates:
                why = f"no machine that exports {class_}/{name} is connected"
                raise Fault("EHOSTDOWN", f"{why}; see: ctx team status")
            return sorted(candidates, key=lambda member: self._rank(member.machine))
        if not self._presence.is_live(machine):
            raise Fault("EHOSTDOWN", f"the machine {machine} is away; see: ctx team status")
        if machine not in members:
            raise Fault("ENOENT", f"the machine {machine} does not export {class_}/{name} any more")
        return [members[machine]]

    def _rank(self, machine: str) -> tuple[int, int, str]:
        """Returns the load. Between equal loads our own calls decide, as the report may be a moment old."""
        calls = self.going(machine)
        return max(self._presence.busy.get(machine, 0), calls), calls, machine

    def changed(self, change: RemoteObject | ObjectGone) -> None:
        """Take in that a machine has changed an export, or has withdrawn it."""
        if change.machine == self._machine:
            return
        key = (change.class_, change.name)
        members = self._members.setdefault(key, {})
        if isinstance(change, RemoteObject):
            members[change.machine] = change
        else:
            members.pop(change.machine, None)
        if not members:
            del self._members[key]
        self._tell(_pooled(members) if members else ObjectGone(ANY, *key))

    def machine_changed(self) -> None:
        """Take in that a machine came or went. Pools are live while any other machine is."""
        is_live = any(machine != self._machine for machine in self._presence.live)
        if is_live != self._is_live:
            self._is_live = is_live
            self._tell(MachineState(ANY, is_live))


def _pooled(members: Mapping[str, RemoteObject]) -> RemoteObject:
    """Returns the pool, as an object of a machine with the name `any`."""
    every = [members[machine] for machine in sorted(members)]
    effects = dict.fromkeys(effect for member in every for effect in member.capabilities.effects)
    return replace(
        every[0],
        machine=ANY,
        capabilities=replace(every[0].capabilities, effects=tuple(effects)),
        dry_run_flag=all(member.dry_run_flag for member in every),
    )
