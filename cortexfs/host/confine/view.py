"""Confine a host to what its identity's view shows and its plugin claims, before any code of a plugin's runs.

Main path: `enclose` comes while the host still has powers over mounts (identity.become), and `close` when the
caller's powers are gone.

Rules: where any of it fails nothing runs. What a host needs besides the view, to go on working, is `SHOWN`
and `CODE`.
This file must never know what a tool is asked to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import cortexfs
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity, Plugin
from cortexfs.host.call import plugin_state
from cortexfs.host.confine import leftovers, readonly_mounts, wasm_calls
from cortexfs.host.confine import sandbox as boxing
from cortexfs.host.confine.hidden_paths import carved
from cortexfs.linux import landlock, seccomp

WASM = "wasm"  # a kind of plugins: host/wasm/tools.py, which is not imported for it
View = tuple[tuple[str, str], ...]

# Shown to every confined host.
SHOWN: View = (
    # where the dynamic linker looks; modules of Python, and every program, are of no use without
    ("/usr/lib", "rx"),
    ("/usr/lib64", "rx"),
    ("/lib", "rx"),
    ("/lib64", "rx"),
    ("/etc/ld.so.cache", "r"),
    ("/etc/ld.so.preload", "r"),
    # what programs take for granted, and that says nothing about this machine
    ("/dev/null", "rw"),
    ("/dev/zero", "rw"),
    ("/dev/full", "rw"),
    ("/dev/random", "r"),
    ("/dev/urandom", "r"),
)

# What is imported late: Python with its packages, and this one. Known before any host is forked.
CODE: View = tuple(
    (path, "rx")
    for path in {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(cortexfs.__file__)), *sys.path}
    # Not the root directory, as some embedded Python has for its prefix, and nothing relative.
    if path.startswith("/") and path.strip("/")
)


class Ground(NamedTuple):
    """The ground on which a confinement stands."""

    sealed: bool  # whether no file can be changed through the program that hosts execute (sealed_program.py)
    state: str = ""  # the daemon's state directory; empty: there is none
    kept: str = ""  # where plugins keep what outlives hosts
    mark: str = ""  # of that directory's hosts (leftovers.py)


class Confinement:
    """The confinement of one host: none where its identity has no view and its plugin claims nothing."""

    def __init__(self, identity: Identity, plugin: Plugin, ground: Ground) -> None:
        self._ground = ground
        self._identity = identity
        self._plugin = plugin
        self._claimed: View = ()  # what the plugin's claims leave open
        self._shown: View = ()  # what the identity's view does
        self._keeps_metadata = False  # its mounts do, so that no call has to be refused

    def enclose(self) -> None:
        """Find what is open, as the caller, and let nothing else be changed. Raises Fault EACCES."""
        identity, plugin = self._identity, self._plugin
        kept = plugin_state.view(plugin, identity)
        views = []
        if plugin.sandbox is not None and plugin.sandbox.view is not None:
            self._claimed = (*plugin.sandbox.view, *SHOWN, *CODE, *kept)
            views.append(self._claimed)
        if identity.view is not None:
            own: View = ((plugin.path, "rx"),) if plugin.path else ()
            shown = carved([*identity.view, *SHOWN, *CODE, *own], identity.caps)
            self._shown = (*shown, *kept)  # which caps close, as it is beside the daemon's own files
            views.append(self._shown)
        if not self._ground.sealed:  # the filter refuses the calls instead
            return
        try:
            readonly_mounts.enter()
        except OSError:  # in this caller's namespaces there are no mounts to have
            return
        with _told():
            for view in views:
                readonly_mounts.keep(view)
            if self._ground.state:
                leftovers.mark(self._ground.state, self._ground.mark)
        self._keeps_metadata = True

    def close(self) -> int | None:
        """Close to this process all that is not open to it, for good; before that `enclose` was called where
        there is a view. Returns a descriptor where there is something that socket_gate.py decides. Raises
        Fault."""
        asks = self._close()
        if self._plugin.kind == WASM and os.uname().machine in seccomp.MACHINES:
            seccomp.allow_only(wasm_calls.numbers(os.uname().machine))  # last: it allows no other filter
        return asks

    def _close(self) -> int | None:
        identity, sandbox = self._identity, self._plugin.sandbox
        if sandbox is not None:
            boxing.box(sandbox, self._claimed, metadata=self._keeps_metadata)
        if identity.view is None:
            return None
        with _told():
            landlock.restrict(self._shown, network=identity.network)
            return seccomp.restrict(network=identity.network, metadata=self._keeps_metadata)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Fault("EACCES", f"an agent's tool cannot be confined here: {error.strerror}") from error
