"""The program `ctx` for tests, started once. Each command is a fork of it, with all imports done already.

    python -I ctx_server.py FD

FD is a socket on which a request is a message: the words, the environment and the directory as JSON, with
standard input, output and error and a pipe. The pipe gets the exit status as text; minus the signal's number
if a signal ended the command. Starting Python and importing takes two thirds of the time of a command.

Rules: apart from imports, a command begins as in a process of its own: no code of a command runs before the
fork, and a fork never returns. The server ends when no process has the other end of FD.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import traceback

import cortexfs.cli
from cortexfs.cli.main import main

MAX_REQUEST = 1 << 20
MANY = 1024  # the limit of descriptors to close; a server has a few


def preload() -> None:
    for found in pkgutil.walk_packages(cortexfs.cli.__path__, "cortexfs.cli."):
        with contextlib.suppress(ImportError):  # a module of an extra that is not installed
            importlib.import_module(found.name)


def serve(channel: socket.socket) -> None:
    told: dict[int, int] = {}  # the pipe for the status of each command, by the command's pid
    woken, wake = socket.socketpair()
    for each in (woken, wake):
        each.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)
        reap(told)
        if channel.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(channel, MAX_REQUEST, 4)
            if not data:
                return
            *streams, pipe = fds
            if (pid := os.fork()) == 0:
                os.close(pipe)
                run(data, streams)
            told[pid] = pipe
            for fd in streams:
                os.close(fd)


def reap(told: dict[int, int]) -> None:
    """Send the status of each command that has ended to the process that started it."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if (pipe := told.pop(found[0], None)) is not None:
                with contextlib.suppress(BrokenPipeError):  # the process that started it has given up
                    os.write(pipe, str(os.waitstatus_to_exitcode(found[1])).encode())
                os.close(pipe)


def run(data: bytes, streams: list[int]) -> None:
    """Run a command in the fork. Never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        words, environ, cwd = json.loads(data)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(3, MANY)
        # Python looks at the kind of a stream once. These are pipes, the server's own are not.
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = ["ctx", *words]
        status = main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    preload()
    serve(socket.socket(fileno=int(sys.argv[1])))
