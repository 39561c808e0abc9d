"""The permissions of an ESM plugin's Deno: its flags, environment and limits, and the kernel's view for it.

Main path: `command` starts it, after `confine` has taken powers from the starting thread. Deno's permissions
decide first and give a sentence; Landlock also holds if Deno follows a link.

Rules: the effective capabilities count, and file access only within the caller's directory and the plugin's
own folder. Deno has no directory on disk, so two plugins share no storage, and none can write a cache that
the next one reads. A plugin that may run commands may do all that its caller may, and is not confined.
This file must never know what a tool is asked to do.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv6Address
from itertools import chain
from pathlib import Path

from cortexfs.core import networks
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.targets import EsmModule, FetchedPackages
from cortexfs.core.manifestjson.capabilities import deno_permissions
from cortexfs.core.manifestjson.fetched import CACHE, LOCK, REGISTRY_VARIABLES
from cortexfs.host.confine.view import SHOWN, View
from cortexfs.host.process import children
from cortexfs.linux import capabilities as powers
from cortexfs.linux import landlock, seccomp

SCRIPTS = Path(__file__).parent / "js"
HEAP_MIB = 256  # of JavaScript; beyond it Deno ends
# Of all data; V8 does not start with less than some 800 MiB.
DATA_KIB = 1_200_000
MAX_FILES = 20_000  # of a plugin's folder
_SHELL = "/bin/sh"
# Deno's channel is not its standard input and output, as any module may use those.
_START = f'ulimit -d {DATA_KIB} && exec 3<&0 4>&1 </dev/null >&2 && exec "$0" "$@"'
_SEALED = ("--no-prompt", "--no-config", "--cached-only", "--quiet")
_ALONE = ("--no-lock", "--no-remote", "--no-npm")
# Packages look for variables as a matter of course: there are none, which must be no error.
_FETCHED = ("--frozen", "--node-modules-dir=none", "--allow-import", "--ignore-env")
QUIET = {"DENO_NO_UPDATE_CHECK": "1", "DENO_NO_PACKAGE_JSON": "1", "NO_COLOR": "1"}
# No directory can be made there. Deno would try that for 150 ms with each TypeScript file that it reads.
_KEPT_NOWHERE = {"DENO_DIR": "/dev/null/none", "DENO_EMIT_CACHE_MODE": "disable"}
# Both are this machine. Deno takes networks of IPv4 alone, and of IPv6 single addresses.
_LOOPBACK = (IPv6Address("::1"), IPv6Address("::"))
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_NETLINK)  # the last to list addresses
# Deno's parser asks where its stack ends, which is in /proc/self/maps. A rule for /proc/self would mean our
# process, as Deno does not run yet. Landlock shows no memory, environment or open files of other processes,
# unless a power of root's reads them: so only powers over files and ports are left.
_PARSER: View = (("/proc", "r"),)
_POWERS = powers.mask(
    powers.CHOWN, powers.DAC_OVERRIDE, powers.DAC_READ_SEARCH, powers.FOWNER, powers.FSETID,
    powers.NET_BIND_SERVICE,
)  # fmt: skip
NETWORK: View = tuple(
    (path, "r")
    for path in (
        "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/host.conf", "/etc/ssl",
        "/usr/share/ca-certificates", "/run/systemd/resolve",
    )
)  # fmt: skip
_MISSING = "this is a JavaScript plugin, and there is no deno: pip install 'cortexfs[esm]'"


@functools.cache
def found() -> str:
    """Returns the path of Deno: in the package of that name, or on PATH."""
    # Not by importlib.metadata, whose import takes 12 ms of a user's first call.
    for record in chain.from_iterable(Path(site).glob("deno-*.dist-info/RECORD") for site in sys.path):
        for line in record.read_text().splitlines():
            path = os.path.realpath(record.parents[1] / line.partition(",")[0])
            if os.path.basename(path) == "deno" and os.access(path, os.X_OK) and os.path.isfile(path):
                return path
    if (path := shutil.which("deno") or "") == "":
        raise Fault("EHOSTDOWN", _MISSING)
    return os.path.realpath(path)


def is_scoped(capabilities: Sequence[str]) -> bool:
    """Returns True if the plugin's rights depend on its caller's directory."""
    return not {"read", "write", "run"}.isdisjoint(deno_permissions(capabilities))


def command(declared: EsmModule, directory: str) -> list[str]:
    rights, fetched = deno_permissions(declared.capabilities), declared.fetched
    own = [declared.folder, str(SCRIPTS / "plugins.js")]
    read = [*own, *([directory] if directory and "read" in rights else ())]
    flags = [f"--allow-read={_comma_list(read)}"]
    if write := _writable(declared, directory):
        flags.append(f"--allow-write={_comma_list(write)}")
    # Never to be opened, whatever other files it may open.
    hidden = [declared.state + end for end in ("", "-wal", "-shm")] if declared.state else []
    if hidden:
        flags.append(f"--deny-read={_comma_list(hidden)}")
    if closed := [*hidden, *([fetched.folder] if fetched else ())]:
        flags.append(f"--deny-write={_comma_list(closed)}")
    if "run" in rights:
        flags += ["--allow-run", "--allow-ffi"]  # the second for bootstrap.js alone, which gives it up
    if "net" in rights:
        flags += ["--allow-net", *_network_flags(declared.private)]
    flags += (f"--lock={os.path.join(fetched.folder, LOCK)}", *_FETCHED) if fetched else _ALONE
    scripts = (f"--import-map={SCRIPTS / 'imports.json'}", *flags, str(SCRIPTS / "bootstrap.js"))
    engine = f"--v8-flags=--max-old-space-size={HEAP_MIB}"
    return [_SHELL, "-c", _START, found(), "run", *_SEALED, engine, *scripts]


def environment(
    capabilities: Sequence[str], caller: Mapping[str, str], fetched: FetchedPackages | None = None
) -> dict[str, str]:
    """Returns the variables of Deno. The module sees none: the caller's are for programs that it runs."""
    own = QUIET | _KEPT_NOWHERE
    if fetched:
        chosen = {name: fetched.registries[name] for name in REGISTRY_VARIABLES if name in fetched.registries}
        own = {**QUIET, "DENO_DIR": os.path.join(fetched.folder, CACHE), **chosen}
    if "run" in deno_permissions(capabilities):  # a hook has no caller whose variables it could have
        return {"PATH": os.defpath, **children.variables_of_user(), **caller, **own}
    return own


