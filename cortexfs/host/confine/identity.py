"""Become the caller: the steps between fork and the first line of plugin code.

Rules: the order of the steps is what makes this secure, and a comment at each step gives its reason. Any step
that fails raises Fault EACCES, and the process must then run nothing of the plugin's. The process ends with
at most what the identity names: its user and groups, its capabilities, its namespaces, its root. This runs in
a single-threaded process, as setns(2) demands.
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
    called as the caller, but with powers over mounts.

    Entering a pid namespace takes another fork, and this returns in the child only. The calling process
    passes the child's pid, as its own namespace counts, to `forked`, and ends.
    """
    # Leave the daemon's session and terminal. No file may be left readable by mistake.
    os.setsid()
    os.umask(0o077)
    _leave_keyring()
    # Both are opened and compared before anything is given up or joined: afterwards /proc may be another or
    # none. A descriptor that was compared cannot change its meaning.
    namespaces = _open_namespaces(identity, pidfd)
    _check_root(identity, root_fd)
    privileged = os.geteuid() == 0
    if privileged:
        # While the ids still have their meaning in the daemon's user namespace.
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
            # No power that opens files closed to the caller: paths are looked up now.
            syscalls.set_capabilities(syscalls.permitted() & _OVER_MOUNTS)
        enclose()
    # A confined host has none: some of them open paths that view.py closes.
    _drop(identity.capabilities if identity.view is None else 0)
    _seal()


_OVER_MOUNTS = capabilities_.mask(capabilities_.SYS_ADMIN, capabilities_.SETPCAP)


def open_up() -> None:
    """Let the user look into the process, which holds no more than the user does; without this its own
    /proc/self would be root's. It comes after the report to the fork server: until then no process of that
    user can replace this one, or take its descriptors (ptrace(2), pidfd_getfd(2))."""
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)


def enters_pid_namespace(identity: Identity) -> bool:
    names = dict(zip(syscalls.NAMESPACES, identity.namespaces, strict=False))
    return "pid" in names and names["pid"] != os.stat("/proc/self/ns/pid").st_ino


@contextmanager
def _step(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"no tool can run as you here: the daemon could not {action} ({reason})"
        raise Fault("EACCES", message) from error


def _leave_keyring() -> None:
    """Leave the session keyring: it is inherited, and its holders may search it, whatever their uid."""
    with _step("give up its own keyring"):
        try:
            syscalls.new_session_keyring()
        except OSError as error:
            # A kernel without keyrings, or a container that forbids keyctl(2), to the tool as well.
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise


def _open_namespaces(identity: Identity, pidfd: int | None) -> dict[str, int]:
    """Returns descriptors of the namespaces that differ from ours, each checked against the identity."""
    if not identity.namespaces:
        return {}
    if pidfd is None:
        raise Fault("EACCES", "no tool can run in your namespaces: the daemon passed no descriptor of them")
    with _step("find your namespaces"):
        pid = _pid_of(pidfd)
        fds = {}
        for name, inode in zip(syscalls.NAMESPACES, identity.namespaces, strict=True):
            if os.stat(f"/proc/self/ns/{name}").st_ino == inode:
                continue
            fds[name] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(fds[name]).st_ino != inode:
                raise OSError(errno.ESTALE, f"you have changed your {name} namespace")
        # The caller is still there, so `pid` meant the caller all along.
        signal.pidfd_send_signal(pidfd, 0)
    return fds


def _pid_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    raise OSError(errno.ESRCH, "no process behind the descriptor")


def _check_root(identity: Identity, root_fd: int | None) -> None:
    has_root = identity.root != (0, 0)
    if has_root != (root_fd is not None):
        raise Fault("EACCES", "no tool can run below your root directory: the daemon passed no descriptor")
    if root_fd is not None:
        with _step("find your root directory"):
            if syscalls.mount_and_inode(root_fd) != identity.root:
                raise OSError(errno.ESTALE, "you have changed your root directory")


def _take_user(identity: Identity) -> None:
    with _step("take your user and group"):
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        # Capabilities survive the change of uid for the few steps to _drop. No process of that uid can use
        # them meanwhile: a process that changed its uid is not dumpable.
        syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 1)
        os.setresuid(identity.uid, identity.uid, identity.uid)
        syscalls.prctl(syscalls.PR_SET_KEEPCAPS, 0)
        # (uid_t) -1 means no change to these calls, and root would stay root.
        if os.getresuid() != (identity.uid,) * 3 or os.getresgid() != (identity.gid,) * 3:
            raise OSError(errno.EINVAL, "they are not valid ids")
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

    Root's capabilities hold in every user namespace, so root joins that one last: the others may belong to an
    outer one. A user gets capabilities only by entering a user namespace that it owns. The mount namespace is
    always last of the rest, as it changes the meaning of paths.
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
    # PR_SET_PDEATHSIG would take the parent's end for the fork server's, so that end comes first. (Waiting
    # for a closed pipe is not enough: files close before children get a new parent.)
    select.select([outside], [], [])
    os.close(outside)
    with _step("start a process in your pid namespace"):
        os.setsid()  # a session is counted by the namespace of its leader


def _drop(capabilities: int) -> None:
    """Keep at most `capabilities`, for this process and all that it executes."""
    with _step("give up its own powers"):
        capabilities_.keep(capabilities)


def _seal() -> None:
    with _step("confine the tool"):
        # No program that it executes gains powers, and peers/caller.py recognizes descendants by this.
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        # Orphans below it become its children, so that the chain of parents always leads here.
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        # Last, as every change of credentials clears it.
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
