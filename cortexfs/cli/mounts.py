"""The CortexFS mounts of this machine, which of them a command means, and their answers.

Rules: /proc/self/mountinfo says what is mounted and never blocks; a path on a mount may block for
ever, so it is only touched through `bounded.ask`. What a mount says about itself is shown, and nothing is
done to a process because of it (daemons.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from cortexfs.cli.bounded import MAX_ANSWER, ask
from cortexfs.core import mountinfo
from cortexfs.core.errors import Fault, code_of
from cortexfs.core.mountinfo import Mount as Mount

DEFAULT_ROOT = "/ctx"
ANSWER_SECONDS = 2.0


def mounts() -> list[Mount]:
    """The CortexFS mounts of this mount namespace, in mounting order."""
    with open(mountinfo.TABLE, encoding="utf-8", errors="surrogateescape") as file:
        return mountinfo.mounts(file.read())


def absolute(path: str) -> str:
    """A mount point as mountinfo spells it, without touching the mount point itself."""
    parent, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
    return os.path.join(os.path.realpath(parent), name)


def mounted_at(point: str) -> Mount | None:
    """The mount that a lookup of `point` reaches: the last one made there."""
    return next((mount for mount in reversed(mounts()) if mount.point == point), None)


def root(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The mount that a command means: --root, CTX_ROOT, the one and only, else /ctx.

    One whose daemon has died is none where there is another. Root's /ctx gives way to a user's own single
    one. Raises EHOSTDOWN where all that there is belongs to other users, who are never meant unless named.
    """
    if named := given or environ.get("CTX_ROOT"):
        return absolute(named)
    us = os.getuid()
    there = {
        mount.point: mount
        for mount in mounts()
        if mount.everyone or mount.owner == us or mount.point == DEFAULT_ROOT
    }
    known = {point: mount for point, mount in there.items() if not mount.is_strangers(us)}
    if there and not known:
        passed = " / ".join(there[point].reason() for point in sorted(there))
        raise Fault("EHOSTDOWN", f"no CortexFS of yours or of root's is mounted; {passed}")
    if len(known) > 1:
        known = {point: mount for point, mount in known.items() if not is_stale(point)} or known
    points = sorted(known)
    own = [point for point in points if known[point].owner == us]
    if not points or DEFAULT_ROOT in own:
        return DEFAULT_ROOT
    for choice in (points, own, [DEFAULT_ROOT]):
        if len(choice) == 1 and choice[0] in known:
            return choice[0]
    raise Fault("EINVAL", f"there are several mounts, {', '.join(points)}; name one with --root or CTX_ROOT")


def answering(given: str | None, seconds: float | None = None) -> str:
    """The mount that a command means, which has answered; a Fault that says what is wrong with it."""
    point = root(given)
    status_text(point, seconds)
    return point


def status_text(point: str, seconds: float | None = None) -> str:
    """The text of <root>/status; a Fault that says what is wrong with the mount."""
    try:
        return ask(lambda: _read(f"{point}/status"), seconds or ANSWER_SECONDS).decode(errors="replace")
    except TimeoutError:
        why = f"the daemon of {point} does not answer; end it with: ctx umount {point}"
    except OSError as problem:
        if problem.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            why = f"{point} is the mount of a dead daemon; replace it with: ctx mount {point}"
        elif problem.errno in (errno.ENOENT, errno.ENOTDIR):
            why = f"no CortexFS is mounted at {point}; mount one with: ctx mount {point}"
        else:
            why = f"{point}/status cannot be read: {problem.strerror}"
            raise Fault(code_of(problem.errno), why) from None
    raise Fault("EHOSTDOWN", why)


def _read(path: str) -> bytes:
    """As it is now: what others read may be a second old. That of somebody else's mount may have no end."""
    with open(os.open(path, os.O_RDONLY | os.O_RSYNC | os.O_CLOEXEC), "rb") as file:
        return file.read(MAX_ANSWER)


def is_stale(point: str) -> bool:
    """Returns True if the mount at `point` has lost its daemon."""

    def look() -> bytes:
        with os.scandir(point) as found:  # so the daemon is asked; its folder may have no end
            next(found, None)
        return b""

    try:
        ask(look, ANSWER_SECONDS)
    except OSError as problem:
        return problem.errno in (errno.ENOTCONN, errno.ECONNABORTED)  # it dies while it is asked
    return False


def facts(text: str) -> dict[str, list[str]]:
    """The `key: value` lines of a status text; keys may repeat."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(": ")
        if colon:
            found.setdefault(key, []).append(value)
    return found


def wrong(facts: Mapping[str, list[str]]) -> dict[str, str]:
    """The tools that nobody can call, and why, by plugin."""
    return dict(line.partition(": ")[::2] for line in facts.get("wrong tools", []))


def taken(facts: Mapping[str, list[str]]) -> dict[str, str]:
    """The objects whose names were others', by plugin."""
    return dict(line.partition(": ")[::2] for line in facts.get("taken names", []))


def broken(facts: Mapping[str, list[str]], kind: str) -> dict[str, str]:
    """The reasons of broken plugins, providers or agents, by name."""
    return dict(line.partition(": ")[::2] for line in facts.get(f"broken {kind}", []))
