"""The daemon's side of `ctx mount`: hold the state, begin the starter, read the daemon's modules, serve.

Rules: the daemon reports through a pipe that the mount answers, or one sentence why not. Before that, it
reports that it is at work. Without a pipe, it reports on stderr.
This file must never know how a daemon is started.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from collections import Counter
from pathlib import Path

from cortexfs.cli import parser
from cortexfs.cli.output import say
from cortexfs.config import load
from cortexfs.core.errors import Fault, exit_status
from cortexfs.linux.service_manager import ServiceManager
from cortexfs.pool import starter_ends
from cortexfs.state import state_lock, state_version
from cortexfs.state.directories import Places

READY = b"ready\n"
WORKING = b"."
MOST = 20
MOST_OF_ORIGIN = 100
MOST_OF_ORIGINS = 500
SECONDS = 600.0
LONGEST = 4096


def serve(root: str, where: Places, pipe: int | None) -> int:
    """Be the daemon."""
    with contextlib.closing(ServiceManager(os.environ)) as manager:
        return _serve(root, where, Ready(root, pipe, manager), manager)


def _serve(root: str, where: Places, tell: Ready, manager: ServiceManager) -> int:
    os.umask(os.umask(0o077) | 0o022)  # the daemon must later believe the files it writes
    gc.disable()  # until all is loaded: collections took a tenth of that time
    try:
        config = load(where)
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
        for target in logging.getLogger().handlers:
            target.addFilter(Sparing())
        with state_lock.held(config.state):
            state_version.settle(config.state)
            starter = starter_ends.begin(Path(root), config.state, config.directory)
            from cortexfs.daemon import daemon  # the one place that loads trio and pyfuse3

            return daemon.run(Path(root), config, starter, tell, manager)
    except Fault as fault:
        if not tell.is_piped:
            raise
        tell(fault.message)
        return exit_status(fault.code)


class Sparing(logging.Filter):
    """At most MOST lines of one origin within SECONDS: anybody can cause a line, and must not fill the log.
    Of lines that one place in the code repeats, MOST are kept, and the last of them says so. If they name
    their `origin`, as lines that hosts print do, MOST_OF_ORIGIN of each are kept, so that a noisy plugin does
    not silence others, and MOST_OF_ORIGINS together. A message has LONGEST characters, as users choose parts
    of it."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[str, int, int | None]] = Counter()
        self._since = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if not 0 <= record.created - self._since < SECONDS:
            self._counts.clear()
            self._since = record.created
        if len(message := record.getMessage()) > LONGEST:
            record.msg, record.args = f"{message[:LONGEST]}... ({len(message)} characters)", ()
        origin = getattr(record, "origin", None)
        limits = {None: MOST} if origin is None else {origin: MOST_OF_ORIGIN, None: MOST_OF_ORIGINS}
        for key, most in limits.items():
            self._counts[record.pathname, record.lineno, key] += 1
            count = self._counts[record.pathname, record.lineno, key]
            if count == most:
                minutes = f"{SECONDS / 60:.0f} minutes"
                record.msg = f"{record.getMessage()} (further messages like this are dropped, for {minutes})"
                record.args = ()
            if count > most:
                return False
        return True


class Ready:
    """Tells the starting process that the daemon is ready, or why not, through the pipe or on stderr, and
    tells a service manager. An empty sentence means "still at work", for the pipe only."""

    def __init__(self, root: str, pipe: int | None, manager: ServiceManager | None = None) -> None:
        self._root = root
        self._manager = manager or ServiceManager({})
        self._pipe = pipe

    @property
    def is_piped(self) -> bool:
        return self._pipe is not None

    def __call__(self, problem: str | None) -> None:
        if problem == "":
            self._write(WORKING)
            return
        if problem is None:
            self._manager.tell("READY=1", f"STATUS=mounted at {self._root}")
        if self._pipe is None:
            text = f"mounted at {self._root} (pid {os.getpid()})"
            say(text if problem is None else f"{parser.program()} mount: {problem}")
            return
        self._write(READY if problem is None else problem.encode()[:4000])
        os.close(self._pipe)
        self._pipe = None

    def _write(self, data: bytes) -> None:
        """Write to the pipe. The starting process may have given up waiting."""
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, data)
