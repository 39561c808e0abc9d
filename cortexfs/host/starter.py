"""The process that starts others for the daemon, which cannot do so once it has given up unneeded powers.

    python -I -m cortexfs.host.starter FD LOOKS --daemon PID [--root ROOT] [--state DIR] [--config DIR]
                                       [--engine JSON]

FD is the channel of core/starts.py. LOOKS is the channel that lookers read, one after another. The daemon,
whose pid is PID, starts this before it opens anything. This starts a fork server at once and unasked. --root
is the mount, --state and --config are the daemon's directories, --engine the command of engines, as a list of
words. Commands run by root take all of these from here (cli/daemons.py).

Rules: a table holds the programs that can be started, and no part of a message is a program. It reads
messages of the daemon and the configuration that its owner has written, and no untrusted input. When the
daemon is gone, all started processes end, and it ends itself.
This file must never know what a host, a model or a plugin is.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import select
import shutil
import signal
import socket
import sys
import sysconfig
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import msgspec

from cortexfs.core import mountinfo, names, starts
from cortexfs.core.errors import Fault
from cortexfs.core.mountinfo import TABLE
from cortexfs.core.starter_command import STARTER_NAME, needed
from cortexfs.host.confine import readonly_mounts
from cortexfs.linux import held_mounts, syscalls
from cortexfs.state import believed
from cortexfs.state.no_links import held

LOOKER = os.path.join(sysconfig.get_path("scripts"), "cortexfs-looker")
# Without a mount of its own the fork server's program is executed from its path, and not told SEALED.
FORK_SERVER, SEALED = "cortexfs.host.forkserver", "--sealed"
ENGINE = [sys.executable, "-I", "-m", "cortexfs.host.engine_process"]
LINK = ["-I", "-m", "cortexfs.team.link"]
ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
# Threads that wait for each other spin for some 200 us, and not at all beside other work (engine_threads.py).
ENGINE_ENVIRON = {**ENVIRON, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000"}
# Long enough for a fork server, which kills what its hosts left before it ends.
END_SECONDS = 3.0
_LOOK_SECONDS = 0.005
MAX_FILE = 1 << 20  # bytes of a provider's file
MAX_CHILDREN = 256  # at once

_pack = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[starts.ToStarter] = msgspec.msgpack.Decoder(starts.ToStarter)


class StarterProgram(NamedTuple):
    """The program of one row of the table."""

    words: list[str]
    path: str
    environ: dict[str, str]
    kind: socket.SocketKind | None = None  # of the socket that is its standard input, if there is one


class StarterProcess:
    def __init__(
        self, daemon: socket.socket, looks: int, root: str, state: str, config: str, engine: Sequence[str]
    ) -> None:
        self._daemon = daemon
        self._looks = looks
        self._root = root
        self._state = state
        self._config = config
        self._engine = engine
        self._sealed = readonly_mounts.sealed(os.path.realpath(sys.executable))
        self._device = 0  # of the mount, once there is one
        self._children: dict[int, starts.StartChild] = {}  # the request of each, by pid
        self._parent = os.pidfd_open(os.getppid())
        Thread(target=self._free, daemon=True).start()
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Serve until the daemon is gone, and then end everything."""
        try:
            with suppress(OSError):  # the daemon is gone, which the first turn finds
                self._hear(starts.StartChild(starts.FIRST, starts.FORK_SERVER))
            while self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        poll = select.poll()
        for each in (self._daemon.fileno(), self._woken, self._parent):
            poll.register(each, select.POLLIN)
        ready = dict(poll.poll())
        if self._parent in ready:  # another process may still hold its end of the channel
            return False
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        try:
            for number, status in self._reap():
                self._say(starts.ChildExit(number, status))
            if self._daemon.fileno() not in ready:
                return True
            data = self._daemon.recv(starts.MAX_MESSAGE)
            with suppress(msgspec.MsgspecError):
                if data:
                    self._hear(_requests.decode(data))
            return bool(data)
        except OSError:  # the daemon is gone
            return False

    def _hear(self, message: starts.ToStarter) -> None:
        if isinstance(message, starts.KillChild):
            self._kill(message.number)
            return
        pid, error, rights = 0, 0, list[int]()
        try:
            if isinstance(message, starts.StartChild):
                pid, rights = self._start(message)
            elif isinstance(message, starts.MountDevice):
                if self._device or not message.device:
                    raise OSError(errno.EINVAL, "the mount is known, and stays it")
                self._device = message.device
            elif isinstance(message, starts.Bind):
                rights = [self._listener(message)]
            elif self._is_on_top():  # another's mount over it stays
                held_mounts.unmount(self._root, self._device)
                self._device = -1  # its number may become another's
        except OSError as problem:
            error = problem.errno or errno.EIO
        self._say(starts.StartReply(message.number, pid, error), rights)

    def _say(self, message: starts.FromStarter, rights: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._daemon, [_pack(message)], rights)
        finally:
            for fd in rights:
                os.close(fd)

    # -- starting

    def _program(self, message: starts.StartChild) -> StarterProgram:
        if message.what == starts.FORK_SERVER:
            state = ["--state", self._state] if self._state else []
            words = [sys.executable, "-I", "-m", FORK_SERVER, "0", "--daemon"]
            sealed = [] if self._sealed is None else [SEALED]
            words += [str(os.getppid()), *state, *sealed]
            return StarterProgram(words, self._sealed or sys.executable, ENVIRON, socket.SOCK_SEQPACKET)
        if message.what == starts.LOOKER:
            return StarterProgram([LOOKER], LOOKER, {})
        if message.what == starts.ENGINE:
            return StarterProgram([*self._engine], self._engine[0], ENGINE_ENVIRON, socket.SOCK_STREAM)
        if message.what == starts.TEAM:
            places = ["--root", self._root, "--state", self._state, "--config", self._config]
            words = [sys.executable, *LINK, *places, "--daemon", str(os.getppid())]
            return StarterProgram(words, words[0], ENVIRON, socket.SOCK_SEQPACKET)
        if message.what == starts.SIGNATURE:
            if not message.argument.startswith(starts.PREFIX) or {"/", "\0"} & {*message.argument}:
                raise OSError(errno.EINVAL, "that is no such folder")
            folder = os.path.join(self._state, message.argument)
            words = [sys.executable, *starts.gpgv(_path_of("gpgv", ENVIRON), folder)]
            return StarterProgram(words, words[0], {**ENVIRON, "HOME": folder})
        if message.what == starts.USER:
            if not (message.argument.isascii() and message.argument.isdigit()):
                raise OSError(errno.EINVAL, "that is no uid")
            words = ["getent", "passwd", message.argument]
            return StarterProgram(words, _path_of(words[0], ENVIRON), ENVIRON)
        if message.what == starts.KEY:
            words, environ = self._key_command(message.argument), needed(os.environ)
            return StarterProgram(words, _path_of(words[0], environ), environ)
        raise OSError(errno.EINVAL, "that cannot be started")

    def _key_command(self, provider: str) -> list[str]:
        """Returns the command in the provider's file, which only the daemon's owner can have written."""
        try:
            data = believed.read(Path(self._config, "providers", f"{names.check(provider)}.toml"), MAX_FILE)
            command = tomllib.loads(data.decode())["key"]["command"]
        except (Fault, ValueError, KeyError, TypeError):
            raise OSError(errno.EINVAL, "there is no such command") from None
        return [str(word) for word in command]

    def _start(self, message: starts.StartChild) -> tuple[int, list[int]]:
        if len(self._children) >= MAX_CHILDREN:
            raise OSError(errno.EAGAIN, "too many are running")
        program = self._program(message)
        with ExitStack() as theirs, ExitStack() as ours:
            null = os.open(os.devnull, os.O_RDWR)
            theirs.callback(os.close, null)
            output, writer = os.pipe()
            theirs.callback(os.close, writer)
            rights, stdin = [output], null
            if program.kind is not None:
                own, other = socket.socketpair(socket.AF_UNIX, program.kind)
                # The fork server checks the sender of each message.
                other.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, program.kind == socket.SOCK_SEQPACKET)
                rights, stdin = [own.detach(), output], other.detach()
                theirs.callback(os.close, stdin)
            for fd in rights:
                ours.callback(os.close, fd)
            if message.what == starts.LOOKER:
                stdin = self._looks
            out = null if message.what == starts.FORK_SERVER else writer
            errors = null if message.what in (starts.SIGNATURE, starts.KEY, starts.USER) else writer
            pid = _spawn(program, (stdin, out, errors))
            ours.pop_all()
        self._children[pid] = message
        return pid, rights

    def _kill(self, number: int) -> None:
        for pid, child in self._children.items():  # not reaped yet, so that the pid is still this child's
            if child.number == number:
                os.killpg(pid, signal.SIGKILL)

    # -- binding

    def _listener(self, message: starts.Bind) -> int:
        """Bind a listener. Blocks until the daemon has answered the requests that this causes: MKNOD, say.
        No link is followed: the daemon decides where links lead."""
        *folders, name = message.path.split("/")
        if "\0" in message.path or ".." in folders:
            raise OSError(errno.EINVAL, "that is no path of the mount")
        with ExitStack() as above:
            directory = above.enter_context(held(self._root, os.O_PATH | os.O_DIRECTORY))
            for folder in filter(None, folders):
                below = held(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, directory)
                directory = above.enter_context(below)
            if os.fstat(directory).st_dev != self._device:  # the mount is gone, and this folder lies below it
                raise OSError(errno.EXDEV, "that is no folder of the mount")
            listener = above.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(f"/proc/self/fd/{directory}/{name}")
            listener.listen(message.backlog)
            return listener.detach()

    def _is_on_top(self) -> bool:
        with open(TABLE, "rb") as table:
            found = os.makedev(*mountinfo.device(table.read(), self._root))
        return bool(found) and found == self._device

    # -- ends

    def _free(self) -> None:
        """In a thread of its own: once the daemon is gone, free all that wait for the mount, such as the fork
        server. If another process holds the daemon's end of the mount, they would wait for ever."""
        select.select([self._parent], [], [])
        with suppress(OSError):  # no other process holds it for a user's daemon
            if self._is_on_top():
                held_mounts.abort_fuse(self._root, self._device)

    def _reap(self) -> list[tuple[int, int]]:
        ends = []
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if child := self._children.pop(found[0], None):
                    ends.append((child.number, os.waitstatus_to_exitcode(found[1])))
        return ends

    def _end(self) -> None:
        """End all children. A fork server sees its socket end, and has time to end its hosts."""
        self._daemon.close()
        deadline = time.monotonic() + END_SECONDS
        while self._children:
            for child in self._children.values():
                if child.what != starts.FORK_SERVER or time.monotonic() > deadline:
                    self._kill(child.number)
            time.sleep(_LOOK_SECONDS)
            self._reap()


def _spawn(program: StarterProgram, streams: Sequence[int]) -> int:
    return os.posix_spawn(
        program.path,
        program.words,
        program.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(streams)],
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT],  # Python ignores two of them
    )


def _path_of(program: str, environ: Mapping[str, str]) -> str:
    if path := shutil.which(program, path=environ.get("PATH")):
        return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def main() -> None:
    parser = argparse.ArgumentParser(prog="cortexfs.host.starter")
    parser.add_argument("fd", type=int)
    parser.add_argument("looks", type=int)
    parser.add_argument("--daemon", type=int, required=True)
    parser.add_argument("--root", default="")
    parser.add_argument("--state", default="")
    parser.add_argument("--config", default="")
    parser.add_argument("--engine", type=json.loads, default=ENGINE)
    options = parser.parse_args()
    daemon = socket.socket(fileno=options.fd)
    for channel in (options.fd, options.looks):
        os.set_inheritable(channel, False)
    os.chdir("/")
    syscalls.set_name(STARTER_NAME)
    StarterProcess(daemon, options.looks, options.root, options.state, options.config, options.engine).run()


if __name__ == "__main__":
    main()
