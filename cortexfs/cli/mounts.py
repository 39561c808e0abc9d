"""The CortexFS mounts of this machine, the mount that a command means, and the answers of mounts.

Rules: /proc/self/mountinfo lists the mounts and never blocks. A path on a mount may block for ever, so it is
only touched through `bounded.ask`. The status text of a mount is shown, but never decides which process is
signalled (daemons.py).
"""

from __future__ import annotations

import contextlib
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
    """Returns the CortexFS mounts of this mount namespace, in mounting order."""
    with open(mountinfo.TABLE, encoding="utf-8", errors="surrogateescape") as file:
        return mountinfo.mounts(file.read())


def absolute(path: str) -> str:
    """Returns a mount point as mountinfo spells it, without touching the mount point itself."""
    parent, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
    return os.path.join(os.path.realpath(parent), name)


def mounted_at(point: str) -> Mount | None:
    """Returns the mount that a lookup of `point` reaches: the last one made there."""
    return next((mount for mount in reversed(mounts()) if mount.point == point), None)


def root(root_option: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Returns the mount that a command means: --root, CTX_ROOT, the only mount, or else /ctx.

    A mount whose daemon has died does not count if there is another. Root's /ctx gives way to a user's single
    own mount. Mounts of other users count only if named. Raises EHOSTDOWN if there are no others.
    """
    if name := root_option or environ.get("CTX_ROOT"):
        return absolute(name)
    us = os.getuid()
    visible = {
        mount.point: mount
        for mount in mounts()
        if mount.everyone or mount.owner == us or mount.point == DEFAULT_ROOT
    }
    known = {point: mount for point, mount in visible.items() if not mount.is_strangers(us)}
    if visible and not known:
        reasons = " / ".join(visible[point].reason() for point in sorted(visible))
        raise Fault("EHOSTDOWN", f"no CortexFS of yours or of root's is mounted; {reasons}")
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


def answering(root_option: str | None, seconds: float | None = None) -> str:
    """Returns the mount that a command means, once it answered. Raises a Fault that says what is wrong."""
    point = root(root_option)
    status_text(point, seconds)
    return point


def if_answering(root_option: str | None) -> str | None:
    """Returns the mount that a command means, or None if it does not answer: some need none. A mount that
    --root names has to answer."""
    try:
        return answering(root_option)
    except Fault:
        if root_option:
            raise
        return None


def meant(root_option: str | None) -> Mount | None:
    """Returns the mount that a command means, if there is one."""
    with contextlib.suppress(Fault):
        return mounted_at(root(root_option))
    return None


def of_others(given: str | None, so: str) -> str:
    """Returns the end of a sentence if the mount that a command means is another user's, or nothing."""
    mount = meant(given)
    if mount is None or mount.owner == os.getuid():
        return ""
    return f"; {mount.point} is the mount of {'root' if not mount.owner else f'uid {mount.owner}'}, and {so}"


def status_text(point: str, seconds: float | None = None) -> str:
    """Returns the text of <root>/status. Raises a Fault that says what is wrong with the mount."""
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
    """Read past the cache (O_RSYNC), which may be a second old. Another user's file may have no end."""
    with open(os.open(path, os.O_RDONLY | os.O_RSYNC | os.O_CLOEXEC), "rb") as file:
        return file.read(MAX_ANSWER)


def is_stale(point: str) -> bool:
    """Returns True if the mount at `point` has lost its daemon."""

    def look() -> bytes:
        with os.scandir(point) as found:  # this asks the daemon; a folder of it may have no end
            next(found, None)
        return b""

    try:
        ask(look, ANSWER_SECONDS)
    except OSError as problem:
        return problem.errno in (errno.ENOTCONN, errno.ECONNABORTED)  # ECONNABORTED: it died meanwhile
    return False


def facts(text: str) -> dict[str, list[str]]:
    """Returns the `key: value` lines of a status text. Keys may repeat."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(": ")
        if colon:
            found.setdefault(key, []).append(value)
    return found


def by_name(facts: Mapping[str, list[str]], key: str) -> dict[str, str]:
    """Returns the `NAME: TEXT` values of a key: "broken plugin", "broken agent", "wrong tools" ..."""
    return dict(line.partition(": ")[::2] for line in facts.get(key, []))
