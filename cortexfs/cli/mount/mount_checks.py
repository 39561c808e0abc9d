"""Checks of the mount; whatever touches it is asked in a child that may hang (bounded.ask)."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from cortexfs.cli import mounts
from cortexfs.cli.bounded import ask
from cortexfs.cli.mount.checks import FAIL, Check, Finding, Subject, fail, ok, warn
from cortexfs.core.errors import Fault
from cortexfs.core.wire import SOCKET_NAME
from cortexfs.state.directories import place_of


def stale(subject: Subject) -> Finding:
    mine = [mount.point for mount in mounts.mounts() if subject.uid in (0, mount.owner)]
    dead = [point for point in dict.fromkeys(mine) if mounts.is_stale(point)]
    if dead:
        return fail(f"{', '.join(dead)} lost its daemon", f"ctx umount {dead[0]}, or mount it again")
    return ok("no mount has lost its daemon")


def answers(subject: Subject) -> Finding:
    try:
        mounts.status_text(subject.root or mounts.root(None))
    except Fault as fault:
        why, _, mend = fault.message.partition("; ")
        return fail(why, mend)
    return ok(f"{subject.root} answers")


def run_socket(subject: Subject) -> Finding:
    if _silent(subject):
        return ok("no mount to ask")
    try:
        ask(lambda: _connected(f"{subject.root}/{SOCKET_NAME}"), mounts.ANSWER_SECONDS)
    except OSError as problem:
        return fail(f"{SOCKET_NAME} does not take connections: {problem.strerror}", "see: ctx status")
    return ok(f"{SOCKET_NAME} takes connections")


def object_sockets(subject: Subject) -> Finding:
    """An object that is declared and cannot be talked to now refuses connections (abi.md 5.6)."""
    if _silent(subject):
        return ok("no mount to ask")
    try:
        refusing = ask(lambda: _refusing(Path(subject.root)), mounts.ANSWER_SECONDS).decode().split()
    except OSError as problem:
        return fail(f"the objects' sockets cannot be tried: {problem.strerror}", "see: ctx status")
    if refusing:
        return warn(f"{', '.join(refusing)} take no connections", "see their .d/status, and: ctx status")
    return ok("every object's socket takes connections")


def _refusing(root: Path) -> bytes:
    found = []
    for path in (*root.glob("model/*/*.sock"), *root.glob("agent/*.sock")):
        try:
            _connected(str(path))
        except OSError:
            found.append(str(path.relative_to(root)))
    return "\n".join(found).encode()


def _silent(subject: Subject) -> bool:
    """Returns True if there is no use in asking further; `answers` has said why."""
    return answers(subject).level == FAIL


def _connected(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as runner:
        # By a descriptor of the directory: the path of a socket may have 107 bytes only (unix(7)).
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        runner.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    return b""


def broken_plugins(subject: Subject) -> Finding:
    if _silent(subject):
        return ok("no mount to ask")
    broken = mounts.facts(mounts.status_text(subject.root)).get("broken plugin", [])
    if broken:
        return warn(" / ".join(broken), "mend or disable it: ctx plugin disable NAME")
    return ok("every enabled plugin is sound")


def plugin_copies(subject: Subject) -> Finding:
    """Under root, hosts that are other users pass through every folder above."""
    copies = place_of(subject.where.state)
    if subject.uid != 0 or not copies.is_dir():
        return ok("plugins run as who may read them")
    closed = [str(above) for above in (copies, *copies.parents) if not above.stat().st_mode & 0o001]
    if closed:
        return warn(f"others cannot pass through {closed[-1]} to plugins", f"chmod o+x {' '.join(closed)}")
    return ok(f"others can pass to {copies}")


def allow_other(subject: Subject) -> Finding:
    mount = mounts.mounted_at(subject.root)
    if mount.owner == 0 if mount else subject.uid == 0:
        return ok("root's mount is everyone's")
    try:
        lines = Path("/etc/fuse.conf").read_text().split("\n")
    except OSError:
        lines = []
    if "user_allow_other" in (line.strip() for line in lines):
        return ok("users may share mounts, though a user's daemon serves that user alone")
    return ok("a user's mount is that user's alone")


CHECKS: dict[str, Check] = {
    "stale mounts": stale,
    "mount answers": answers,
    "run socket": run_socket,
    "object sockets": object_sockets,
    "plugins": broken_plugins,
    "plugin copies": plugin_copies,
    "other users": allow_other,
}
