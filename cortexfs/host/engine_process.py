"""The embedded engine, in a process of its own: llama.cpp's HTTP server for one GGUF file.

Main path: `main` reads a `LoadRequest` from its standard input, opens the file, gives up unneeded powers,
loads, and answers with the port. Then llama.cpp's threads serve, and ours wait for the daemon to hang up.

Rules: it answers only requests with the key. If root starts it, it opens the file as root without powers.
Then it becomes nobody before it reads a byte of the file, as anybody may have written it. It never outlives
the daemon: the socket's end, or the kernel, ends it. It ends by _exit, as the server's own way to stop
deadlocks before its first request.
This file must never know what a frame, a session or a caller is.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import socket
import stat
import sys
import threading
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn

from cortexfs.core.models import engine_protocol
from cortexfs.host import engine_threads
from cortexfs.host.confine.limits import lower
from cortexfs.linux import capabilities
from cortexfs.linux.syscalls import (
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    prctl,
    take_turns_of,
)

NOBODY = 65534
OPEN_FILES = 256  # one connection per request, and a few for itself
# Tokens of a prompt that are read in a row, before other streams and the daemon's health check get their
# turn.
BATCH = 512
# For displaced conversations, so that their next message need not read them again.
KEPT_MIB = 256
HTTP_THREADS = 4  # beside one per stream: for waiting requests, and the daemon's health check
# Short of memory, the kernel ends this before the daemon: it can be started again, the daemon is a mount.
OOM_SCORE = b"500"
# Nanoseconds of a turn on a core: more than other processes have (3 ms), so that a woken process goes first.
# A delta waited up to 4 ms for the core that computed the next one.
TURN = 20_000_000
ERRORS_ONLY = 1


class Unusable(Exception):
    """The reason why the file cannot be served, as a sentence."""


def main() -> NoReturn:
    daemon = socket.socket(fileno=0)
    load = engine_protocol.decode_load(daemon.makefile("rb").readline(engine_protocol.MAX_LINE))
    watch = threading.Thread(target=_end_with, args=[daemon])
    watch.start()
    try:
        port = _serve(load)
    except Unusable as why:
        failure = engine_protocol.LoadFailure(str(why)[: engine_protocol.MAX_WHY])
        daemon.sendall(engine_protocol.encode(failure))
        os._exit(1)
    daemon.sendall(engine_protocol.encode(engine_protocol.LoadReply(port)))
    watch.join()
    os._exit(0)


def _end_with(daemon: socket.socket) -> NoReturn:
    """Wait until the daemon hangs up, then end this process."""
    with suppress(OSError):
        while daemon.recv(1):
            pass
    os._exit(0)


def _serve(load: engine_protocol.LoadRequest) -> int:
    """Load and serve; returns the port. The library is the installation's, so it is imported first."""
    try:
        xllamacpp = importlib.import_module("xllamacpp")
    except ImportError as problem:
        is_bare = "libgomp" in str(problem)  # a Debian without compilers
        mend = "let root run: apt-get install libgomp1" if is_bare else "see: ctx provider add-local"
        raise Unusable(f"xllamacpp cannot be imported: {problem}; {mend}") from None
    weights = _open_weights(load.weights)
    try:
        _give_up()
        # By its descriptor: the folders above the file may be closed to nobody.
        path = f"/proc/self/fd/{weights}"
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError as problem:
        mend = f"chmod o+r {load.weights}"
        raise Unusable(f"the engine may not read {load.weights} ({problem.strerror}); {mend}") from None
    except OSError as problem:
        raise Unusable(f"the engine cannot be confined: {problem.strerror}") from None
    params = _parameters(xllamacpp, load, path)
    try:
        global _server  # never collected: its end deadlocks
        _server = xllamacpp.Server(params)
    except RuntimeError as problem:
        raise Unusable(f"llama.cpp does not load {load.weights}: {problem}") from None
    return int(_server.listening_address.rpartition(":")[2])


def _open_weights(path: str) -> int:
    """Open the file. The daemon names it, so root opens it without the power to read files closed to root."""
    try:
        if os.geteuid() == 0:
            capabilities.keep(capabilities.mask(capabilities.SETGID, capabilities.SETUID))
        weights = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as problem:
        raise Unusable(f"{path} cannot be read: {problem.strerror}") from None
    if not stat.S_ISREG(os.fstat(weights).st_mode):
        raise Unusable(f"{path} is no regular file")
    return weights


_server: Any = None


def _parameters(xllamacpp: ModuleType, load: engine_protocol.LoadRequest, path: str) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.model_alias = {load.name}
    params.api_keys = [load.key]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cors_origins = ""
    params.ui = False
    params.n_parallel = load.streams
    params.n_ctx = load.context * load.streams  # each stream has a whole context: none can starve another
    params.n_batch = BATCH
    params.n_threads_http = load.streams + HTTP_THREADS
    params.cache_ram_mib = KEPT_MIB
    spins = engine_threads.spin_while_free(xllamacpp.xllamacpp.__file__, load.threads)
    # For answers one thread fewer, unless `spins`: a thread that shares its core delays all the others.
    params.cpuparams.n_threads = load.threads if spins else max(1, load.threads - 1)
    params.cpuparams_batch.n_threads = load.threads
    params.warmup = False  # the first prompt warms it as well, and a user waits
    params.verbosity = ERRORS_ONLY
    params.offline = True
    return params


def _give_up() -> None:
    """Keep nothing but the file and the loopback. The order matters: a change of user clears the signal of
    the parent's death (prctl(2)), and closes /proc/self to this process."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb") as score:
        score.write(OOM_SCORE)
    with suppress(OSError):  # a container's filter may not know the call
        take_turns_of(TURN)
    lower(resource.RLIMIT_NOFILE, OPEN_FILES, for_good=True)
    lower(resource.RLIMIT_CORE, 0, for_good=True)  # it would hold the key and the prompts
    lower(resource.RLIMIT_FSIZE, 0, for_good=True)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)  # other processes of this user cannot look into it
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # if the parent died before this, the other thread notices


if __name__ == "__main__":
    sys.exit(main())
