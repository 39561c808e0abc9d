"""The checks of `ctx doctor`: of the machine, of the installation and of the mount.

Rules: a check is a function from `Subject` to one `Finding`, and CHECKS has them all. A child process, which
may hang, makes each access to a mount (bounded.ask).
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import cortexfs
from cortexfs.cli import mounts
from cortexfs.cli.bounded import ask
from cortexfs.config import FILE, load
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.mcp_server import without
from cortexfs.core.policy import risk
from cortexfs.core.safe_text import one_line
from cortexfs.core.wire import PROTOCOL, SOCKET_NAME
from cortexfs.daemon import deciding
from cortexfs.daemon.agent_ports import PolicyFile
from cortexfs.linux import syscalls
from cortexfs.run import shebang
from cortexfs.state import no_links
from cortexfs.state.directories import Places, place_of

OK, WARN, FAIL = "ok", "warn", "fail"
LOG_READ = 256 << 10  # bytes of the end of a daemon's log
REFUSED = " stays as it is: "  # in the daemon's log: it refused a control's value
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


class Subject(NamedTuple):
    root: str
    where: Places
    uid: int


class Finding(NamedTuple):
    level: str
    why: str  # the finding
    mend: str = ""  # the advice
    fix: tuple[str, ...] = ()  # the command that follows the advice, if there is one
    by_root: bool = False  # True if root has to run the command

    @property
    def text(self) -> str:
        return f"{self.why}{f'; {self.mend}' if self.mend else ''}"


Check: TypeAlias = Callable[[Subject], Finding]


ok, warn, fail = partial(Finding, OK), partial(Finding, WARN), partial(Finding, FAIL)


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


def answers(subject: Subject) -> Finding:
    try:
        mounts.status_text(subject.root or mounts.root(None))
    except Fault as fault:
        why, _, mend = fault.message.partition("; ")
        is_free = subject.root and not mounts.mounted_at(subject.root)
        return fail(why, mend, (shebang.program("ctx"), "mount", subject.root) if is_free else ())
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
    """An object that is declared, but cannot talk now, refuses connections (abi.md 5.6)."""
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
    """Returns True if further questions are useless; `answers` reports the reason."""
    return answers(subject).level == FAIL


def _connected(path: str) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as runner:
        # Connect by a descriptor of the directory: the path of a socket may have 107 bytes only (unix(7)).
        directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        runner.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    return b""


def refused_controls(subject: Subject) -> Finding:
    """An editor only shows an errno. The end of the log has the reason."""
    log = subject.where.state / "daemon.log"
    try:
        lines = no_links.read(log, -LOG_READ, LOG_READ).decode(errors="replace").splitlines()
    except (OSError, Fault):
        return ok("no log of a daemon to look into")
    if not (found := [line for line in lines if REFUSED in line]):
        return ok("none was refused")
    when, _, message = found[-1].partition(",")
    return ok(f"{when}: {one_line(message.partition(' ')[2].partition(' ')[2])}")


def broken_plugins(subject: Subject) -> Finding:
    if _silent(subject):
        return ok("no mount to ask")
    if broken := mounts.by_name(mounts.facts(mounts.status_text(subject.root)), "broken plugin"):
        message = " / ".join(map(": ".join, broken.items()))
        return warn(message, f"mend it, or do without it: {'; '.join(map(without, broken))}")
    return ok("every enabled plugin is sound")


def broken_others(subject: Subject) -> Finding:
    facts = {} if _silent(subject) else mounts.facts(mounts.status_text(subject.root))
    if found := mounts.by_name(facts, "broken provider") | mounts.by_name(facts, "broken agent"):
        message = " / ".join(map(": ".join, found.items()))
        return warn(message, "mend each, or: ctx provider remove NAME, ctx agent rm NAME")
    return ok("every provider and agent is sound")


def plugin_copies(subject: Subject) -> Finding:
    """Under root, hosts run as other users, and must pass through every folder above."""
    copies = place_of(subject.where.state)
    if subject.uid != 0 or not copies.is_dir():
        return ok("plugins run as users that can read them")
    closed = [str(above) for above in (copies, *copies.parents) if not above.stat().st_mode & 0o001]
    if closed:
        words = ("chmod", "o+x", *closed)
        return warn(f"others cannot pass through {closed[-1]} to plugins", " ".join(words), words)
    return ok(f"others can pass to {copies}")


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
    "mount answers": answers,
    "run socket": run_socket,
    "object sockets": object_sockets,
    "refused controls": refused_controls,
    "plugins": broken_plugins,
    "providers and agents": broken_others,
    "plugin copies": plugin_copies,
}
