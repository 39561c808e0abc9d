"""The checks of `ctx doctor` of the machine and of the installation, and the table of all checks.

Rules: a check is a function from `Subject` to one `Finding`. CHECKS has them all, also those of the mount.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

import cortexfs
from cortexfs.cli import mounts
from cortexfs.cli.mount import mount_checks
from cortexfs.cli.mount.mount_checks import Check, Finding, Subject, fail, ok, warn
from cortexfs.config import FILE, load
from cortexfs.core.errors import Fault
from cortexfs.core.policy import risk
from cortexfs.core.wire import PROTOCOL
from cortexfs.daemon import deciding
from cortexfs.daemon.agent_ports import PolicyFile
from cortexfs.linux import syscalls
from cortexfs.run import shebang

LEAST_ROOM = 16 << 20  # bytes: a disk with less will be full within a few runs
LSM = "/sys/kernel/security/lsm"
MTAB, MTAB_MEND = Path("/etc/mtab"), "ln -s ../proc/self/mounts /etc/mtab"
_INSTALL_FUSE = ("apt-get", "install", "fuse3")
SO_PEERPIDFD = 77  # <asm-generic/socket.h>, Linux 6.5
NO_NAMESPACES = {
    "/proc/sys/user/max_user_namespaces": "0",
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
}


def fuse_device(subject: Subject) -> Finding:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return fail(
            "/dev/fuse is missing",
            "load the module: modprobe fuse; in a container: --device /dev/fuse",
            ("modprobe", "fuse"),
            by_root=True,
        )
    except OSError as problem:
        why, mend = f"/dev/fuse cannot be opened: {problem.strerror}", "let this user read and write it"
        if (mount := mounts.mounted_at(subject.root)) and mount.owner != subject.uid:
            return warn(f"{why}, so this user can only use the mount at {mount.point}", mend)
        return fail(why, mend)
    return ok("/dev/fuse opens")


def fusermount(subject: Subject) -> Finding:
    found = shutil.which("fusermount3")
    if subject.uid == 0:
        return ok(found or "fusermount3 is missing, and root needs none")
    if not found:
        why, words = "fusermount3 is missing, and without it only root can mount", _INSTALL_FUSE
        return fail(why, "install the package fuse3", words if shutil.which(words[0]) else (), by_root=True)
    status = os.stat(found)
    if not (status.st_mode & stat.S_ISUID and status.st_uid == 0):
        return fail(f"{found} is not setuid root", f"as root: chown root {found} && chmod u+s {found}")
    if not MTAB.exists():
        message = f"{MTAB} is missing, and without it {found} unmounts nothing"
        return fail(message, f"as root: {MTAB_MEND}", tuple(MTAB_MEND.split()), by_root=True)
    try:
        pwd.getpwuid(subject.uid)
    except KeyError:
        return fail(f"uid {subject.uid} has no name, and {found} asks for one", "add it to /etc/passwd")
    return ok(found)


def libraries(subject: Subject) -> Finding:
    for name in ("pyfuse3", "trio", "msgspec"):
        try:
            importlib.import_module(name)
        except ImportError as problem:
            return fail(
                f"{name} cannot be imported: {problem}", "install CortexFS again, with its dependencies"
            )
    return ok("pyfuse3, trio and msgspec import")


def pidfd(subject: Subject) -> Finding:
    os.close(os.pidfd_open(os.getpid()))
    return ok("processes can be held by descriptor")


def peer_pidfd(subject: Subject) -> Finding:
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.suppress(OSError):
        os.close(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        return ok("callers can be held by descriptor")
    return warn("the kernel has no SO_PEERPIDFD, so callers are known by pid alone", "run Linux 6.5 or later")


def landlock(subject: Subject) -> Finding:
    try:
        return ok(f"Landlock ABI {syscalls.landlock_abi()}")
    except OSError:  # not built in, not enabled, or hidden by a container's seccomp filter
        return warn(
            "the kernel has no Landlock, so no tool of an agent runs, nor a plugin whose sandbox needs it",
            f"run Linux 5.13 or later with landlock in {LSM}: add it to lsm= at boot; in a container, let its"
            " seccomp profile pass landlock_create_ruleset",
        )


def view_mounts(subject: Subject) -> Finding:
    """Tries to make mounts as a host does, in a process of its own."""
    words = [sys.executable, "-I", "-c", "from cortexfs.host.confine.readonly_mounts import enter; enter()"]
    if subprocess.run(words, capture_output=True, check=False).returncode == 0:
        return ok("tools of agents have mounts of their own")
    found = [f"{path} is {value}" for path, value in NO_NAMESPACES.items() if _reads(path, value)]
    return warn(
        "tools of agents get no mount namespace here, so chmod, chown, touch and the like fail with EPERM",
        f"let users make namespaces: {found[0] if found else 'in a container, its manager decides'}",
    )


def _reads(path: str, text: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip() == text
    return False


def own_sandbox(subject: Subject) -> Finding:
    status = Path("/proc/self/status").read_text()
    if "\nNoNewPrivs:\t1\n" in status and "\nSeccomp:\t2\n" in status:
        return warn(
            f"this process ({os.getpid()}) runs in another program's sandbox, and a daemon refuses its calls",
            f"let the owner of the mount write sandboxed = [{subject.uid}] below [callers] in config.toml",
        )
    return ok("no sandbox is around this process")


def system_runner(subject: Subject) -> Finding:
    protocol = shebang.protocol(shebang.SYSTEM)
    if protocol == PROTOCOL:
        return ok(f"{shebang.SYSTEM} speaks protocol {PROTOCOL}")
    words = ("install", "-m", "755", shebang.program(shebang.NAME), str(shebang.SYSTEM))
    why = f"speaks protocol {protocol}, not {PROTOCOL}" if shebang.SYSTEM.exists() else "is not installed"
    message = f"{shebang.SYSTEM} {why}, so the packaged runner is used"
    return warn(message, f"install it: {' '.join(words)}", words, by_root=True)


def packaged_runner(subject: Subject) -> Finding:
    path = Path(shebang.program(shebang.NAME))
    protocol = shebang.protocol(path)
    if protocol == PROTOCOL:
        return ok(f"{path} speaks protocol {PROTOCOL}")
    if not path.exists():
        return fail(f"{path} is missing", "install CortexFS again")
    why = "cannot be executed" if protocol is None else f"speaks protocol {protocol}, not {PROTOCOL}"
    return fail(f"{path} {why}", "install CortexFS again")


def readable_by_callers(subject: Subject) -> Finding:
    """Hosts run as their callers, so every caller has to read the interpreter, its library and CortexFS."""
    package = os.path.dirname(cortexfs.__file__)
    needed = [os.path.realpath(sys.executable), sysconfig.get_path("stdlib"), package]
    closed = next((path for each in needed if (path := _closed(each))), None)
    if closed is None:
        return ok("the interpreter and CortexFS are readable by everyone")
    why = f"{closed} is closed to other users, and tools run as their callers"
    if subject.uid != 0:
        return ok(f"{closed} is closed to other users, and this user's daemon does not serve them")
    mend = f"open it (chmod o+rx {closed}), or install CortexFS where everyone may read"
    return warn(why, mend, ("chmod", "o+rx", closed))


def _closed(path: str) -> str | None:
    """Returns the first directory on the way to `path`, or `path`, that not everyone may pass."""
    way = Path(path)
    for step in (*reversed(way.parents), way):
        bits = stat.S_IXOTH if step != way else stat.S_IXOTH | stat.S_IROTH
        if step.stat().st_mode & bits != bits:
            return str(step)
    return None


def configuration(subject: Subject) -> Finding:
    path = subject.where.config / FILE
    if unused := deciding.every(subject.where.config, subject.where.state):
        return fail(" / ".join(unused), "mend each, and: ctx restart")
    try:
        load(subject.where)
    except Fault as fault:
        return fail(fault.message, "mend the file; docs/config.md lists the keys")
    try:
        PolicyFile(subject.where.config / risk.FILE).read()
    except Fault as fault:
        return fail(fault.message, "mend the file; until then agents may run nothing")
    return ok(str(path) if path.exists() else f"{path} is absent, so every key has its default")


def state(subject: Subject) -> Finding:
    path = subject.where.state
    try:
        status = path.stat()
    except FileNotFoundError:
        return ok(f"{path} is absent; ctx mount makes it")
    if status.st_uid != subject.uid:
        return fail(f"{path} belongs to uid {status.st_uid}", "name a directory of your own with --state")
    if status.st_mode & 0o077:
        return fail(f"{path} is open to other users, and secrets lie in it", *_closing(path))
    if not os.access(path, os.W_OK | os.X_OK):
        mend, words = _closing(path)
        return fail(f"{path} is not writable", f"{mend}; or its file system is mounted read-only", words)
    room = os.statvfs(path)
    if room.f_bavail * room.f_frsize < LEAST_ROOM or (room.f_files and not room.f_favail):
        return fail(f"the disk of {path} is full", "make room there; ctx session gc removes old sessions")
    return ok(str(path))


def _closing(path: Path) -> tuple[str, tuple[str, ...]]:
    return f"chmod 700 {path}", ("chmod", "700", str(path))


def stale(subject: Subject) -> Finding:
    mine = [mount.point for mount in mounts.mounts() if subject.uid in (0, mount.owner)]
    dead = [point for point in dict.fromkeys(mine) if mounts.is_stale(point)]
    if dead:
        words = (shebang.program("ctx"), "umount", dead[0])
        return fail(f"{', '.join(dead)} lost its daemon", f"ctx umount {dead[0]}, or mount it again", words)
    return ok("no mount has lost its daemon")


CHECKS: dict[str, Check] = {
    "fuse device": fuse_device,
    "fusermount3": fusermount,
    "libraries": libraries,
    "pidfd": pidfd,
    "SO_PEERPIDFD": peer_pidfd,
    "Landlock": landlock,
    "view mounts": view_mounts,
    "sandbox": own_sandbox,
    "system runner": system_runner,
    "packaged runner": packaged_runner,
    "readable by callers": readable_by_callers,
    "configuration": configuration,
    "state": state,
    "stale mounts": stale,
    "mount answers": mount_checks.answers,
    "run socket": mount_checks.run_socket,
    "object sockets": mount_checks.object_sockets,
    "refused controls": mount_checks.refused_controls,
    "plugins": mount_checks.broken_plugins,
    "providers and agents": mount_checks.broken_others,
    "tool schemas": mount_checks.tool_schemas,
    "reserved names": mount_checks.reserved_names,
    "plugin copies": mount_checks.plugin_copies,
}
