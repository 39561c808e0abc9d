"""Fetches the imports of a JavaScript plugin's module: Deno reads and follows them, and runs nothing.

Main path: `fetch` writes the plugin's files to a directory of its own and has Deno fill a cache there. It
returns the files of that cache, with the lock file that has their origins and hashes.

Rules: Deno is confined as any plugin (Landlock), sees that directory alone, and has one way out
(host/net/egress_proxy.py). Time, bytes and files are bounded while it works. No lifecycle script of a package
runs: there is no node_modules for one. A registry's catalogues (registry.json) are left out, so that a plugin
finds only what its lock file names. Types are left out, too.
This file must never know where a plugin will lie, nor whether it may be installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import clipped
from cortexfs.core.manifestjson.fetched import CACHE, LOCK, REGISTRIES, REGISTRY_VARIABLES, FetchRequest
from cortexfs.host.call.runtime import apart
from cortexfs.host.confine.view import SHOWN
from cortexfs.host.esm import permissions
from cortexfs.host.esm.sayings import in_our_words, syntax_error
from cortexfs.host.net.egress_proxy import Outlet
from cortexfs.linux import landlock, syscalls
from cortexfs.tools.support.paths import owned
from cortexfs.tools.support.process_groups import polled

SECONDS = 300.0
# Of all that arrives, before unneeded files are left out: a plugin has 128 MiB and 10,000 files at most.
MAX_BYTES = 256 << 20
MAX_FILES = 30_000
KEPT = ("npm", "remote")  # of a cache: the rest are databases, which each process would make anew
# Types and source maps: half of a package's bytes.
_NEVER_RUN = (".d.ts", ".d.mts", ".d.cts", ".map")
_TRUST = ("SSL_CERT_FILE", "SSL_CERT_DIR", "DENO_CERT")  # the certificates that the installing user trusts
LOOK_SECONDS = 0.2
_MAX_SAID = 1 << 16
_SHOWN = 600  # characters of Deno's output
_UNHEARD = 256  # no process ends with that
_SHELL = "/bin/sh"
_START = f'ulimit -d {permissions.DATA_KIB}; ulimit -f {MAX_BYTES >> 9}; exec "$0" "$@"'

Tell: TypeAlias = Callable[[int, int], None]  # connections and bytes so far


def registries() -> dict[str, str]:
    """Returns the registries that the installing user has chosen."""
    chosen = {name: os.environ[name] for name in REGISTRY_VARIABLES if os.environ.get(name)}
    for name, address in chosen.items():
        parts = urllib.parse.urlsplit(address)
        if parts.scheme != "https" or parts.username or parts.password:
            raise Fault("EINVAL", f"{name} must be an https address without a password; change or unset it")
    return chosen


def fetch(request: FetchRequest, private: Sequence[str], tell: Tell) -> dict[str, bytes]:
    """Returns the files by their paths: LOCK, and below CACHE. `private` are networks that are open, too."""
    chosen = registries()
    with tempfile.TemporaryDirectory(prefix="ctx-fetch-") as folder, Outlet(private, MAX_BYTES) as outlet:
        base = Path(os.path.realpath(folder))
        _write(base, request)
        output = _Deno(base, request.root, outlet, chosen).run(tell)
        if output is not None:
            if fault := syntax_error(output, str(base / "plugin")):
                raise Fault("EINVAL", fault)
            raise Fault("EIO", f"its imports cannot be fetched: {_sentence(output, base, outlet)}")
        found = {f"{CACHE}/{path}": data for path, data in files_of(base / CACHE, chosen)}
        if (lock := base / LOCK).is_file():
            found[LOCK] = lock.read_bytes()
        return {**found, REGISTRIES: msgspec.json.encode(chosen)} if chosen else found


def _write(base: Path, request: FetchRequest) -> None:
    for folder in ("empty", "plugin", CACHE):
        (base / folder).mkdir()
    for name, data in request.files.items():
        path = base / "plugin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if request.lock is not None:
        (base / LOCK).write_bytes(request.lock)


class _Deno:
    def __init__(self, base: Path, root: str, outlet: Outlet, chosen: Mapping[str, str]) -> None:
        self._registries = chosen
        self._base = base
        is_address = root.startswith(("https:", "npm:", "jsr:"))
        self._root = root if is_address else str(base / "plugin" / root)
        self._outlet = outlet

    def run(self, tell: Tell) -> str | None:
        """Returns Deno's output if it fails, and else None."""
        with open(self._base / "said", "w+b") as output:
            try:
                process = apart(partial(self._spawn, output.fileno()))
            except OSError as error:
                raise Fault("EHOSTDOWN", f"Deno does not start: {error}") from None
            try:
                self._watch(process, tell)
            finally:
                with suppress(ProcessLookupError):  # it is not reaped yet, so that the number is no other's
                    os.killpg(process.pid, signal.SIGKILL)
                status = _exit_status(process)
            output.seek(0)
            text = output.read(_MAX_SAID).decode(errors="replace")
        if status == _UNHEARD:
            return "its exit status is unknown, as other code in this process collected it; try again"
        return text or "it ended without a message" if status else None

    def _spawn(self, output: int) -> subprocess.Popen[bytes]:
        """Runs in a thread of its own: powers given up are gone for good, and for its children, too."""
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        with suppress(Fault):  # a kernel without it: the proxy variables alone lead Deno to the outlet
            landlock.restrict(self._view(), network=False, port=self._outlet.port)
        own = (f"--lock={self._base / LOCK}", f"--import-map={permissions.SCRIPTS / 'imports.json'}")
        flags = ("--no-config", "--node-modules-dir=none", "--vendor=false", "--allow-import", *own)
        environment = {
            **{name: os.environ[name] for name in _TRUST if os.environ.get(name)},
            **self._registries,
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self._outlet.address),
            "DENO_DIR": str(self._base / CACHE),
            "TMPDIR": str(self._base),
            "DENO_TLS_CA_STORE": "mozilla,system",
            **permissions.QUIET,
        }
        return subprocess.Popen(
            [_SHELL, "-c", _START, permissions.found(), "cache", *flags, self._root],
            env=environment,
            cwd=self._base / "empty",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
        )

    def _view(self) -> list[tuple[str, str]]:
        trusted = [(os.environ[name], "r") for name in _TRUST if os.environ.get(name)]
        programs = [(_SHELL, "rx"), (permissions.found(), "rx")]
        links = [*programs, *trusted, (str(permissions.SCRIPTS), "r"), *permissions.NETWORK]
        resolved = [(os.path.realpath(path), access) for path, access in links]
        return [*SHOWN, *resolved, (str(self._base), "rw")]

    def _watch(self, process: subprocess.Popen[bytes], tell: Tell) -> None:
        """Wait until Deno ends. Raises Fault if it goes beyond its limits."""
        end = time.monotonic() + SECONDS
        try:
            ends = owned(os.pidfd_open, process.pid)
        except ProcessLookupError:  # it was reaped already
            return
        with ends:
            look = polled(ends)
            while not look.poll(LOOK_SECONDS * 1000):
                tell(self._outlet.connections, self._outlet.arrived)
                for _ in _cache_paths(self._base / CACHE):  # this raises Fault beyond the limits
                    pass
                if time.monotonic() > end:
                    raise Fault("ETIMEDOUT", f"its imports did not arrive within {SECONDS:g} s")


