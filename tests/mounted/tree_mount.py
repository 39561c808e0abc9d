"""A mount of the tree alone, in a process of its own: `python -m tests.mounted.tree_mount ROOT STATE`.

It says "ready" on standard output once `.run.sock` is bound, and then obeys lines on standard input:
`add N` registers N more tools, `drop NAME` removes one, `break NAME` makes one broken, `log NAME`
adds a line to its log; each is answered by "done". It ends when the mount goes, or its input.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import pyfuse3
import trio

from cortexfs.core.hostcalls import Capabilities, Effect, Plugin
from cortexfs.core.registry import Key, Object, Registry
from cortexfs.linux import own_descriptors
from cortexfs.state.control_store import ControlStore
from cortexfs.state.run_logs import Logs
from cortexfs.tree import kernel, readers
from cortexfs.tree.forgetting import Forgetting
from cortexfs.tree.fuse import Filesystem
from tests.no_sessions import NoSessions

SHEBANG = b"#!/bin/cat\n"  # so that an executable can be run without a daemon
PROGRAMS = {"ctx": "/usr/local/bin/ctx", "cortexfs-object-runner": "/usr/local/bin/cortexfs-object-runner"}


def tool(name: str, description: str = "Does a thing.", status: str = "ready") -> Object:
    return Object(
        class_="tool",
        name=name,
        description=description,
        schema=b'{"type":"object"}',
        capabilities=Capabilities(True, effects=(Effect("fs_read", "reversible", "never", "unsupported"),)),
        plugin=Plugin("example", "1.0", "python", "example:plugin"),
        origin="plugin:example@1.0",
        status=status,
        registered=1_700_000_000.0,
    )


def examples() -> dict[Key, Object]:
    extra = {"session": "socket", "driver": "openai.chat", "cap": "chat\nstream\n", "id": "gpt/native"}
    model = Object(class_="model", name="openai/gpt", description="A model.", extra=extra, registered=1.7e9)
    plain = Object(class_="model", name="openai/small", description="No sessions.", registered=1.7e9)
    agent = Object(class_="agent", name="coder", description="Writes code.", registered=1.7e9)
    objects = [tool("fs.read", "Reads a file.\nIn two lines."), tool("shell"), model, plain, agent]
    return {object_.key: object_ for object_ in objects}


class MemoryLogs(Logs):
    root = Path("/dev/null")  # no user has any

    def __init__(self) -> None:
        self._lines: dict[Key, bytes] = {}
        self._times: dict[Key, float] = {}

    def append(self, class_: str, name: str, line: bytes, uid: int | None = None) -> None:
        self._lines[class_, name] = self._lines.get((class_, name), b"") + line
        self._times[class_, name] = time.time()

    def stat(self, class_: str, name: str) -> tuple[int, float]:
        return len(self._lines.get((class_, name), b"")), self._times.get((class_, name), 0.0)

    def read(self, class_: str, name: str, offset: int, size: int) -> bytes:
        return self._lines.get((class_, name), b"")[offset : offset + size]

    def settle(self, uid: int) -> None:
        pass


class Mount:
    def __init__(self, root: str, state: str) -> None:
        self.root = root
        self.logs = MemoryLogs()
        self.fs = Filesystem(
            store=ControlStore(Path(state)),
            logs=self.logs,
            sessions=NoSessions(),
            status=lambda: f"uptime: {time.monotonic_ns()}\n",
            shebang=SHEBANG,
            bin_targets=PROGRAMS,
            strict=True,
            forget=partial(kernel.forget, names=Forgetting(own_descriptors.keep_only_mount)),
        )
        self.fs.load(Registry(examples()))

    async def serve(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fuse, nursery.cancel_scope)
            with await trio.to_thread.run_sync(self._bind):
                print("ready", flush=True)
                await self._obey()
            nursery.cancel_scope.cancel()

    async def _fuse(self, scope: trio.CancelScope) -> None:
        await readers.serve()
        scope.cancel()

    def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        with self.fs.bindings.expecting():
            listener.bind(f"{self.root}/.run.sock")
        listener.listen()
        return listener

    async def _obey(self) -> None:
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            verb, argument = line.split()
            objects = dict(self.fs.tree.registry.objects)
            if verb == "add":
                objects |= {("tool", f"t{at:05}"): tool(f"t{at:05}") for at in range(int(argument))}
            elif verb == "drop":
                del objects["tool", argument]
            elif verb == "break":
                broken = msgspec.structs.replace(objects["tool", argument], status="broken: no such host")
                objects["tool", argument] = broken
            elif verb == "log":
                self.logs.append("tool", argument, b'{"run":"r1"}\n')
            await self.fs.apply(Registry(objects))
            print("done", flush=True)


def main(root: str, state: str) -> None:
    mount = Mount(root, state)
    options = {*pyfuse3.default_options, "fsname=cortexfs", "subtype=cortexfs"}
    pyfuse3.init(mount.fs, root, options | ({"allow_other"} if os.geteuid() == 0 else set()))
    try:
        trio.run(mount.serve)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
