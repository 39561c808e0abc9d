"""Become the caller: the steps between fork and the first line of plugin code.

Rules: the order of the steps is the security of the thing, and each says why it stands where it
does. Any step that fails raises Fault EACCES, and the process must then run nothing of the
plugin's. What the process ends with is at most what the identity names: its user and groups, its
capabilities, its namespaces, its root. Runs in a single-threaded process (setns(2) demands it).
This file must never know what a plugin, a frame or a run is.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Identity
from cortexfs.linux import capabilities as capabilities_
from cortexfs.linux import syscalls

Forked = Callable[[int], None]
Enclose = Callable[[], None] | None


def become(
    identity: Identity, pidfd: int | None, root_fd: int | None, forked: Forked, enclose: Enclose = None
) -> None:
    """Become `identity`, or raise Fault. `pidfd` is the caller's, `root_fd` its root directory. `enclose` is
    called as the caller, with powers over mounts besides.

    Entering a pid namespace takes another fork: then this returns in the child only, and the
    process that called it tells `forked` the child's pid, as its own namespace counts, and ends.
    """
    # Out of the daemon's session and terminal, and no file may be left readable by mistake.
    os.setsid()
    os.umask(0o077)
    _leave_keyring()
    # Both are opened and compared before anything is given up or joined: afterwards /proc may be
    # another or none, and a descriptor that was compared cannot change its meaning.
    namespaces = _open_namespaces(identity, pidfd)
    _check_root(identity, root_fd)
    privileged = os.geteuid() == 0
    if privileged:
        # While the ids still mean what the daemon's user namespace says that they mean.
        _take_user(identity)
    else:
        _require_same_user(identity)
    _join(namespaces, user_last=privileged)
    if "pid" in namespaces:
        _fork_inside(forked)
    for fd in namespaces.values():
        os.close(fd)
    if root_fd is not None:
        with _step("enter your root directory"):
            os.fchdir(root_fd)
            os.chroot(".")
    with _step("enter your root directory"):
        os.chdir("/")
    if enclose is not None:
        with _step("give up its own powers"):
            # None that opens what is closed to the caller: paths are looked up now.
            syscalls.set_capabilities(syscalls.permitted() & _OVER_MOUNTS)
        enclose()
    # Who is confined has none: some of them open what view.py closes.
    _drop(identity.capabilities if identity.view is None else 0)
    _seal()


_OVER_MOUNTS = capabilities_.mask(capabilities_.SYS_ADMIN, capabilities_.SETPCAP)


def open_up() -> None:
    """Let the user look into the process, which holds no more than its user does; without this its
    own /proc/self would be root's. After all that the fork server is told: until here no process of
    that user's can take the place of this one, or its descriptors (ptrace(2), pidfd_getfd(2))."""
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)


def enters_pid_namespace(identity: Identity) -> bool:
    names = dict(zip(syscalls.NAMESPACES, identity.namespaces, strict=False))
    return "pid" in names and names["pid"] != os.stat("/proc/self/ns/pid").st_ino


@contextmanager
def _step(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"no tool can run as you here: the daemon could not {what} ({reason})"
        raise Fault("EACCES", message) from error


def _leave_keyring() -> None:
    """A session keyring is inherited, and may be searched by whoever holds it, of whatever uid."""
    with _step("give up its own keyring"):
        try:
            syscalls.new_session_keyring()
        except OSError as error:
            # A kernel without keyrings, or a container that forbids keyctl(2), to the tool as well.
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise


def _open_namespaces(identity: Identity, pidfd: int | None) -> dict[str, int]:
    """Descriptors of the namespaces that differ from ours, each checked against the identity."""
    if not identity.namespaces:
        return {}
    if pidfd is None:
        raise Fault("EACCES", "no tool can run in your namespaces: the daemon gave no way into them")
    with _step("find your namespaces"):
        pid = _pid_of(pidfd)
        fds = {}
        for name, inode in zip(syscalls.NAMESPACES, identity.namespaces, strict=True):
            if os.stat(f"/proc/self/ns/{name}").st_ino == inode:
                continue
            fds[name] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(fds[name]).st_ino != inode:
                raise OSError(errno.ESTALE, f"you have changed your {name} namespace")
        # Not gone yet, so that `pid` meant the caller all along.
        signal.pidfd_send_signal(pidfd, 0)
    return fds


def _pid_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    raise OSError(errno.ESRCH, "no process behind the descriptor")


def _check_root(identity: Identity, root_fd: int | None) -> None:
    wanted = identity.root != (0, 0)
    if wanted != (root_fd is not None):
        raise Fault("EACCES", "no tool can run below your root directory: the daemon gave no way into it")
    if root_fd is not None:
        with _step("find your root directory"):
            if syscalls.mount_and_inode(root_fd) != identity.root:
                raise OSError(errno.ESTALE, "you have changed your root directory")


def _take_user(identity: Identity) -> None:
    with _step("take your user and group"):
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        # Capabilities survive the change of uid for the few steps to _drop. Nobody of that uid can
        # get at them meanwhile: a process that changed its uid is not dumpable.
        syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 1)
        os.setresuid(identity.uid, identity.uid, identity.uid)
        syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 0)
        # (uid_t) -1 means no change to these calls, and root would stay root.
        if os.getresuid() != (identity.uid,) * 3 or os.getresgid() != (identity.gid,) * 3:
            raise OSError(errno.EINVAL, "they are no ids")
        syscalls.set_capabilities(syscalls.permitted())


def _require_same_user(identity: Identity) -> None:
    own = (os.geteuid(), os.getegid(), sorted(os.getgroups()))
    if own[0] != identity.uid:
        raise Fault("EACCES", "this daemon serves its own user alone; mount one of your own")
    if own[1:] != (identity.gid, sorted(identity.groups)):
        message = "your groups are not those of your daemon, which cannot change its own; restart it"
        raise Fault("EACCES", message)


def _join(namespaces: dict[str, int], *, user_last: bool) -> None:
    """Join the namespaces, the user namespace first or last.

    Root's capabilities hold in every user namespace, so it joins that one last: the others may
    belong to an outer one. A user has none but by entering the user namespace that it owns. The
    mount namespace is always last of the rest, as it changes what paths mean.
    """
    order = ["pid", "net", "ipc", "uts", "cgroup", "mnt"]
    order = [*order, "user"] if user_last else ["user", *order]
    for name in order:
        if name in namespaces:
            with _step(f"enter your {name} namespace"):
                syscalls.setns(namespaces[name], syscalls.NAMESPACES[name])


def _fork_inside(forked: Forked) -> None:
    with _step("start a process in your pid namespace"):
        outside = os.pidfd_open(os.getpid())
        pid = os.fork()
    if pid:
        try:
            forked(pid)
        finally:
            os._exit(0)
    # The parent's end would be taken for the fork server's by PR_SET_PDEATHSIG, so it comes first.
    # (Waiting for a closed pipe is not enough: files close before children are handed on.)
    select.select([outside], [], [])
    os.close(outside)
    with _step("start a process in your pid namespace"):
        os.setsid()  # a session is counted by the namespace of its leader


def _drop(capabilities: int) -> None:
    """Keep at most `capabilities`, for this process and whatever it executes."""
    with _step("give up its own powers"):
        capabilities_.keep(capabilities)


def _seal() -> None:
    with _step("confine the tool"):
        # Nothing that it executes gains anything, and peers/caller.py recognises descendants by it.
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        # Orphans below it become its children, so that the chain of parents always leads here.
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        # Last, as every change of credentials clears it.
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
