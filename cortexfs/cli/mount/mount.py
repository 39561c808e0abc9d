"""`ctx mount`: prepare the mount point, start the daemon in an interpreter of its own, and wait for it.
`ctx restart`: end a mount's daemon and start it again at the same place, with the same directories.

Rules: the daemon inherits only the environment named here, and no descriptors, directory, terminal or session
of the caller (cli/mount/serve.py has the daemon's side). A live mount is left alone; the mount of a dead
daemon is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import cortexfs
from cortexfs.cli import daemons, mounts, parser, progress
from cortexfs.cli.mount import serve, umount
from cortexfs.cli.output import say
from cortexfs.cli.parser import PLACES, Command, arg, flag
from cortexfs.cli.service import systemd
from cortexfs.cli.service.systemd import MOUNT
from cortexfs.config import load
from cortexfs.core.errors import EXIT_OK, Fault, exit_status
from cortexfs.state import no_links
from cortexfs.state.directories import Places, create, places

START_SECONDS = 20.0
END_SECONDS = 5.0
MAX_LOG = 1 << 20
# Language, places, network access and settings of plugins. None of these changes which code is loaded.
ENVIRONMENT = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|XDG_\w+|CTX_\w+|SSL_CERT_\w+|(https?|no|all)_proxy"
    r"|CORTEX_(PLUGIN|WASM)_[\w-]+",
    re.IGNORECASE,
)


def run(options: argparse.Namespace) -> int:
    # Do not use the mount that exists already, which other commands would mean.
    root = mounts.absolute(options.point or options.root or os.environ.get("CTX_ROOT") or mounts.DEFAULT_ROOT)
    where = places(os.environ, os.getuid(), state=options.state, config=options.config)
    if options.ready_fd is not None:
        return serve.serve(root, where, options.ready_fd)
    if already := _live(root):
        say(already)
        return EXIT_OK
    _prepare(root)
    create(where)
    if options.foreground:
        return serve.serve(root, where, None)
    return _start(root, where)


def restart(options: argparse.Namespace, between: Callable[[], None] | None = None) -> int:
    """`ctx umount` and then `ctx mount`, with `between` called in the middle. If no daemon could start with
    the configuration, none is ended, unless `between` replaces it. Unless others are named, the state and
    configuration of the running daemon stay: a restart never changes them by mistake."""
    root = options.point = mounts.root(options.point or options.root)
    found = mounts.mounted_at(root)
    if not found:
        raise Fault("EHOSTDOWN", f"nothing of CortexFS is mounted at {root}; start it with: ctx mount {root}")
    if found.owner != os.getuid():  # it would become ours, with directories that another user chose
        mend = "only that user may restart it"
        if os.getuid() == 0:  # other users may not end it either
            mend += f"; to end it: ctx umount {root}"
        raise Fault("EPERM", f"{root} was mounted by uid {found.owner}; {mend}")
    is_system, served = None, None
    if not mounts.is_stale(root):
        if daemon := daemons.of(found):
            daemon.process.close()
            is_system, served = systemd.keeps(daemon), (daemon.state, daemon.config)
            options.state, options.config = options.state or daemon.state, options.config or daemon.config
        elif not (options.state and options.config):
            why = "its daemon is not among the processes here, so that its directories are not known"
            raise Fault("EHOSTDOWN", f"{why}; name both, with --state and --config")
    if between is None:
        load(places(os.environ, os.getuid(), state=options.state, config=options.config))
    if is_system is not None:
        if between or served != (options.state, options.config):
            program = "systemctl" if is_system else "systemctl --user"
            mend = f"stop it first: {program} stop {MOUNT}; and afterwards: {program} start {MOUNT}"
            raise Fault("EBUSY", f"systemd keeps the mount at {root}; {mend}")
        systemd.tell(is_system, "restart", MOUNT)
        say(f"systemd restarted {MOUNT}, which is mounted at {root}")
        return EXIT_OK
    status = umount.run(options)
    if status != EXIT_OK:
        return status
    try:
        if between:
            between()
    finally:
        options.foreground, options.ready_fd = False, None
        status = run(options)
    return status


COMMANDS = {
    "mount": Command(
        run,
        (
            arg("point", "ROOT", "the directory to mount at (default: CTX_ROOT, else /ctx)", nargs="?"),
            flag("--foreground", "stay, and write the log to stderr"),
            arg("--ready-fd", None, argparse.SUPPRESS, type=int),
            *PLACES,
        ),
        ("ctx mount", "ctx mount ~/ctx", "ctx mount /tmp/ctx --state /tmp/state --foreground"),
    ),
    "restart": Command(
        restart,
        (arg("point", "ROOT", "the mount to restart (default: as --root)", nargs="?"), *PLACES),
        ("ctx restart", "ctx restart ~/ctx"),
    ),
}


def _live(root: str) -> str | None:
    """Returns the sentence for a `root` that a daemon serves already. Detaches the mounts of dead daemons."""
    while mount := mounts.mounted_at(root):
        if not mounts.is_stale(root):
            if mount.is_strangers(os.getuid()):
                mend = f"end it (ctx umount {root}), or name another directory: ctx mount DIR"
                raise Fault("EBUSY", f"{root} is the mount of uid {mount.owner}, and not yours; {mend}")
            try:
                facts = mounts.facts(mounts.status_text(root))
            except Fault:
                if not mounts.is_stale(root):
                    raise
                continue  # its daemon has just died
            return f"{root} is mounted already (pid {facts.get('pid', ['unknown'])[0]})"
        umount.detach(mount)
        say(f"detached the mount that a dead daemon left at {root}")
    return None


def _prepare(root: str) -> None:
    """Make the mount point if it is missing. Refuse a directory with files that the mount would hide."""
    mend = "name a directory of your own: ctx mount DIR"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(root, 0o755)
        # A README may say what the directory is for (mountpoint/ of a checkout has one).
        entries = [name for name in os.listdir(root) if name != "README"]
    except OSError as problem:
        raise Fault("EINVAL", f"{root} cannot be the mount point: {problem.strerror}; {mend}") from None
    if entries:
        why = f"{root} is not empty, and the mount would hide what is in it"
        raise Fault("EINVAL", f"{why}; name an empty directory")
    if not os.access(root, os.W_OK):
        raise Fault("EACCES", f"{root} is not yours to mount on; {mend}")


def _environment(where: Places) -> dict[str, str]:
    """Returns the daemon's environment: the variables that ENVIRONMENT names, and the keys' variables that
    providers' files name."""
    keys = set[str | None]()
    if any((where.config / "providers").glob("*.toml")):
        from cortexfs.models.providers.files import Providers  # this import takes as long as all the rest

        found = Providers(where.config, where.state).load().providers.values()
        keys = {provider.key.env for provider in found if provider.key}
    return {name: value for name, value in os.environ.items() if ENVIRONMENT.fullmatch(name) or name in keys}