def _writable(declared: EsmModule, directory: str) -> list[str]:
    """Returns the writable folders. Its own is none if packages lie in it, as no part can be closed again."""
    if "write" not in deno_permissions(declared.capabilities):
        return []
    return [*([] if declared.fetched else [declared.folder]), *([directory] if directory else [])]


def _comma_list(paths: Sequence[str]) -> str:
    for path in paths:
        if "," in path:
            message = "Deno takes no comma in the name of a directory that it gives access to"
            raise Fault("EINVAL", f"{message}; rename it, or work in another: {path}")
    return ",".join(dict.fromkeys(paths))


def _network_flags(private: Sequence[str]) -> Iterator[str]:
    """Yields a flag that closes every network that is neither public nor granted by the administrator."""
    grants = networks.granted(private)
    own = [f"[{each}]" for each in _LOOPBACK if not any(each in network for network in grants)]
    if closed := [*map(str, networks.closed_4(grants)), *own]:
        yield f"--deny-net={','.join(closed)}"


# -- the kernel's side


def confine(declared: EsmModule, directory: str) -> None:
    """Close to this thread, and to its children, all that its Deno does not need."""
    rights = deno_permissions(declared.capabilities)
    if "run" in rights:
        return
    _show(declared.folder, directory, rights, _writable(declared, directory))
    # IPv6 only with such a grant, as addresses do not tell which of them are public.
    has_6 = any(each.version == 6 for each in networks.granted(declared.private))
    families = (*_FAMILIES, socket.AF_INET6) if has_6 else _FAMILIES
    seccomp.close(network="net" in rights, unix=True, families=families)
    powers.keep(_POWERS)  # last, as the others may need more powers


def _show(folder: str, directory: str, rights: Sequence[str], writes: Sequence[str]) -> None:
    view: list[tuple[str, str]] = [
        *SHOWN,
        (os.path.realpath(_SHELL), "rx"),
        (found(), "rx"),
        (os.path.realpath(SCRIPTS), "r"),
        *_PARSER,
        (os.path.realpath(folder), "r" + "w" * (folder in writes)),
    ]
    if directory and {"read", "write"} & set(rights):
        access = "r" * ("read" in rights) + "w" * (directory in writes)
        view.append((os.path.realpath(directory), access))
    if "net" in rights:
        view += [(os.path.realpath(path), access) for path, access in NETWORK]
    try:
        landlock.restrict(view, network="net" in rights)
    except Fault:  # a kernel without it: Deno's own permissions remain
        return


def check(folder: str) -> None:
    """Refuse a folder with a link that leads out of it: Deno would follow it."""
    count = 0
    for place, directories, files in os.walk(folder):
        for name in (*directories, *files):
            path = os.path.join(place, name)
            mode = os.lstat(path)
            count += 1
            if stat.S_ISLNK(mode.st_mode) or (stat.S_ISREG(mode.st_mode) and mode.st_nlink > 1):
                raise Fault("EPROTO", f"{path} is a link; a plugin's folder holds files and folders alone")
            if count > MAX_FILES:
                raise Fault("EPROTO", f"its folder holds over {MAX_FILES} files")
