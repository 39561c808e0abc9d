"""Confine a host to what its identity's view shows, before any code of a plugin's runs.

Rules: the caller's powers are gone by then (identity.become), and where any of it fails nothing runs. What a
host needs besides the view, to go on working, is `SHOWN` and `CODE`.
This file must never know what a tool is asked to do.
"""

from __future__ import annotations

import os
import sys

import cortexfs
from cortexfs.core.calls import Identity, Plugin
from cortexfs.core.errors import Fault
from cortexfs.host import boxing, keeping, landlock, seccomp
from cortexfs.host.carving import carved

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


def confine(identity: Identity, plugin: Plugin) -> int | None:
    """Close to this process all that `identity.view` does not show; nothing if it is None. Raises Fault.

    The answer is a descriptor, where there is something that gate.py has to decide.
    """
    if plugin.sandbox is not None:
        boxing.box(plugin.sandbox, (*SHOWN, *CODE, *keeping.view(plugin, identity)))
    if identity.view is None:
        return None
    own: View = ((plugin.path, "rx"),) if plugin.path else ()
    try:
        shown = carved([*identity.view, *SHOWN, *CODE, *own], identity.caps)
        shown += keeping.view(plugin, identity)  # which caps close, as it is beside the daemon's own files
        paths = landlock.restrict(shown, network=identity.network)
        return seccomp.restrict(network=identity.network, paths=paths)
    except OSError as error:
        why = f"an agent's tool cannot be confined here: {error.strerror}"
        raise Fault("EACCES", why) from error
