"""As whom an agent's tools run: the person, without powers, who sees what the mount table shows.

Rules: nothing is added to what the person has. Of an agent that another one has started, both views count.
This file must never know what a tool is called with.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from cortexfs.agents.permissions import NETWORK, Powers
from cortexfs.agents.ports import AgentPorts
from cortexfs.agents.setup import Setup
from cortexfs.agents.view import View, caps, view, within
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Object

# Effects for which the default view is writable.
WRITES = frozenset({"write_file", "delete_file", "run_process"})


def acting(
    world: AgentPorts,
    setup: Setup,
    powers: Powers,
    own: Identity,
    tools: Iterable[Object],
    cwd: str,
    home: str,
) -> Identity:
    """Returns the identity of the tools' hosts. Raises EACCES where the person cannot be followed."""
    if own.is_elsewhere:
        raise Fault("EACCES", "agents do not work for callers in containers; call it from outside")
    seen = _view(world, setup, tools, cwd, home)
    return replace(
        own,
        groups=_groups(world, setup, own.groups),
        capabilities=0,
        label=powers.label,
        view=seen if own.view is None else within(seen, own.view),
        caps=tuple(dict.fromkeys((*own.caps, *world.caps, *caps(setup.mounts, home)))),
        network=own.network and powers.allows(*NETWORK),
        delegates=False,
    )


def _view(world: AgentPorts, setup: Setup, tools: Iterable[Object], cwd: str, home: str) -> View:
    kinds = {effect.kind for tool in tools for effect in tool.capabilities.effects}
    return view(setup.mounts, cwd, root=world.root, home=home, writable=bool(kinds & WRITES))


def _groups(world: AgentPorts, setup: Setup, own: tuple[int, ...]) -> tuple[int, ...]:
    """Returns those of the person that the agent's `.d/groups` names; all of them where it names none."""
    kept = tuple(gid for gid in own if gid in setup.groups) if setup.groups else own
    if kept != own and world.serves is not None:
        raise Fault("EACCES", "only a daemon of root can take groups from you; empty the agent's .d/groups")
    return kept
