"""`ctx restart`: end a mount's daemon and start it again at the same place, with the same directories.

What a daemon takes over only when it starts: config.toml, another version of the code, its environment.

Rules: state and configuration are those of the daemon that runs, unless others are named, so that nobody
restarts into another state by mistake. It is `ctx umount` and then `ctx mount`, and nothing between.
"""

from __future__ import annotations

import argparse
import os

from cortexfs.cli import daemons, mounts
from cortexfs.cli.mount import mount, umount
from cortexfs.cli.parser import PLACES, Command, arg
from cortexfs.core.errors import EXIT_OK, Fault


def run(options: argparse.Namespace) -> int:
    root = options.point = mounts.root(options.point or options.root)
    found = mounts.mounted_at(root)
    if not found:
        raise Fault("EHOSTDOWN", f"nothing of CortexFS is mounted at {root}; start it with: ctx mount {root}")
    if found.owner != os.getuid():  # it would become ours, with directories that somebody else chose
        mend = f"only that user may restart it; to end it: ctx umount {root}"
        raise Fault("EPERM", f"{root} was mounted by uid {found.owner}; {mend}")
    if not mounts.is_stale(root):
        if daemon := daemons.of(found):
            daemon.process.close()
            options.state, options.config = options.state or daemon.state, options.config or daemon.config
        elif not (options.state and options.config):
            why = "its daemon is not among the processes here, so that its directories are not known"
            raise Fault("EHOSTDOWN", f"{why}; name both, with --state and --config")
    status = umount.run(options)
    if status != EXIT_OK:
        return status
    options.foreground, options.strict, options.ready_fd = False, False, None
    return mount.run(options)


COMMANDS = {
    "restart": Command(
        run,
        (arg("point", "ROOT", "the mount to restart (default: as --root)", nargs="?"), *PLACES),
        ("ctx restart", "ctx restart ~/ctx"),
    ),
}
