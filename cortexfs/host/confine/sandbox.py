"""Hold a host to what its plugin's manifest claims (core/manifest/governance.py has the claims).

Landlock for files, a filter of system calls for the network and for the profile, resource limits for memory
and processor time. It comes before what an agent's view takes away, and both hold: rules of the kernel of
either kind add up.

Rules: a boxed host has no powers of root's. Where any file or the network is closed to it, it has no sockets
with a name: a service behind one could do for it what it cannot. So it runs no objects of a mount.
This file must never know what a manifest is.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity, Sandbox, Spawn
from cortexfs.linux import landlock, seccomp

# Address space that a host takes for its own threads, before any code of a plugin's runs.
OWN_BYTES = 64 << 20


def without_powers(spawn: Spawn) -> Identity:
    """Returns the host's identity: its caller, without root's powers where there is a claim, as some of
    them open what is closed and lift what is limited."""
    return spawn.identity if spawn.plugin.sandbox is None else replace(spawn.identity, capabilities=0)


def box(sandbox: Sandbox, view: Iterable[tuple[str, str]], *, metadata: bool) -> None:
    """Close to this process what the claims say. `view` is what they leave open where they close files:
    then, without `metadata`, calls that change modes, owners, times and attributes are refused."""
    try:
        _limit(resource.RLIMIT_CPU, sandbox.cpu_seconds)
        if sandbox.memory_bytes is not None:
            _limit(resource.RLIMIT_AS, _size() + OWN_BYTES + sandbox.memory_bytes)
        if sandbox.view is not None:
            # The host may look at itself; what it starts cannot.
            landlock.restrict({*view, ("/proc/self", "r")}, network=True)
        elif not sandbox.network:
            # All files, and no other process: one that has the network could be made to use it.
            landlock.restrict([("/", "rwx")], network=False)
        if sandbox.confines:
            open_ = sandbox.network and sandbox.view is None
            seccomp.close(network=sandbox.network, unix=open_, metadata=metadata or sandbox.view is None)
    except OSError as error:
        raise Fault("EACCES", f"its plugin's sandbox cannot be had here: {error.strerror}") from error


def _limit(which: int, most: int | None) -> None:
    if most is not None:
        hard = resource.getrlimit(which)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))


def _size() -> int:
    """The address space of this process."""
    found = re.search(r"^VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise Fault("EACCES", "its plugin's sandbox cannot be had here: /proc does not tell its size")
    return int(found[1]) << 10
