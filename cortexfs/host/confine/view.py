"""Confine a host to its identity's view and its plugin's claims, before any code of a plugin's runs.

The claims of a manifest (core/manifest/governance.py) are enforced by Landlock for files, by a filter of
system calls for the network and for the profile, and by resource limits (`box`). Claims and view both hold:
the kernel combines all such rules.

Main path: `enclose` runs while the host still has powers over mounts (identity.become), and `close` when the
caller's powers are gone.

Rules: if any step fails, nothing runs. `SHOWN` and `CODE` are the files that a host needs besides the view. A
boxed host has no powers of root's. If any file or the network is closed to it, it has no named sockets: a
service behind one could act for it. So it runs no objects of a mount.
This file must never know what a tool is asked to do.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

import cortexfs
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import WASM, Identity, Plugin, Sandbox, Spawn
from cortexfs.host.call import plugin_state
from cortexfs.host.confine import leftovers, limits, readonly_mounts
from cortexfs.host.confine.hidden_paths import carved
from cortexfs.linux import landlock, seccomp
from cortexfs.linux.call_numbers import names

View = tuple[tuple[str, str], ...]

# Shown to every confined host.
SHOWN: View = (
    # the dynamic linker's paths; modules of Python, and every program, need them
    ("/usr/lib", "rx"),
    ("/usr/lib64", "rx"),
    ("/lib", "rx"),
    ("/lib64", "rx"),
    ("/etc/ld.so.cache", "r"),
    ("/etc/ld.so.preload", "r"),
    # files that programs take for granted, and that reveal nothing about this machine
    ("/dev/null", "rw"),
    ("/dev/zero", "rw"),
    ("/dev/full", "rw"),
    ("/dev/random", "r"),
    ("/dev/urandom", "r"),
)

# For late imports: Python with its packages, and this one. Known before any host is forked.
CODE: View = tuple(
    (path, "rx")
    for path in {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(cortexfs.__file__)), *sys.path}
    # No relative path, and not the root directory, which is the prefix of some embedded Pythons.
    if path.startswith("/") and path.strip("/")
)

# The system calls of the interpreter, the WebAssembly engine and its network access. All others fail with
# ENOSYS, as on a kernel without them, and do not end the process: libraries try a call and go on without it.
# A module itself can make none. A module that escapes from its engine by a bug has only these: it can execute
# no program, mount no file system and trace no process.
WASM_CALLS = names("""
read write close lseek readv writev pread64 pwrite64 open openat stat fstat newfstatat statx access
faccessat faccessat2 readlink readlinkat getdents64 getcwd chdir fchdir mkdir mkdirat rmdir rename
renameat renameat2 unlink unlinkat ftruncate truncate fsync fdatasync flock fcntl dup dup2 dup3 ioctl
umask statfs fstatfs fchmod utimensat fallocate fadvise64 mmap mprotect munmap mremap msync madvise
mincore brk memfd_create membarrier rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait sigaltstack
tgkill restart_syscall futex clone exit exit_group set_robust_list set_tid_address rseq arch_prctl prctl
gettid getpid getuid geteuid getgid getegid getgroups getresuid getresgid sched_yield sched_getaffinity
sched_setaffinity sched_setattr sched_getattr getcpu getpriority getrlimit prlimit64 getrusage sysinfo
uname unshare nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday getrandom poll ppoll
select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 pipe pipe2 close_range socket
socketpair connect bind getsockname getpeername getsockopt setsockopt sendto recvfrom sendmsg recvmsg
sendmmsg recvmmsg shutdown
""")


class Ground(NamedTuple):
    sealed: bool  # no file can be changed through the hosts' executed program (readonly_mounts.py)
    state: str = ""  # the daemon's state directory; empty: there is none
    plugins_folder: str = ""  # the folder of the files that plugins keep
    mark: str = ""  # of that directory's hosts (leftovers.py)


class Confinement:
    """The confinement of one host; none if its identity has no view and its plugin claims nothing."""

    def __init__(self, identity: Identity, plugin: Plugin, ground: Ground) -> None:
        self._ground = ground
        self._identity = identity
        self._plugin = plugin
        self._claimed_paths: View = ()  # the paths that the plugin's claims leave open
        self._open_paths: View = ()  # the paths that the identity's view leaves open
        self._keeps_metadata = False  # its mounts keep it, so that no call has to be refused

    def enclose(self) -> None:
        """As the caller, find the open paths, and let no others be changed. Raises Fault EACCES."""
        identity, plugin = self._identity, self._plugin
        kept_paths = plugin_state.view(plugin, identity)
        views = []
        if plugin.sandbox is not None and plugin.sandbox.view is not None:
            self._claimed_paths = (*plugin.sandbox.view, *SHOWN, *CODE, *kept_paths)
            views.append(self._claimed_paths)
        if identity.view is not None:
            own: View = ((plugin.path, "rx"),) if plugin.path else ()
            open_paths = carved([*identity.view, *SHOWN, *CODE, *own], identity.caps)
            # Added later, as the caps close these: they are beside the daemon's own files.
            self._open_paths = (*open_paths, *kept_paths, *plugin_state.scratch_view(identity))
            views.append(self._open_paths)
        if not self._ground.sealed:  # the filter refuses the calls instead
            return
        try:
            readonly_mounts.enter()
        except OSError:  # no mounts are allowed in this caller's namespaces
            return
        with _as_fault():
            for view in views:
                readonly_mounts.keep(view)
            if self._ground.state:
                leftovers.mark(self._ground.state, self._ground.mark)
        self._keeps_metadata = True

    def close(self) -> int | None:
        """Confine this process, for good, to the open paths and calls. With a view, `enclose` comes first.
        Returns a descriptor if socket_gate.py has to answer questions. Raises Fault."""
        identity, sandbox = self._identity, self._plugin.sandbox
        if sandbox is not None:
            box(sandbox, self._claimed_paths, metadata=self._keeps_metadata)
        asks = None
        if identity.view is not None:
            with _as_fault():
                landlock.restrict(self._open_paths, network=identity.network)
                asks = seccomp.restrict(network=identity.network, metadata=self._keeps_metadata)
        if self._plugin.kind == WASM and os.uname().machine in seccomp.MACHINES:
            seccomp.allow_only(WASM_CALLS)  # last: it allows no other filter
        return asks


@contextmanager
def _as_fault() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Fault("EACCES", f"an agent's tool cannot be confined here: {error.strerror}") from error


# Address space that a host takes for its own threads, before any code of a plugin's runs.
OWN_BYTES = 64 << 20


def without_powers(spawn: Spawn) -> Identity:
    """Returns the host's identity: its caller, without root's powers if the plugin has claims, as some powers
    open closed files and lift limits."""
    return spawn.identity if spawn.plugin.sandbox is None else replace(spawn.identity, capabilities=0)


def box(sandbox: Sandbox, view: Iterable[tuple[str, str]], *, metadata: bool) -> None:
    """Enforce the claims on this process. `view` holds the paths that they leave open if they close files. In
    that case, without `metadata`, calls that change modes, owners, times and attributes are refused."""
    try:
        if sandbox.cpu_seconds is not None:
            limits.lower(resource.RLIMIT_CPU, sandbox.cpu_seconds, for_good=True)
        if sandbox.memory_bytes is not None:
            most = _size() + OWN_BYTES + sandbox.memory_bytes
            limits.lower(resource.RLIMIT_AS, most, for_good=True)
        if sandbox.view is not None:
            # The host may look at itself; its children cannot.
            landlock.restrict({*view, ("/proc/self", "r")}, network=True)
        elif not sandbox.network:
            # All files, but no other process: a process with network access could be misused.
            landlock.restrict([("/", "rwx")], network=False)
        if sandbox.confines:
            open_ = sandbox.network and sandbox.view is None
            seccomp.close(network=sandbox.network, unix=open_, metadata=metadata or sandbox.view is None)
    except OSError as error:
        raise Fault("EACCES", f"its plugin's sandbox cannot be set up here: {error.strerror}") from error


def _size() -> int:
    found = re.search(r"^VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise Fault("EACCES", "its plugin's sandbox cannot be set up here: /proc does not show its size")
    return int(found[1]) << 10
