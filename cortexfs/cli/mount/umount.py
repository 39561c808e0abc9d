"""`ctx umount`: end a mount and its daemon, also a dead or a hung one, and report what was done.

A mount whose daemon answers is ended by SIGTERM: the daemon syncs sessions and closes the sockets that would
keep the mount busy. A daemon that does not answer gets the same signal. Then its FUSE connection is aborted,
as only this frees a daemon that waits for itself. Then it is killed. A mount without a daemon is detached.

Rules: this process never touches the mount point (a stat may hang for ever). A daemon is not believed about
which process it is (daemons.py). It may move its mount meanwhile (held_mounts.py).
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess

from cortexfs.cli import daemons, mounts, progress
from cortexfs.cli.daemons import PinnedProcess
from cortexfs.cli.mounts import Mount
from cortexfs.cli.output import say
from cortexfs.cli.parser import PLACES, Command, arg
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault, os_faults
from cortexfs.core.mountinfo import FSTYPE
from cortexfs.linux import held_mounts

STOP_SECONDS = 10.0
HUNG_SECONDS = 3.0


def run(options: argparse.Namespace) -> int:
    root = mounts.root(options.point or options.root)
    if not (mount := mounts.mounted_at(root)):
        say(f"nothing of CortexFS is mounted at {root}")
        return EXIT_FAILED
    if os.getuid() not in (0, mount.owner):
        mend = "only that user and root may unmount it"
        raise Fault("EPERM", f"{root} was mounted by uid {mount.owner}; {mend}")
    if mounts.is_stale(root):
        detach(mount)
        say(f"detached {root}; its daemon was dead already")
        return EXIT_OK
    daemon = daemons.of(mount)
    process = daemon and daemon.process
    with progress.shown(f"the daemon of {root} ends"):
        try:
            mounts.status_text(root)
        except Fault as fault:
            say(fault.message.partition(";")[0])
            _force(mount, process)
        else:
            _stop(mount, process)
    return EXIT_OK


def _stop(mount: Mount, process: PinnedProcess | None) -> None:
    """End a daemon that answers."""
    if process is None:
        detach(mount)
        say(f"detached {mount.point}; its daemon is in another pid namespace, and ends when it notices")
    elif process.end(signal.SIGTERM, STOP_SECONDS):
        _sweep(mount)
        say(f"unmounted {mount.point}")
    else:
        say(f"the daemon (pid {process.pid}) did not stop within {STOP_SECONDS:.0f} s")
        _force(mount, process)


def _force(mount: Mount, process: PinnedProcess | None) -> None:
    """End a daemon that does not answer, gently first."""
    if process and process.end(signal.SIGTERM, HUNG_SECONDS):
        _sweep(mount)
        say(f"unmounted {mount.point}: its daemon (pid {process.pid}) ended on SIGTERM")
        return
    _abort(mount)
    _sweep(mount)
    if process is None:
        say(f"detached {mount.point}; its daemon was not found, so look for it with: ps -C python3,ctx -f")
    elif process.is_gone(HUNG_SECONDS) or process.end(signal.SIGKILL, HUNG_SECONDS):
        say(f"detached {mount.point} and ended its daemon (pid {process.pid})")
    else:
        why = f"its daemon (pid {process.pid}) does not die of SIGKILL"
        raise Fault("EBUSY", f"detached {mount.point}, but {why}")


def _abort(mount: Mount) -> None:
    """Fail every request in the kernel: all that hangs on the mount, the daemon too, gets ENOTCONN."""
    try:
        if os.getuid() == 0:
            held_mounts.abort_fuse(mount.point, os.makedev(0, mount.connection))
        else:
            with open(f"/sys/fs/fuse/connections/{mount.connection}/abort", "w") as file:
                file.write("1")
    except OSError as problem:
        if problem.errno == errno.EXDEV:
            why = f"{mount.point} was moved and is left alone; see: findmnt -t {FSTYPE}"
            raise Fault("EXDEV", why) from None
        say(f"its FUSE connection could not be aborted: {problem.strerror}")
    else:
        say("aborted its FUSE connection")


def _sweep(mount: Mount) -> None:
    """Detach the mount if it outlived its daemon."""
    remaining = mounts.mounted_at(mount.point)
    if remaining and remaining.connection == mount.connection:
        detach(mount)


def detach(mount: Mount) -> None:
    """Take the mount out of the tree at once, even if it is in use (umount2(2), MNT_DETACH)."""
    if os.getuid() == 0:
        with os_faults(f"{mount.point} cannot be unmounted"):
            held_mounts.unmount(mount.point, os.makedev(0, mount.connection))
        return
    words = ["fusermount3", "-u", "-z", mount.point]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Fault("EHOSTDOWN", "fusermount3 is missing; install the package fuse3") from None
    if done.returncode:
        raise Fault("EPERM", f"{mount.point} cannot be unmounted: {done.stderr.strip()}")


COMMANDS = {
    "umount": Command(
        run,
        (arg("point", "ROOT", "the mount to end (default: as --root)", nargs="?"), *PLACES),
        ("ctx umount", "ctx umount ~/ctx"),
    ),
}