def _start(root: str, where: Places) -> int:
    """Start a detached daemon and wait until it is ready. If it fails to start, returns its exit status."""
    log_path = where.state / "daemon.log"
    reader, writer = os.pipe()
    with _log(log_path) as log:
        before = os.fstat(log.fileno()).st_size
        daemon = subprocess.Popen(
            _command(root, where, writer),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_environment(where),
            pass_fds=(writer,),
            start_new_session=True,
        )
    os.close(writer)
    message = _wait(reader)
    os.close(reader)
    if message == serve.READY:
        say(f"mounted at {root} (pid {daemon.pid})")
        daemon.returncode = EXIT_OK  # it outlives us; without this, Popen would warn
        return EXIT_OK
    status = _end(daemon, message is None)
    _explain(message, log_path, before)
    return status if status > 0 else exit_status("EHOSTDOWN")


def _command(root: str, where: Places, ready: int) -> list[str]:
    """Returns the daemon's command line: an isolated interpreter that finds this very package."""
    package = os.path.dirname(os.path.dirname(cortexfs.__file__))
    program = (
        f"import sys; sys.path.append({package!r}); from cortexfs.cli.main import main; sys.exit(main())"
    )
    words = ["mount", root, "--state", str(where.state), "--config", str(where.config)]
    return [sys.executable, "-I", "-c", program, *words, "--ready-fd", str(ready)]


def _log(path: Path) -> BinaryIO:
    """Opens the daemon's log. A log over 1 MiB becomes daemon.log.1 first."""
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_size > MAX_LOG:
            path.replace(path.with_suffix(".log.1"))
    return open(path, "ab", opener=no_links.opener)


def _wait(reader: int) -> bytes | None:
    """Returns the daemon's message when it closes the pipe, or None if it sends nothing for too long."""
    message, known = b"", 0
    with progress.shown("the daemon starts") as now:
        while select.select([reader], [], [], START_SECONDS)[0]:
            if not (part := os.read(reader, 4096)):
                return message
            known += (message + part).count(serve.WORKING)
            now(f"the daemon starts; plugins that were read or asked: {known}")
            message = (message + part).lstrip(serve.WORKING)
    return None


def _end(daemon: subprocess.Popen[bytes], late: bool) -> int:
    """Returns the exit status of a daemon that did not start. A daemon that still tries is ended."""
    if late:
        daemon.terminate()
    try:
        return daemon.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        return daemon.wait()


def _explain(message: bytes | None, log: Path, before: int) -> None:
    """Report why there is no mount. The last new line of the log may hold a library's error."""
    lines = no_links.read(log, before, MAX_LOG).decode(errors="replace").splitlines()
    hint = f" ({lines[-1]})" if lines and lines[-1] else ""
    if message is None:
        late = f"the daemon did not start, and has done nothing for {START_SECONDS:.0f} s{hint}"
        raise Fault("EHOSTDOWN", f"{late}; its log is {log}")
    if not message:
        raise Fault("EPROTO", f"the daemon ended while it started{hint}; its log is {log}")
    say(f"{parser.program()} mount: {message.decode(errors='replace').strip()}{hint}")