def _exit_status(process: subprocess.Popen[bytes]) -> int:
    """Returns its exit status. If other code took it, subprocess would report 0, a success."""
    process.returncode = _UNHEARD
    with suppress(ChildProcessError):
        process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
    return process.returncode


def _cache_paths(cache: Path) -> Iterator[tuple[str, str]]:
    """Yields paths below the cache and their files. Raises Fault beyond the limits."""
    room, files = MAX_BYTES, MAX_FILES
    for above, _, names in os.walk(cache):
        for name in names:
            path = os.path.join(above, name)
            with suppress(FileNotFoundError):  # a draft of Deno's
                room -= os.lstat(path).st_size
            files -= 1
            if room < 0 or files < 0:
                limit = f"{MAX_BYTES >> 20} MiB" if room < 0 else f"{MAX_FILES} files"
                raise Fault("EMSGSIZE", f"its imports are over {limit}")
            yield path[len(str(cache)) + 1 :], path


def files_of(cache: Path, chosen: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yields the files of a cache that the plugin keeps. `chosen` are the registries of its packages."""
    # npm/HOST, and as many folders as the registry's address has: below it lies NAME, or @SCOPE/NAME
    path = urllib.parse.urlsplit(chosen.get("NPM_CONFIG_REGISTRY", "")).path
    above = 2 + len([*filter(None, path.split("/"))])
    for path, file in _cache_paths(cache):
        parts = path.split("/")
        is_run = parts[0] != "npm" or not (path.endswith(_NEVER_RUN) or _is_catalogue(parts[above:]))
        if parts[0] in KEPT and is_run:
            with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as reader:
                yield path, reader.read()


def _is_catalogue(parts: Sequence[str]) -> bool:
    """Returns True for NAME/registry.json and @SCOPE/NAME/registry.json; deeper ones are a package's."""
    is_scoped = bool(parts) and parts[0].startswith("@")
    return len(parts) == 2 + is_scoped and parts[-1] == "registry.json"


def _sentence(output: str, base: Path, outlet: Outlet) -> str:
    """Returns why it failed: the refusals on the way out, or Deno's error."""
    if outlet.refusals:
        return "; ".join(outlet.refusals)
    _, _, error = f"\n{output}".rpartition("\nerror: ")
    lines = [line.strip() for line in (error or output).splitlines() if line.strip()]
    message = " ".join(lines).replace(f"file://{base}/plugin/", "").replace(f"{base}/plugin/", "")
    return clipped(in_our_words(message), _SHOWN)
